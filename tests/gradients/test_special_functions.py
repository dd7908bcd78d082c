"""Functions written in others, where their parts have no gradient or a needless NaN: values and gradients of PyTorch."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

import tilegrad as tg
from tilegrad.frontend.gradients import to_arrays

torch = pytest.importorskip("torch")
TF, NF = torch.nn.functional, tg.nn.functional
INF, NAN = np.inf, np.nan

LOGITS = [-800.0, 800.0, 800.0, -800.0, -1000.0, 0.5]
LABELS = np.array([1.0, 0.0, 1.0, 0.0, 0.5, 0.25])
ROWS = [[-INF, -INF], [INF, 0.0], [INF, INF], [1e4, -1e4], [-INF, 0.0], [NAN, 0.0], [INF, -INF]]
FLAT = [[0.0, 0.0], [3.0, 4.0], [INF, 0.0], [NAN, 1.0]]
NONE = np.zeros((0, 3))

# (name, ours, PyTorch's, inputs)
CASES: list[tuple[str, Any, Any, tuple[Any, ...]]] = [
    (
        "bce of a saturated sigmoid",
        lambda x: NF.binary_cross_entropy(tg.sigmoid(x), tg.tensor(LABELS), reduction="none"),
        lambda x: TF.binary_cross_entropy(torch.sigmoid(x), torch.tensor(LABELS), reduction="none"),
        (LOGITS,),
    ),
    (
        "bce at 0 and 1",
        lambda p, t: NF.binary_cross_entropy(p, t, reduction="none"),
        lambda p, t: TF.binary_cross_entropy(p, t, reduction="none"),
        ([0.0, 1.0, 1.0, 0.0, 0.25], [1.0, 0.0, 1.0, 0.0, 0.5]),
    ),
    (
        "bce with logits",
        lambda x: NF.binary_cross_entropy_with_logits(x, tg.tensor(LABELS), reduction="none"),
        lambda x: TF.binary_cross_entropy_with_logits(x, torch.tensor(LABELS), reduction="none"),
        (LOGITS,),
    ),
    ("norm of rows", lambda x: tg.norm(x, 1), lambda x: torch.linalg.vector_norm(x, dim=1), (FLAT,)),
    ("norm of zero", tg.norm, torch.linalg.vector_norm, ([0.0, 0.0],)),
    ("std of equal numbers", lambda x: tg.std(x, 1), lambda x: x.std(1), ([[1.0, 1.0], [1.0, 2.0], [INF, 1.0]],)),
    ("var of one number", lambda x: tg.var(x, 1), lambda x: x.var(1), ([[1.0], [2.0]],)),
    ("logsumexp", lambda x: tg.logsumexp(x, 1), lambda x: x.logsumexp(1), (ROWS,)),
    ("logsumexp of no elements", lambda x: tg.logsumexp(x, 1), lambda x: x.logsumexp(1), (np.zeros((3, 0)),)),
    ("logsumexp of nothing", tg.logsumexp, lambda x: x.logsumexp(0), (np.zeros(0),)),
    ("max, several NaNs", lambda x: x.max(), lambda x: x.max(), ([NAN, 2.0, NAN, INF],)),
    ("max along an axis, NaNs", lambda x: x.max(1), lambda x: x.amax(1), ([[NAN, 2.0, NAN], [1.0, 1.0, 0.0]],)),
    ("normalize", NF.normalize, TF.normalize, ([[0.0, 0.0], [3.0, 4.0], [1e-13, 0.0]],)),
    ("clip from below", lambda x: tg.clip(x, 1.0), lambda x: x.clamp_min(1.0), ([NAN, 2.0, 1.0, 0.0, INF],)),
    ("clip from above", lambda x: tg.clip(x, None, 1.0), lambda x: x.clamp_max(1.0), ([NAN, 2.0, 1.0, 0.0, -INF],)),
    ("softmax", lambda x: tg.softmax(x, 1) * x, lambda x: x.softmax(1) * x, (ROWS[3:4] + ROWS[5:6],)),
    ("relu", tg.relu, torch.relu, ([NAN, INF, -INF, 0.0],)),
    ("relu6", NF.relu6, TF.relu6, ([NAN, -1.0, 0.0, 0.5, 6.0, 7.0],)),
    ("hardtanh", NF.hardtanh, TF.hardtanh, ([NAN, -1.0, 0.0, 1.0, 7.0],)),
    ("hardsigmoid", NF.hardsigmoid, TF.hardsigmoid, ([-3.0, 0.0, 3.0, 4.0],)),
    ("hardswish", NF.hardswish, TF.hardswish, ([-4.0, -3.0, 0.0, 3.0, 4.0],)),
    ("elu", NF.elu, TF.elu, ([NAN, -INF, 0.0, -1.0, INF],)),
    ("selu", NF.selu, TF.selu, ([NAN, 0.0, -1.0, 1.0],)),
    ("leaky relu", NF.leaky_relu, TF.leaky_relu, ([NAN, 0.0, -1.0, INF],)),
    ("mean of no rows", lambda x: tg.mean(x, 0), lambda x: x.mean(0), (NONE,)),
    ("sum of no rows", lambda x: tg.sum(x, 0), lambda x: x.sum(0), (NONE,)),
    ("product of no rows", lambda x: tg.prod(x, 0), lambda x: x.prod(0), (NONE,)),
    ("variance of no rows", lambda x: tg.var(x, 0), lambda x: x.var(0, correction=1), (NONE,)),
    ("contraction over nothing", lambda x, y: x.T @ y, lambda x, y: x.T @ y, (NONE, np.zeros((0, 2)))),
    ("contraction of nothing", lambda x, w: tg.relu(x @ w), lambda x, w: torch.relu(x @ w), (NONE, np.ones((3, 2)))),
    ("loss of nothing", lambda x: NF.mse_loss(x, x * 2.0), lambda x: TF.mse_loss(x, x * 2.0), (NONE,)),
    ("softmax of nothing", lambda x: tg.softmax(x, 1), lambda x: x.softmax(1), (NONE,)),
]


@cache
def ours() -> list[np.ndarray]:
    """Value and gradients of every case, computed together."""
    found = []
    for _, f, _, inputs in CASES:
        y, pull = tg.vjp(f, *(tg.tensor(np.asarray(v, "float64")) for v in inputs))
        found += [y, *pull(tg.ones(y.shape, dtype="float64"))]
    return to_arrays(found)


@pytest.mark.filterwarnings("ignore:.*degrees of freedom.*")
@pytest.mark.parametrize("k", range(len(CASES)), ids=[c[0] for c in CASES])
def test_equals_pytorch(k: int) -> None:
    _, _, theirs, inputs = CASES[k]
    at = sum(1 + len(c[3]) for c in CASES[:k])
    args = [torch.tensor(np.asarray(v, "float64"), requires_grad=True) for v in inputs]
    y = theirs(*args)
    y.sum().backward()
    for name, got, want in zip(["value", *"ab"], ours()[at:], [y.detach(), *(a.grad for a in args)], strict=False):
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-6, atol=1e-12, err_msg=name)
