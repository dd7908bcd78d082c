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
from tilegrad.frontend.pytorch.backend import FallbackWarning, backend  # noqa: E402

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


def test_views_and_transposes_keep_their_strides():
    def function(x):
        return x.transpose(0, 1) * 2, (x + 1).permute(2, 0, 1)

    x = torch.randn(2, 3, 4)
    for ours, theirs in zip(torch.compile(function, backend=backend, options=STRICT)(x), function(x), strict=True):
        torch.testing.assert_close(ours, theirs)


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
