"""Reductions and what is made of them, with gradients: large magnitudes and long sums against float64, NaN against PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from tilegrad._base.tvm import relax
from tilegrad.relax_ext.driver import build_graphs
from tilegrad.relax_ext.gradient import vjp
from tilegrad.relax_ext.graph import GraphBuilder

torch = pytest.importorskip("torch")
R, NN = relax.op, relax.op.nn
ROWS, LENGTH = 6, 20_011
ROUGH = {"layer norm": 2e-3}
"""A mean near 1e4 is known to 1e-3 in float32, which is what deviations of 1 are known to."""


def rows() -> np.ndarray:
    """Plain; far from zero; huge; with a NaN; with infinity; with minus infinity."""
    x = np.random.default_rng(0).standard_normal((ROWS, LENGTH), dtype=np.float32)
    x[1] += 1e4
    x[2] *= 1e15
    x[3, 77], x[4, LENGTH - 1], x[5, 0] = np.nan, np.inf, -np.inf
    return x


def _layer_norm(x: relax.Var) -> relax.Expr:
    one, zero = (relax.const(np.full(LENGTH, v, np.float32)) for v in (1, 0))
    return NN.layer_norm(x, one, zero, axes=[-1])


CASES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "sum": (lambda x: R.sum(x, 1), lambda x: x.sum(1)),
    "mean": (lambda x: R.mean(x, 1), lambda x: x.mean(1)),
    "max": (lambda x: R.max(x, 1), lambda x: x.amax(1)),
    "std": (lambda x: R.std(x, 1), lambda x: x.std(1, correction=0)),
    "softmax": (lambda x: NN.softmax(x, 1), lambda x: x.softmax(1)),
    "log softmax": (lambda x: NN.log_softmax(x, 1), lambda x: x.log_softmax(1)),
    "layer norm": (_layer_norm, lambda x: torch.nn.functional.layer_norm(x, (LENGTH,))),
}


def cotangent(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(shape, dtype=np.float32)


@cache
def ours() -> dict[str, np.ndarray]:
    """Results and gradients of every case, from one library."""
    b = GraphBuilder()
    x = b.input("x", (ROWS, LENGTH), "float32")
    for k, (function, _) in enumerate(CASES.values()):
        y = b.emit(function(x))
        b.output(f"y{k}", y)
        (dx,) = vjp(b, [y], [relax.const(cotangent(tuple(int(d) for d in y.ty.shape)))], [x])
        b.output(f"dx{k}", dx)
    return build_graphs({"f": b.finish()}, logs=[]).library.context().run("f", {"x": rows()})


def theirs(name: str, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    x = torch.tensor(rows(), dtype=dtype, requires_grad=True)
    y = CASES[name][1](x)
    (dx,) = torch.autograd.grad(y, x, torch.tensor(cotangent(tuple(y.shape)), dtype=dtype))
    return y.detach().numpy(), dx.numpy()


@pytest.mark.parametrize("name", CASES)
def test_large_magnitudes_and_long_sums(name: str) -> None:
    """Within a small part of each row's largest value, of what float64 makes of the same float32 numbers."""
    k = list(CASES).index(name)
    for got, want in zip((ours()[f"y{k}"], ours()[f"dx{k}"]), theirs(name, torch.float64), strict=True):
        for row in range(3):
            limit = ROUGH.get(name, 1e-5) * np.abs(want[row]).max()
            np.testing.assert_allclose(got[row], want[row], rtol=0, atol=limit, err_msg=f"row {row}")


@pytest.mark.parametrize("name", CASES)
def test_nan_and_infinities(name: str) -> None:
    k = list(CASES).index(name)
    for got, want in zip((ours()[f"y{k}"], ours()[f"dx{k}"]), theirs(name, torch.float32), strict=True):
        for row in range(3, ROWS):
            np.testing.assert_array_equal(np.isnan(got[row]), np.isnan(want[row]), err_msg=f"row {row}")
            infinite = np.isinf(want[row])
            np.testing.assert_array_equal(np.where(infinite, got[row], 0), np.where(infinite, want[row], 0), err_msg=f"row {row}")
