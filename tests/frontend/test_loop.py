"""The imperative loop: equal to PyTorch, compiled once, bounded."""

import threading

import numpy as np
import pytest

import tilegrad as tg
from tests.frontend.many import virtual_machine
from tilegrad._base.errors import IndexingError, LibraryError, UsageError
from tilegrad.frontend import evaluate, execute

torch = pytest.importorskip("torch")


@pytest.fixture
def vm():
    """Values by TVM's virtual machine: the bookkeeping is tested, not the kernels."""
    with virtual_machine():
        yield


def pair(*, seed=0):
    torch.manual_seed(seed)
    theirs = torch.nn.Sequential(torch.nn.Linear(12, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    ours = tg.nn.Sequential(tg.nn.Linear(12, 8), tg.nn.ReLU(), tg.nn.Linear(8, 4))
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def data(n, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, 12)).astype("float32"), rng.integers(0, 4, n)


def our_step(model, opt, x, y):
    loss = tg.nn.functional.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss


def their_step(model, opt, x, y):
    loss = torch.nn.functional.cross_entropy(model(torch.tensor(x)), torch.tensor(y))
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.item()


def test_nesterov_curve_last_batch_and_learning_rate():
    ours, theirs = pair()
    kw = dict(lr=0.1, momentum=0.9, weight_decay=1e-3, nesterov=True)
    opt, topt = tg.optim.SGD(ours.parameters(), **kw), torch.optim.SGD(theirs.parameters(), **kw)
    x, y = data(8)
    counts = []
    for i in range(20):
        n = 5 if i % 4 == 3 else 8  # a last, smaller batch
        if i == 10:
            opt.lr = 0.02
            topt.param_groups[0]["lr"] = 0.02
        loss = our_step(ours, opt, x[:n], y[:n]).item()
        assert loss == pytest.approx(their_step(theirs, topt, x[:n], y[:n]), rel=1e-5)
        counts.append(evaluate.compiles)
    assert counts[3] == counts[-1]  # the second pass compiles nothing, nor does the learning rate
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        np.testing.assert_allclose(p.numpy(), q.detach().numpy(), rtol=1e-5, atol=1e-6)


def conv_pair():
    torch.manual_seed(1)

    def make(nn):
        # No bias before the batch norm: its gradient is zero, and Adam would turn the rounding error into steps.
        layers = [
            nn.Conv2d(1, 4, 3, padding=1, bias=False),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(36, 3),
        ]
        return nn.Sequential(*layers)

    theirs, ours = make(torch.nn), make(tg.nn)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def test_cnn_curve_and_running_statistics():
    ours, theirs = conv_pair()
    opt, topt = tg.optim.Adam(ours.parameters(), lr=0.01), torch.optim.Adam(theirs.parameters(), lr=0.01)
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((6, 1, 6, 6)).astype("float32"), rng.integers(0, 3, 6)
    pairs = [(our_step(ours, opt, x, y), their_step(theirs, topt, x, y)) for _ in range(20)]
    for loss, expected in pairs:
        assert loss.item() == pytest.approx(expected, rel=1e-5)
    for name, value in theirs.state_dict().items():
        np.testing.assert_allclose(ours.state_dict()[name], value.numpy(), rtol=1e-3, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    ("name", "kw"),
    [
        ("SGD", dict(lr=0.1, momentum=0.9, dampening=0.3)),
        ("Adam", dict(lr=0.01, weight_decay=0.1, amsgrad=True)),
        ("AdamW", dict(lr=0.01, weight_decay=0.1, betas=(0.8, 0.95))),
        ("RMSprop", dict(lr=0.01, momentum=0.5, centered=True, weight_decay=0.01)),
        ("Adagrad", dict(lr=0.05, lr_decay=0.1, initial_accumulator_value=0.1)),
    ],
)
def test_optimizer_equals_pytorchs(vm, name, kw):
    """On a quadratic, with the parameter in two groups of different learning rates."""
    a, b = np.float64([1.0, -2.0, 3.0]), np.float64([[0.5], [0.25]])
    ours = [tg.tensor(v, requires_grad=True) for v in (a, b)]
    theirs = [torch.tensor(v, requires_grad=True) for v in (a, b)]
    opt = getattr(tg.optim, name)([{"params": ours[:1]}, {"params": ours[1:], "lr": 0.003}], **kw)
    topt = getattr(torch.optim, name)([{"params": theirs[:1]}, {"params": theirs[1:], "lr": 0.003}], **kw)
    for _ in range(5):
        opt.zero_grad(), topt.zero_grad()
        ((ours[0] ** 2).sum() * 1.5 + (ours[1] ** 3).sum()).backward()
        ((theirs[0] ** 2).sum() * 1.5 + (theirs[1] ** 3).sum()).backward()
        opt.step(), topt.step()
    for p, q in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(p.numpy(), q.detach().numpy(), rtol=1e-7)


def test_betas_of_a_group_are_followed():
    a, b = (lib([1.0, -2.0], requires_grad=True) for lib in (tg.tensor, torch.tensor))
    opt, topt = tg.optim.Adam([a], lr=0.1), torch.optim.Adam([b], lr=0.1)
    for o in (opt, topt):
        assert o.param_groups[0]["betas"] == (0.9, 0.999)
        o.param_groups[0]["betas"] = (0.5, 0.9)
    assert opt.beta1 == 0.5 and opt.betas == (0.5, 0.9)
    for _ in range(3):
        opt.zero_grad(), topt.zero_grad()
        (a**2).sum().backward(), (b**2).sum().backward()
        opt.step(), topt.step()
    np.testing.assert_allclose(a.numpy(), b.detach().numpy(), rtol=1e-6)


def test_lion_by_hand(vm):
    p = tg.tensor(np.float64([1.0, -1.0]), requires_grad=True)
    opt = tg.optim.Lion([p], lr=0.1, betas=(0.9, 0.99), weight_decay=0.5)
    (p * np.float64([2.0, 3.0])).sum().backward()
    opt.step()
    np.testing.assert_allclose(p.numpy(), np.float64([1.0, -1.0]) * (1 - 0.05) - 0.1)
    np.testing.assert_allclose(opt.state[p]["exp_avg"].numpy(), 0.01 * np.float64([2.0, 3.0]))


def test_tied_weights_used_twice_and_clipped():
    rng = np.random.default_rng(0)
    w, x = rng.standard_normal((4, 4)), rng.standard_normal((3, 4))
    p, q = tg.tensor(w, requires_grad=True), torch.tensor(w, requires_grad=True)
    opt, topt = tg.optim.SGD([p], lr=0.1, momentum=0.9, nesterov=True), torch.optim.SGD([q], lr=0.1, momentum=0.9, nesterov=True)
    for _ in range(4):
        opt.zero_grad(), topt.zero_grad()
        (tg.tanh(tg.tensor(x) @ p) @ p.T).sum().backward()
        (torch.tanh(torch.tensor(x) @ q) @ q.T).sum().backward()
        norm = tg.optim.clip_grad_norm_([p], 1.0)
        assert norm.item() == pytest.approx(torch.nn.utils.clip_grad_norm_([q], 1.0).item(), rel=1e-9)
        opt.step(), topt.step()
    np.testing.assert_allclose(p.numpy(), q.detach().numpy(), rtol=1e-9)


def test_two_optimizers_and_gradients_read_after_the_step(vm):
    a, b = tg.tensor(2.0, requires_grad=True), tg.tensor(3.0, requires_grad=True)
    oa, ob = tg.optim.SGD([a], lr=0.1), tg.optim.SGD([b], lr=0.1)
    for _ in range(2):
        oa.zero_grad(), ob.zero_grad()
        (a * b).backward()
        oa.step(), ob.step()
    assert (a.item(), b.item()) == pytest.approx((2 - 0.3 - 0.28, 3 - 0.2 - 0.17))
    assert (a.grad.item(), b.grad.item()) == pytest.approx((2.8, 1.7))  # of the values before the last step


def test_values_on_overwritten_parameters(vm):
    w = tg.tensor([1.0, 2.0], requires_grad=True)
    opt = tg.optim.SGD([w], lr=1.0)
    before, alias = w * 10, w.detach()
    loss = (w * w).sum()
    loss.backward()
    opt.step()
    assert before.tolist() == [10.0, 20.0] and alias.tolist() == [1.0, 2.0]
    assert w.tolist() == [-1.0, -2.0] and loss.item() == 5.0
    with pytest.raises(tg.errors.UsageError, match="overwritten"):
        loss.backward()


def test_a_pending_value_on_an_alias_is_computed_before_the_update(vm):
    w = tg.tensor([1.0, 2.0], requires_grad=True)
    opt = tg.optim.SGD([w], lr=1.0)
    y = w.detach() * 10
    (w * w).sum().backward()
    opt.step()
    assert w.tolist() == [-1.0, -2.0] and y.tolist() == [10.0, 20.0]


def test_loops_that_never_ask_stay_bounded(vm):
    """A sum of metrics over batches, and a long chain of updates, are computed along the way, and compiled a few times only."""
    w = tg.tensor(np.eye(12, 4), "float32")
    total, correct = tg.tensor(0.0), tg.tensor(0)
    x, y = data(8)
    before, sizes, expected = evaluate.compiles, [], 0
    for i in range(40):
        logits = tg.tensor(x + i) @ w
        correct = correct + (logits.argmax(1) == y).sum()
        total = total + logits.mean()
        sizes.append(correct._node.depth)
        expected += int((((x + i) @ np.eye(12, 4)).argmax(1) == y).sum())
    assert max(sizes) < 40
    assert correct.item() == expected
    assert evaluate.compiles - before <= 6
    z = tg.tensor(0.0)
    for _ in range(250):
        z = z + 1.0
        assert z._node.depth <= 101
    assert z.item() == 250.0


def test_a_changing_number_becomes_an_argument(vm):
    x = tg.tensor([1.0, 2.0])
    counts = []
    for i in range(5):
        assert (x * (0.5 + i) + 3.0).tolist() == [(0.5 + i) + 3.0, 2 * (0.5 + i) + 3.0]
        counts.append(evaluate.compiles)
    assert counts[4] == counts[1]


def test_item_assignment_keeps_the_history_of_a_result(vm):
    w = tg.tensor([1.0, 2.0, 3.0], requires_grad=True)
    v = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    y, z = w * 2, v * 2
    y[0], z[0] = 5.0, 5.0
    np.testing.assert_array_equal(y.numpy(), z.detach().numpy())
    (y.sum() + (w * w).sum()).backward()
    (z.sum() + (v * v).sum()).backward()
    np.testing.assert_array_equal(w.grad.numpy(), v.grad.numpy())


def test_a_class_that_does_not_exist_is_refused_or_poisons_the_loss(vm):
    x = tg.tensor(np.arange(12, dtype="float32").reshape(4, 3))
    with pytest.raises(IndexingError, match="class 3.*0 to 2"):
        tg.nn.functional.cross_entropy(x, tg.tensor(np.array([0, 1, 2, 3])))
    computed = tg.tensor(np.array([0, 1, 2, 2])) + tg.tensor(np.array([0, 0, 0, 1]))
    assert np.isnan(tg.nn.functional.cross_entropy(x, computed).item())
    bytes_ = tg.tensor(np.array([0, 1, 2, 1], "uint8"))
    expected = torch.nn.functional.cross_entropy(torch.tensor(x.numpy()), torch.tensor([0, 1, 2, 1]))
    assert tg.nn.functional.cross_entropy(x, bytes_).item() == pytest.approx(expected.item(), rel=1e-6)


def test_a_result_that_fails_keeps_its_error_and_the_updates_go_on(monkeypatch):
    prepare = execute.prepare

    def without_tan(graph, *rest):
        if "tan" in graph.dumps():
            raise LibraryError("kernel 'tan'", "nothing", "something")
        return prepare(graph, *rest)

    monkeypatch.setattr(execute, "prepare", without_tan)
    evaluate.cache_clear()
    w = tg.tensor([1.0, 2.0], requires_grad=True)
    opt = tg.optim.SGD([w], lr=0.5)
    fails = tg.tan(w)
    for i in range(3):
        opt.zero_grad()
        (w * w).sum().backward()
        opt.step()
        assert w.tolist() == [0.0, 0.0], i
    with pytest.raises(LibraryError, match="kernel 'tan'"):
        fails.numpy()


def test_a_second_thread_on_a_model_with_a_pending_update_is_an_error():
    w = tg.tensor([1.0, 2.0], requires_grad=True)
    opt = tg.optim.SGD([w], lr=0.5)
    caught = []

    def other():
        for action in (w.numpy, lambda: (w * 2).numpy(), lambda: w.assign_(w * 2)):
            with pytest.raises(UsageError, match="pending in another thread") as e:
                action()
            caught.append(e)

    (w * w).sum().backward()
    opt.step()
    thread = threading.Thread(target=other)
    thread.start(), thread.join()
    assert len(caught) == 3 and w.tolist() == [0.0, 0.0]
    values = []
    thread = threading.Thread(target=lambda: values.append((w + 1).tolist()))
    thread.start(), thread.join()
    assert values == [[1.0, 1.0]]
