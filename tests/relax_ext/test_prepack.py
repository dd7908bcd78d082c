"""Weights that are constants are packed when the library is built; parameters are not; values from NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from tilegrad._base.tvm import relax
from tilegrad.relax_ext.driver import build_graphs
from tilegrad.relax_ext.graph import GraphBuilder

R = relax.op


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("m, k, n", [(64, 96, 80), (37, 131, 45), (150, 700, 33)])
def test_a_constant_weight_is_read_from_panels(m, k, n, turned):
    x, w, bias = normal(m, k), normal(n, k, seed=1) if turned else normal(k, n, seed=1), normal(n, seed=2)
    b = GraphBuilder()
    weight = relax.const(w)
    weight = b.emit(R.permute_dims(weight)) if turned else weight
    y = b.emit(R.nn.relu(b.emit(R.add(b.emit(R.matmul(b.input("x", x.shape, "float32"), weight)), relax.const(bias)))))
    b.output("y", y)
    build = build_graphs({"main": b.finish()}, logs=[])
    got = build.library.context().run("main", {"x": x})["y"]
    want = np.maximum(x.astype("float64") @ (w.T if turned else w) + bias, 0)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    config = next(c.config for c in build.choices.values() if c.template == "contraction/1")
    names = {c["kernel"] for c in build.library.manifest["kernels"]} if "kernels" in build.library.manifest else set()
    profile = [name for name, _ in build.library.context().profile("main", {"x": x}, repeat=1)]
    assert any("_panels" in name for name in [*names, *profile]) == config["pack_b"]


def test_a_constant_filter_is_read_from_panels():
    x, w = normal(2, 8, 12, 12), normal(16, 8, 3, 3, seed=1)
    b = GraphBuilder()
    b.output("y", b.emit(R.nn.conv2d(b.input("x", x.shape, "float32"), relax.const(w), padding=(1, 1))))
    build = build_graphs({"main": b.finish()}, logs=[])
    got = build.library.context().run("main", {"x": x})["y"]
    padded = np.pad(x.astype("float64"), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    np.testing.assert_allclose(got, np.einsum("nchwij,ocij->nohw", windows, w), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("m, k, n", [(0, 5, 3), (4, 0, 3), (4, 5, 0)])
def test_a_constant_weight_without_elements_rows_or_terms(m, k, n):
    b = GraphBuilder()
    product = b.emit(R.matmul(b.input("x", (m, k), "float32"), relax.const(normal(k, n))))
    b.output("y", b.emit(R.add(product, relax.const(np.full(n, 1.5, "float32")))))
    build = build_graphs({"main": b.finish()}, logs=[])
    x = normal(m, k)
    got = build.library.context().run("main", {"x": x})["y"]
    np.testing.assert_allclose(got, x.astype("float64") @ normal(k, n) + 1.5, rtol=1e-5, atol=1e-5)


def test_a_constant_that_is_read_twice_and_a_state_stay_as_they_are():
    x, w = normal(40, 40), normal(40, 40, seed=1)
    b = GraphBuilder()
    state = b.input("w", w.shape, "float32", "state")
    shared = relax.const(w)
    p = b.emit(R.add(b.emit(R.matmul(b.input("x", x.shape, "float32"), shared)), shared))
    b.output("y", b.emit(R.matmul(p, state)))
    build = build_graphs({"main": b.finish()}, logs=[])
    context = build.library.context()
    got = context.run("main", {"x": x, "w": w})["y"]
    wide = w.astype("float64")
    np.testing.assert_allclose(got, (x @ wide + wide) @ wide, rtol=1e-3, atol=1e-3)
