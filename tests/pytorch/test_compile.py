"""``torch.compile(model, backend="tilegrad")``: training loops unchanged, graph breaks, shapes, fallback with a word."""

from __future__ import annotations

import copy
import importlib
import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

# PyTorch warns about its own internals.
pytestmark = pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::DeprecationWarning", "ignore:The .grad attribute of a Tensor:UserWarning"
)

import torch.nn.functional as F  # noqa: E402

from tests.pytorch import models as m  # noqa: E402
from tilegrad.frontend.pytorch import sizes  # noqa: E402
from tilegrad.frontend.pytorch.backend import FallbackWarning, backend, memory_order  # noqa: E402

STRICT = {"fallback": False, "logs": []}


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


def test_entry_point_names_the_backend():
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    home, name = re.search(r'torch_dynamo_backends\]\ntilegrad = "([\w.]+):(\w+)"', text).groups()
    assert getattr(importlib.import_module(home), name) is backend


def losses(model, call, x, y, steps=4):
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(call(x), y)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def test_training_loop_with_batch_norm_follows_pytorch():
    theirs, x, y = m.CNN(4), m.images(4, 8), torch.tensor([0, 1, 2, 3])
    ours = copy.deepcopy(theirs)
    got = losses(ours, torch.compile(ours, backend=backend, options=STRICT), x, y)
    assert got == pytest.approx(losses(theirs, theirs, x, y), rel=1e-4)
    for name, value in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value, rtol=1e-3, atol=1e-5)


def test_graph_breaks_and_changing_shapes_are_tolerated():
    layer = torch.nn.Linear(4, 4)

    def function(x):
        y = torch.relu(layer(x))
        torch._dynamo.graph_break()
        return y.sum(0) * x.shape[0]

    compiled = torch.compile(function, backend=backend, options=STRICT, dynamic=False)
    for n in (2, 3):
        x = torch.randn(n, 4)
        torch.testing.assert_close(compiled(x), function(x))


def test_sizes_that_pytorch_leaves_open_are_compiled_one_by_one():
    """The second batch size makes PyTorch trace with symbols, which reach the results, too."""
    layer = torch.nn.Linear(5, 2)

    def function(x, k):
        y = torch.tanh(layer(x)).flatten(0, 1)
        return y * x.shape[1], x.shape[1], x.new_zeros(x.shape[1]) + k, F.pad(x, (0, x.shape[1]))

    compiled = torch.compile(function, backend=backend, options=STRICT)
    for n in (3, 4, 6, 4, 0):
        x = torch.randn(2, n, 5)
        a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
        ours, theirs = compiled(a, n + 1), function(b, n + 1)
        for got, want in zip(ours, theirs, strict=True):
            torch.testing.assert_close(got, want)
        (ours[0].sum() + ours[3].sum()).backward(), (theirs[0].sum() + theirs[3].sum()).backward()
        torch.testing.assert_close(a.grad, b.grad)


def test_a_number_that_is_always_another_is_refused_in_the_end(monkeypatch):
    monkeypatch.setattr(sizes, "MOST_SETS", 2)
    compiled = torch.compile(lambda x, k: x * k, backend=backend, options=STRICT, dynamic=True)
    for k in (2, 3, 2, 3):
        torch.testing.assert_close(compiled(torch.ones(2), k), torch.full((2,), float(k)))
    with pytest.raises(Exception, match="more than 2 sets of sizes"):
        compiled(torch.ones(2), 5)


def test_backward_twice():
    layer = torch.nn.Linear(4, 3)
    y = torch.compile(layer, backend=backend, options=STRICT)(torch.ones(2, 4)).tanh()
    y.sum().backward(retain_graph=True)
    once = layer.weight.grad.clone()
    y.sum().backward()
    torch.testing.assert_close(layer.weight.grad, 2 * once)


def test_views_and_transposes_keep_their_strides():
    def function(x):
        return x.transpose(0, 1) * 2, (x + 1).permute(2, 0, 1)

    x = torch.randn(2, 3, 4)
    for ours, theirs in zip(torch.compile(function, backend=backend, options=STRICT)(x), function(x), strict=True):
        torch.testing.assert_close(ours, theirs)


LAYOUTS = {
    "plain": lambda: torch.randn(3, 4, 5),
    "transposed": lambda: torch.randn(5, 4, 3).permute(2, 1, 0),
    "one long": lambda: torch.randn(4, 3, 1).permute(1, 0, 2),
    "gaps": lambda: torch.randn(3, 4, 10)[:, :, ::2],
    "repeated": lambda: torch.randn(3, 1, 5).expand(3, 4, 5),
    "offset": lambda: torch.randn(4, 4, 5)[1:],
    "negative": lambda: torch._neg_view(torch.randn(3, 4, 5)),
    "empty": lambda: torch.randn(3, 4, 0),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_inputs_may_lie_in_any_order(name):
    """Results and gradients, whose cotangents lie in another order than the results."""

    def function(x, w):
        return (x.tanh() * w).permute(1, 2, 0), x.transpose(0, 1) + 1

    x, w = LAYOUTS[name](), torch.randn(3, 4, 1)
    compiled = torch.compile(function, backend=backend, options=STRICT)
    for ours, theirs in zip(compiled(x, w), function(x, w), strict=True):
        torch.testing.assert_close(ours, theirs)
        assert ours.stride() == theirs.stride() or not ours.numel()
    found = []
    for f in (compiled, function):
        a, b = x.clone().requires_grad_(), w.clone().requires_grad_()
        y, z = f(a, b)
        torch.autograd.backward([y, z], [torch.ones(3, *y.shape[:2]).permute(1, 2, 0).expand_as(y), torch.ones_like(z)])
        found.append((a.grad, b.grad))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_the_order_of_memory_is_found():
    x = torch.empty(2, 3, 4)
    assert memory_order(x) == (0, 1, 2)
    assert memory_order(x.permute(2, 0, 1)) == (1, 2, 0)
    assert memory_order(torch.empty(2, 3, 4, 5).to(memory_format=torch.channels_last)) == (0, 2, 3, 1)
    assert memory_order(torch.empty_strided((2, 1, 3), (3, 77, 1))) is not None  # an axis of length one lies anywhere
    assert memory_order(x[:, :, ::2]) is None and memory_order(x[:, :1].expand(2, 3, 4)) is None


def test_a_graph_left_to_pytorch_is_announced_or_refused():
    def function(x):
        return torch.linalg.inv(x) + 1

    x = torch.eye(3) * 2
    with pytest.warns(FallbackWarning, match="linalg_inv"):
        torch.testing.assert_close(torch.compile(function, backend=backend)(x), function(x))
    torch._dynamo.reset()
    with pytest.raises(Exception, match="linalg_inv"):
        torch.compile(function, backend=backend, options=STRICT)(x)


def test_unknown_options_are_refused():
    with pytest.raises(Exception, match="colour"):
        torch.compile(lambda x: x + 1, backend=backend, options={"colour": 1})(torch.ones(2))
