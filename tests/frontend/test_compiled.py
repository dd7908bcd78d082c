"""compile and compile_step: the same numbers as the imperative loop and as PyTorch, over the model's own arrays."""

import numpy as np
import pytest

import tilegrad as tg
from tilegrad import nn
from tilegrad._base.errors import UsageError
from tilegrad.frontend import evaluate


def small(seed=0):
    tg.manual_seed(seed)
    return tg.nn.Sequential(tg.nn.Linear(12, 8), tg.nn.ReLU(), tg.nn.Linear(8, 4))


def batch(n, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, 12)).astype("float32"), rng.integers(0, 4, n)


@pytest.fixture(scope="module")
def trained():
    """A compiled Adam step after some steps, and an equal model trained by the imperative loop."""
    a, b = small(), small()
    oa, ob = tg.optim.Adam(a.parameters(), lr=0.01), tg.optim.Adam(b.parameters(), lr=0.01)
    x, y = batch(8)
    step = tg.compile_step(a, tg.nn.functional.cross_entropy, oa, (x, y))
    losses = []
    for i in range(6):
        if i == 3:
            oa.lr = ob.lr = 0.002
        n = 8 if i != 4 else 5
        loss = tg.nn.functional.cross_entropy(b(x[:n]), y[:n])
        ob.zero_grad()
        loss.backward()
        ob.step()
        losses.append((float(step(x[:n], y[:n])), loss.item()))
    return step, a, b, losses, (x, y)


def test_step_equals_loop(trained):
    step, a, b, losses, _ = trained
    for ours, loop in losses:
        assert ours == pytest.approx(loop, rel=1e-6)
    for p, q in zip(a.parameters(), b.parameters(), strict=True):
        np.testing.assert_allclose(p.numpy(), q.numpy(), rtol=1e-5, atol=1e-7)
    assert step.optimizer.count.item() == 6


def test_entries_agree_with_the_virtual_machine(trained):
    step = trained[0]
    before = {k: v.copy() for k, v in step.states.items()}
    check = step.verify()
    assert check.ok, str(check)
    for k, v in step.states.items():  # verifying and profiling train nothing
        np.testing.assert_array_equal(v, before[k])
    assert step.profile()
    for k, v in step.states.items():
        np.testing.assert_array_equal(v, before[k])


def test_evaluate_and_predict(trained):
    step, a, _, _, (x, y) = trained
    loss, prediction = step.evaluate(x, y)
    np.testing.assert_array_equal(prediction, step.predict(x))
    np.testing.assert_allclose(prediction, a(x).numpy(), rtol=1e-5, atol=1e-6)
    assert float(loss) == pytest.approx(tg.nn.functional.cross_entropy(a(x), y).item(), rel=1e-5)


def test_export_and_load_continue_training(trained, tmp_path):
    step, a, _, _, (x, y) = trained
    step.export(tmp_path / "step")
    loaded = tg.load(tmp_path / "step")
    for _ in range(3):
        assert float(loaded(x, y)) == float(step(x, y))
    np.testing.assert_array_equal(loaded.state("0.weight"), a[0].weight.numpy())


def test_pending_values_are_computed_before_a_step(trained):
    step, a, _, _, (x, y) = trained
    pending = a(x)
    expected = step.predict(x)
    step(x, y)
    np.testing.assert_allclose(pending.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_compiled_function():
    W = tg.tensor(np.ones((3, 2), "float32"), requires_grad=True)
    scale = tg.tensor(2.0)

    def f(x):
        return {"y": x @ W * scale, "same": x}

    g = tg.compile(f, [np.zeros((4, 3), "float32")])
    x = np.arange(12, dtype="float32").reshape(4, 3)
    out = g(x)
    np.testing.assert_array_equal(out["y"], x @ np.ones((3, 2), "float32") * 2)
    np.testing.assert_array_equal(out["same"], x)
    W.assign_(np.full((3, 2), 3.0))  # a Tensor with requires_grad stays variable
    np.testing.assert_array_equal(g(x)["y"], x @ np.full((3, 2), 3.0, "float32") * 2)
    assert g(x[:2])["y"].shape == (2, 2)  # another shape, another library


def test_tracing_leaves_no_trace():
    model = small()
    x, y = batch(4)
    opt = tg.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    before = model.state_dict()
    tg.compile_step(model, tg.nn.functional.cross_entropy, opt, (x, y))
    for k, v in model.state_dict().items():
        np.testing.assert_array_equal(v, before[k])
    assert all(p.grad is None for p in model.parameters())
    assert not evaluate.pending.updates


def test_a_compiled_step_refuses_what_it_was_not_compiled_for():
    x, y = np.ones((4, 3), "float32"), np.zeros((4, 2), "float32")
    model = tg.nn.Linear(3, 2)
    opt = tg.optim.SGD(model.parameters(), lr=0.1)
    step = tg.compile_step(model, tg.nn.functional.mse_loss, opt, [x, y])
    opt.lr = 0.0
    step(x, y)
    opt.weight_decay = 0.1
    with pytest.raises(UsageError, match="zero now or was zero then"):
        step(x, y)
    opt.weight_decay = 0.0
    model.weight.requires_grad = False
    with pytest.raises(UsageError, match=r"requires_grad=False of parameter 0.*compile_step again"):
        step(x, y)
    step.evaluate(x, y)


def test_constants_are_results_like_any_other():
    kept = tg.tensor([[1, 2]])

    def f(x):
        return x + 1, kept, kept, tg.ones((2, 3)), tg.tensor([True, False]), tg.zeros((0, 2))

    x = np.zeros(3, np.float32)
    got = tg.compile(f, [x])(x)
    for result, want in zip(got, (x + 1, [[1, 2]], [[1, 2]], np.ones((2, 3)), [True, False], np.zeros((0, 2))), strict=True):
        np.testing.assert_array_equal(result, want)


class Named(nn.Module):
    """A parameter, an argument and a result with one name."""

    def __init__(self):
        super().__init__()
        self.output = nn.Parameter([3.0])

    def forward(self, output, loss):
        return self.output * output + loss


def test_arguments_and_results_may_have_the_names_of_states(tmp_path):
    x, y = np.arange(4, dtype=np.float32), np.ones(4, np.float32)
    model = Named()
    tg.compile(model, [x, y]).export(tmp_path / "a")
    np.testing.assert_array_equal(tg.load(tmp_path / "a")(x, y), 3 * x + y)
    step = tg.compile_step(model, nn.functional.mse_loss, tg.optim.SGD(model.parameters(), lr=0.0), (x, y, y))
    step.export(tmp_path / "b")
    assert float(tg.load(tmp_path / "b").step(x, y, y)) == pytest.approx(float(np.mean((3 * x) ** 2)))


def test_the_jacobian_of_no_elements_has_none():
    assert tg.jacobian(lambda x: x * 2)(tg.zeros((0, 2))).shape == (0, 2, 0, 2)


def test_adam_beside_a_sum_over_rows_updates_once():
    """A bias's gradient is a sum whose rows threads divide; what follows it must not run on each of them."""
    tg.manual_seed(0)
    net = tg.nn.Sequential(tg.nn.Linear(8, 64), tg.nn.ReLU(), tg.nn.Linear(64, 64))
    optimizer = tg.optim.Adam(net.parameters(), lr=0.01)
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((64, 8), dtype=np.float32), rng.integers(0, 64, 64)
    step = tg.compile_step(net, tg.nn.functional.cross_entropy, optimizer, (x, y), logs=[], num_threads=2)
    start = {name: a.copy() for name, a in step.states.items()}
    first = None
    for _ in range(200):
        for name, a in step.states.items():
            a[...] = start[name]
        step(x, y)
        after = {name: a.copy() for name, a in step.states.items()}
        first = first or after
        for name, a in after.items():
            np.testing.assert_array_equal(a, first[name], err_msg=name)
