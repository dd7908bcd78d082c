"""Sorting and running sums lower to kernels of our own; values from NumPy."""

from __future__ import annotations

import numpy as np

from tests.relax_ext import interpreter
from tilegrad._base.tvm import relax
from tilegrad.relax_ext import ops  # noqa: F401  (registers the lowerings)
from tilegrad.relax_ext.graph import GraphBuilder
from tilegrad.relax_ext.pipeline import lower


def test_sort_topk_and_scans_along_an_inner_axis():
    x = np.random.default_rng(0).integers(0, 6, (3, 13, 2)).astype("float32")
    x[1, 4, 0] = np.nan
    builder = GraphBuilder()
    var = builder.input("x", x.shape, "float32")
    builder.output("ascending", builder.emit(relax.op.argsort(var, 1, False, "int64")))
    builder.output("descending", builder.emit(relax.op.argsort(var, 1, True, "int64")))
    builder.output("sorted", builder.emit(relax.op.sort(var, 1, False)))
    builder.output("sum", builder.emit(relax.op.cumsum(var, 1)))
    builder.output("product", builder.emit(relax.op.cumprod(var, 1)))
    both = builder.emit(relax.op.topk(var, 4, 1, "both", True, "int64"))
    builder.output("top", builder.emit(relax.TupleGetItem(both, 0)))
    got = interpreter.run(lower(builder.finish(), "main"), {"x": x})
    np.testing.assert_array_equal(got["ascending"], np.argsort(x, 1, kind="stable"))
    down = np.argsort(-np.where(np.isnan(x), np.inf, x), 1, kind="stable")
    np.testing.assert_array_equal(got["descending"], down)
    np.testing.assert_array_equal(got["sorted"], np.sort(x, 1))
    np.testing.assert_array_equal(got["top"], np.take_along_axis(x, down[:, :4], 1))
    np.testing.assert_allclose(got["sum"], np.cumsum(x, 1), rtol=1e-6)
    np.testing.assert_allclose(got["product"], np.cumprod(x, 1), rtol=1e-6)
