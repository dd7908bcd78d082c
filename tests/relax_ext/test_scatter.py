"""Gradients of gathers: every place adds its updates in order, whatever the threads; values from NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilegrad.relax_ext.driver import build_graphs
from tilegrad.relax_ext.graph import GraphBuilder
from tilegrad.relax_ext.ops import indexing


def take_backward(g: np.ndarray, index: np.ndarray, shape: tuple[int, ...], axis: int, threads: int) -> np.ndarray:
    return backward(indexing.take_backward, g, index, threads, x_shape=shape, axis=axis, mode="fast")


def backward(operator: Callable[..., Any], g: np.ndarray, index: np.ndarray, threads: int, **attrs: Any) -> np.ndarray:
    b = GraphBuilder()
    args = b.input("g", g.shape, "float32"), b.input("i", index.shape, "int64")
    b.output("y", b.emit(operator(*args, **attrs)))
    build = build_graphs({"f": b.finish()}, logs=[], num_threads=threads)
    return build.library.context(threads).run("f", {"g": g, "i": index})["y"]


@pytest.mark.parametrize("count", [0, 1, 300])
@pytest.mark.parametrize("shape", [(50, 256), (50, 7), (9, 50, 130), (50, 5, 33)])
def test_rows_of_an_embedding(shape: tuple[int, ...], count: int) -> None:
    axis = shape.index(50)
    rng = np.random.default_rng(0)
    index = rng.integers(-50, 50, count)
    g = rng.standard_normal((*shape[:axis], count, *shape[axis + 1 :]), dtype=np.float32)
    want = np.zeros(shape, np.float32)
    np.add.at(np.moveaxis(want, axis, 0), index, np.moveaxis(g, axis, 0))
    for threads in (1, 2, 3):
        np.testing.assert_array_equal(take_backward(g, index, shape, axis, threads), want)


def test_many_updates_of_one_place() -> None:
    g = np.random.default_rng(1).standard_normal(40_000, dtype=np.float32)
    index = np.zeros(40_000, np.int64)
    got = take_backward(g, index, (3,), 0, 2)
    np.testing.assert_allclose(got, [np.cumsum(g)[-1], 0, 0], rtol=1e-6)


@pytest.mark.parametrize(
    "shape, axis, picked",
    [
        ((300, 1000), 1, (300, 1)),  # a loss over classes: rows are divided
        ((40, 1500), 0, (70, 1500)),  # the innermost dimension is divided
        ((40, 1500), 0, (70, 777)),  # fewer columns picked from than there are
        ((9, 70, 100), 1, (9, 30, 100)),
        ((50000,), 0, (20000,)),  # nothing to divide by
        ((5, 9000), 1, (5, 8000)),
    ],
)
def test_elements_along_an_axis(shape: tuple[int, ...], axis: int, picked: tuple[int, ...]) -> None:
    rng = np.random.default_rng(2)
    index = rng.integers(-shape[axis], shape[axis], picked)
    g = rng.standard_normal(picked, dtype=np.float32)
    want = np.zeros(shape, np.float32)
    at = list(np.indices(picked))
    at[axis] = index
    np.add.at(want, tuple(at), g)
    for threads in (1, 2, 3):
        got = backward(indexing.gather_elements_backward, g, index, threads, x_shape=shape, axis=axis)
        np.testing.assert_array_equal(got, want)


def test_slices_of_a_batch() -> None:
    """gather_nd with a batch dimension, which is divided."""
    rng = np.random.default_rng(4)
    index = rng.integers(-30, 30, (16, 90, 1))
    g = rng.standard_normal((16, 90, 40), dtype=np.float32)
    want = np.zeros((16, 30, 40), np.float32)
    np.add.at(want, (np.arange(16)[:, None], index[..., 0]), g)
    for threads in (1, 3):
        got = backward(indexing.gather_nd_backward, g, index, threads, x_shape=want.shape, batch_dims=1)
        np.testing.assert_array_equal(got, want)


def test_a_gather_over_rows_is_divided_among_threads() -> None:
    from tilegrad._base.tvm import tirx, tvm_ffi
    from tilegrad.relax_ext.pipeline import lower

    b = GraphBuilder()
    args = b.input("g", (300, 1), "float32"), b.input("i", (300, 1), "int64")
    b.output("y", b.emit(indexing.gather_elements_backward(*args, x_shape=(300, 1000), axis=1)))
    (func,) = lower(b.finish()).kernels.values()
    loops: list[Any] = []
    tvm_ffi.structural_walk(func.body, (tirx.For, loops.append))
    assert [int(f.extent) for f in loops if f.kind == tirx.ForKind.PARALLEL] == [8]
