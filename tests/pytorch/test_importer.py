"""What the importer must get right or refuse: indices, buffers, ties, dtypes, errors with places."""

from __future__ import annotations

import re

import numpy as np
import pytest

torch = pytest.importorskip("torch")

# PyTorch warns about its own internals.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")

import torch.nn.functional as F  # noqa: E402

from tilegrad._base.errors import DTypeError, ModelImportError, UnsupportedOperatorError, UsageError  # noqa: E402
from tilegrad.frontend.pytorch import from_torch, import_exported, verify  # noqa: E402
from tilegrad.frontend.pytorch.tensors import to_numpy  # noqa: E402
from tilegrad.relax_ext.driver import build_graphs  # noqa: E402


def module(function):
    class Wrapped(torch.nn.Module):
        def forward(self, *args):
            return function(*args)

    return Wrapped()


def run(function, *inputs):
    """Our results of a function of tensors."""
    done = import_exported(torch.export.export(module(function), inputs, strict=False))
    context = build_graphs({"main": done.graph}, logs=[]).library.context()
    found = context.run("main", {n: to_numpy(t) for n, t in zip(done.inputs, inputs, strict=True)})
    return [found[name] for name in done.outputs]


def test_negative_indices_selu_pool_indices_and_strides_agree_with_pytorch():
    x = torch.arange(24.0).reshape(2, 3, 4) - 10
    index = torch.tensor([-1, 0, -2])

    def function(x, index):
        pooled, places = F.max_pool2d(x, 2, 1, 1, return_indices=True)
        return x[:, -1], x[:, index], x[-1, ..., -2], F.selu(x), pooled, places, x.t_() if x.ndim < 3 else x[:, ::2], x.flip(-1)

    for ours, theirs in zip(run(function, x, index), function(x, index), strict=True):
        assert ours.dtype == to_numpy(theirs).dtype
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-6)


def test_an_input_named_as_results_are():
    class Twice(torch.nn.Module):
        def forward(self, output):
            return output * 2, output + 1

    x = torch.arange(3.0)
    for ours, theirs in zip(from_torch(Twice(), (x,))(x.numpy()), (x * 2, x + 1), strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


def test_dtype_promotion_follows_pytorch():
    i, f, b = torch.tensor([7, -7, 3]), torch.tensor([2.0, -2.0, 0.5]), torch.tensor([True, False, True])

    def function(i, f, b):
        return i + 1.5, i / 2, i // 2, i % -2, b + b, b * 3, f > i, (f * 0 + 1).double() * f, i.sum(), b.sum(), f // -0.3

    for ours, theirs in zip(run(function, i, f, b), function(i, f, b), strict=True):
        assert (ours.dtype, ours.shape) == (to_numpy(theirs).dtype, tuple(theirs.shape))
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-6)


def test_nan_and_infinity_come_through_comparisons_and_extremes():
    x = torch.tensor([[1.0, float("nan"), 3.0], [float("inf"), -1.0, 2.0]])

    def function(x):
        return x.amax(1), x.argmax(1), torch.maximum(x, x * 0 + 1.5), x.clamp(0, 2), x.sort(1, descending=True)[1], F.hardtanh(x)

    for ours, theirs in zip(run(function, x), function(x), strict=True):
        np.testing.assert_array_equal(ours, theirs.numpy())


def test_all_unsupported_operators_are_listed_at_once_with_their_lines():
    def function(x):
        return torch.linalg.inv(x) + torch.linalg.det(x), torch.linalg.inv(x * 2)

    with pytest.raises(UnsupportedOperatorError, match=r"(?s)linalg_inv.*2 use\(s\).*test_importer\.py"):
        run(function, torch.eye(3))


def test_what_follows_from_an_unsupported_operator_is_not_listed():
    """The size of nonzero's result, checks of it and sums with it are numbers that nobody has."""

    def function(x):
        return torch.nonzero(x).sum(0) * 2, torch.linalg.eigvalsh(x)

    with pytest.raises(UnsupportedOperatorError) as refused:
        run(function, torch.eye(3))
    assert re.findall(r"^  (\S+): \d+ use", str(refused.value), re.M) == ["_linalg_eigh.default", "nonzero.default"]


def test_what_cannot_be_static_or_real_is_refused():
    with pytest.raises((UnsupportedOperatorError, ModelImportError)):
        from_torch(module(lambda x: x[x > 0]), (torch.randn(5),))
    with pytest.raises(DTypeError, match="complex64"):
        from_torch(module(lambda x: x * 2), (torch.randn(3, dtype=torch.complex64),))
    with pytest.raises(ModelImportError, match="writes into its input"):
        from_torch(module(lambda x: x.add_(1)), (torch.randn(3),))
    with pytest.raises(UsageError, match="torch.nn.Module"):
        from_torch(lambda x: x, (torch.randn(3),))


class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.block = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU())
        self.out = torch.nn.Linear(8, 3)

    def forward(self, x):
        return {"logits": self.out(self.block(x))}


def test_module_keeps_names_structure_and_modes_and_writes_weights_back():
    import tilegrad as tg

    torch.manual_seed(0)
    theirs, x = Small(), torch.randn(6, 4)
    ours = from_torch(theirs, (x,))
    assert set(ours.state_dict()) == set(theirs.state_dict())
    np.testing.assert_allclose(ours(x.numpy())["logits"].numpy(), theirs(x)["logits"].detach().numpy(), atol=1e-5)
    np.testing.assert_allclose(ours.state_dict()["block.1.running_mean"], theirs.state_dict()["block.1.running_mean"], atol=1e-6)
    ours.eval(), theirs.eval()
    np.testing.assert_allclose(ours(x.numpy())["logits"].numpy(), theirs(x)["logits"].detach().numpy(), atol=1e-5)
    ours.out.bias.assign_(np.array([1.0, 2.0, 3.0], "float32"))
    assert ours.write_back().out.bias.tolist() == [1.0, 2.0, 3.0]
    assert isinstance(ours, tg.nn.Module)


def test_verify_names_the_first_operator_that_differs(monkeypatch):
    from tilegrad.frontend.pytorch import table

    torch.manual_seed(0)
    x = torch.randn(6, 4)
    assert verify(Small(), (x,)).ok
    right = table.load_rules()["relu.default"]
    monkeypatch.setitem(table.RULES, "relu.default", lambda k, v: right(k, v) * 1.01)
    found = verify(Small(), (x,)).first_difference
    assert found is not None and found.operator == "relu.default" and "block.2" in found.where


def test_dropout_is_random_seeded_and_scaled():
    import tilegrad as tg

    ours = from_torch(torch.nn.Dropout(0.25), (torch.ones(4000),))
    x = np.ones(4000, "float32")
    tg.manual_seed(3)
    first, second = ours(x).numpy(), ours(x).numpy()
    tg.manual_seed(3)
    np.testing.assert_array_equal(ours(x).numpy(), first)
    assert (first != second).any() and set(np.unique(first)) == {0.0, np.float32(1 / 0.75)}
    assert abs((first == 0).mean() - 0.25) < 0.03
    ours.eval()
    np.testing.assert_array_equal(ours(x).numpy(), x)
