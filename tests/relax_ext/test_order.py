"""Sorting, running sums and arg-reductions lower to kernels of our own; values from NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.relax_ext import interpreter
from tilegrad._base.tvm import relax
from tilegrad.relax_ext import ops  # noqa: F401  (registers the lowerings)
from tilegrad.relax_ext.driver import build_graphs
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


def run(shape: tuple[int, ...], build, x: np.ndarray) -> np.ndarray:
    builder = GraphBuilder()
    builder.output("y", builder.emit(build(builder.input("x", shape, str(x.dtype)))))
    return build_graphs({"f": builder.finish()}, logs=[]).library.context().run("f", {"x": x})["y"]


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("axis", [0, 1, 2, None])
@pytest.mark.parametrize("shape", [(3, 70, 129), (9, 1, 5), (1, 300, 1), (130, 40, 7)])
def test_running_sums_along_any_axis(shape: tuple[int, ...], axis: int | None, exclusive: bool):
    x = np.random.default_rng(1).standard_normal(shape).astype("float32")
    want = np.cumsum(x.astype("float64"), axis)
    if exclusive:
        want -= x if axis is not None else x.ravel()
    got = run(shape, lambda v: relax.op.cumsum(v, axis, exclusive=exclusive), x)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


def test_long_running_sums_stay_accurate():
    """In float64, as PyTorch's: a million tenths."""
    got = run((1_000_000,), lambda v: relax.op.cumsum(v, 0), np.full(1_000_000, 0.1, "float32"))
    np.testing.assert_allclose(got, np.cumsum(np.full(1_000_000, np.float32(0.1), "float64")), rtol=1e-7)


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize("axis", [0, 1, None])
@pytest.mark.parametrize("keepdims", [False, True])
def test_arg_reductions(name: str, axis: int | None, keepdims: bool):
    """The first place of the extreme; a NaN's first place before all."""
    x = np.random.default_rng(2).integers(-4, 4, (65, 130)).astype("float32")
    plain = run(x.shape, lambda v: getattr(relax.op, name)(v, axis, keepdims), x)
    np.testing.assert_array_equal(plain, getattr(np, name)(x, axis, keepdims=keepdims))
    x[7, 9] = x[7, 50] = x[20, 9] = np.nan
    x[3] = -np.inf
    got = run(x.shape, lambda v: getattr(relax.op, name)(v, axis, keepdims), x)
    np.testing.assert_array_equal(got, getattr(np, name)(x, axis, keepdims=keepdims))


@pytest.mark.parametrize("dtype", ["int64", "uint8", "float64", "bool"])
def test_arg_reductions_of_other_types(dtype: str):
    x = np.random.default_rng(3).integers(0, 2 if dtype == "bool" else 9, (50, 77)).astype(dtype)
    np.testing.assert_array_equal(run(x.shape, lambda v: relax.op.argmax(v, 1), x), x.argmax(1))
