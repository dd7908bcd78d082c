"""What a simplifier may not do with floats, through fusion and all, against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.gradients.checker import run_library
from tilegrad._base.tvm import relax
from tilegrad.relax_ext.graph import GraphBuilder

R = relax.op
NAN, INF = np.nan, np.inf
A = [NAN, 1, 1, NAN, INF, -INF, 0, -0.0, 2, 1e-4]
B = [1, NAN, 1, NAN, INF, INF, -1, 0, 3, 1]

Case = Callable[..., Any]
# name: (Relax of a, b and n(number); the same in NumPy)
CASES: dict[str, tuple[Case, Case]] = {
    "equal": (lambda a, b, n: R.equal(a, b), lambda a, b, n: a == b),
    "equal to itself": (lambda a, b, n: R.equal(a, a), lambda a, b, n: a == a),
    "differs": (lambda a, b, n: R.not_equal(a, b), lambda a, b, n: a != b),
    "differs from itself": (lambda a, b, n: R.not_equal(a, a), lambda a, b, n: a != a),
    "at most itself": (lambda a, b, n: R.less_equal(a, a), lambda a, b, n: a <= a),
    "not less": (lambda a, b, n: R.logical_not(R.less(a, b)), lambda a, b, n: ~(a < b)),
    "not at most": (lambda a, b, n: R.logical_not(R.less_equal(a, b)), lambda a, b, n: ~(a <= b)),
    "not greater": (lambda a, b, n: R.logical_not(R.greater(a, b)), lambda a, b, n: ~(a > b)),
    "not at least": (lambda a, b, n: R.logical_not(R.greater_equal(a, b)), lambda a, b, n: ~(a >= b)),
    "not equal": (lambda a, b, n: R.logical_not(R.equal(a, b)), lambda a, b, n: ~(a == b)),
    "either side": (lambda a, b, n: R.logical_or(R.less(a, b), R.greater_equal(a, b)), lambda a, b, n: (a < b) | (a >= b)),
    "where in where": (
        lambda a, b, n: R.where(R.less(a, b), a, R.where(R.greater_equal(a, b), b, n(7))),
        lambda a, b, n: np.where(a < b, a, np.where(a >= b, b, n(7))),
    ),
    "where it is a number": (lambda a, b, n: R.where(R.equal(a, a), a, n(0)), lambda a, b, n: np.where(a == a, a, n(0))),
    "maximum": (lambda a, b, n: R.maximum(a, b), lambda a, b, n: np.maximum(a, b)),
    "minimum": (lambda a, b, n: R.minimum(a, b), lambda a, b, n: np.minimum(a, b)),
    "maximum of results": (lambda a, b, n: R.maximum(R.add(a, b), R.multiply(a, b)), lambda a, b, n: np.maximum(a + b, a * b)),
    "maximum with a number": (lambda a, b, n: R.maximum(a, n(1)), lambda a, b, n: np.maximum(a, n(1))),
    "minimum of a number": (lambda a, b, n: R.minimum(n(1), a), lambda a, b, n: np.minimum(n(1), a)),
    "maximum with NaN": (lambda a, b, n: R.maximum(a, n(NAN)), lambda a, b, n: np.maximum(a, n(NAN))),
    "relu": (lambda a, b, n: relax.op.nn.relu(a), lambda a, b, n: np.maximum(a, n(0))),
    "clip": (lambda a, b, n: R.clip(a, -1, 1), lambda a, b, n: np.clip(a, n(-1), n(1))),
    "minus itself": (lambda a, b, n: R.subtract(a, a), lambda a, b, n: a - a),
    "added and taken away": (lambda a, b, n: R.subtract(R.add(a, b), b), lambda a, b, n: (a + b) - b),
    "taken away and added": (lambda a, b, n: R.add(R.subtract(a, b), b), lambda a, b, n: (a - b) + b),
    "times zero": (lambda a, b, n: R.multiply(a, n(0)), lambda a, b, n: a * n(0)),
    "times zeros": (lambda a, b, n: R.multiply(a, R.zeros_like(a)), lambda a, b, n: a * n(0)),
    "zero over": (lambda a, b, n: R.divide(n(0), a), lambda a, b, n: n(0) / a),
    "over zero": (lambda a, b, n: R.divide(a, n(0)), lambda a, b, n: a / n(0)),
    "largest": (lambda a, b, n: R.max(a), lambda a, b, n: a.max()),
    "smallest of sums": (lambda a, b, n: R.min(R.add(a, b)), lambda a, b, n: (a + b).min()),
    "place of the largest": (lambda a, b, n: R.argmax(b), lambda a, b, n: b.argmax()),
    "place of the smallest": (lambda a, b, n: R.argmin(b, 0, True), lambda a, b, n: b.argmin(0, keepdims=True)),
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_as_ieee_754_has_it(dtype: str) -> None:
    outer = "float32" if dtype == "bfloat16" else dtype
    x, y = (np.resize(v, 40).astype(outer) for v in (A, B))  # vectors and a remainder
    if dtype == "bfloat16":  # what both have
        x = np.where(np.abs(x) < 1, np.round(x), x)
    g = GraphBuilder()
    a, b = (g.emit(R.astype(g.input(name, (40,), outer), dtype)) for name in "ab")

    for name, (ours, _) in CASES.items():
        g.output(name, g.emit(R.astype(g.emit(ours(a, b, lambda v: relax.const(v, dtype))), "float32")))
    got = run_library(g.finish(), {"a": x, "b": y})
    with np.errstate(all="ignore"):
        for name, (_, theirs) in CASES.items():
            np.testing.assert_array_equal(got[name], np.float32(theirs(x, y, x.dtype.type)), err_msg=name)
