"""Gradients of gathers: every place adds its updates in order, whatever the threads; values from NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from tilegrad.relax_ext.driver import build_graphs
from tilegrad.relax_ext.graph import GraphBuilder
from tilegrad.relax_ext.ops import indexing


def take_backward(g: np.ndarray, index: np.ndarray, shape: tuple[int, ...], axis: int, threads: int) -> np.ndarray:
    b = GraphBuilder()
    args = b.input("g", g.shape, "float32"), b.input("i", index.shape, "int64")
    b.output("y", b.emit(indexing.take_backward(*args, x_shape=shape, axis=axis, mode="fast")))
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
