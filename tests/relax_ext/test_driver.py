"""Graphs all the way to a library that runs: the same numbers as the interpreter of Programs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.relax_ext.interpreter import run
from tests.relax_ext.test_lowering import arrays, mlp_numpy, mlp_step
from tilegrad._base.tvm import relax
from tilegrad.relax_ext import driver
from tilegrad.relax_ext.driver import build_graphs
from tilegrad.relax_ext.graph import Graph, GraphBuilder

op = relax.op


@pytest.mark.parametrize("momentum", [False, True])
def test_training_steps_in_the_library(momentum: bool) -> None:
    b = GraphBuilder()
    mlp_step(b, momentum)
    graph = b.finish()
    build = build_graphs({"step": graph}, logs=[])
    context = build.library.context()
    args = arrays(graph)
    states = {p.name: args[p.name].copy() for p in graph.inputs if p.role == "state"}
    given = {k: v for k, v in args.items() if k not in states}
    want = dict(args)
    for _ in range(3):
        want |= mlp_numpy(want)
        got = context.run("step", {**given, **states})
        np.testing.assert_allclose(got["loss"], want["loss"], rtol=1e-5)
        for name, value in states.items():
            size = float(np.abs(want[name]).max())  # float32 sums in two orders; an element may nearly cancel
            np.testing.assert_allclose(value, want[name], rtol=1e-4, atol=1e-5 * max(1.0, size), err_msg=name)


def test_views_of_inputs_states_and_temporaries() -> None:
    b = GraphBuilder()
    x, w = b.input("x", (4, 6), "float32"), b.input("w", (2, 12), "float32", "state")
    e = b.emit
    t = e(op.matmul(e(op.reshape(x, (8, 3))), e(op.reshape(w, (3, 8)))))
    b.output("y", e(op.nn.softmax(e(op.reshape(t, (16, 4))))))
    b.output("x_flat", e(op.reshape(x, (24,))))
    b.output("w_next", e(op.reshape(e(op.add(e(op.reshape(w, (24,))), e(op.reshape(x, (24,))))), (2, 12))), updates="w")
    graph = b.finish()
    build = build_graphs({"f": graph}, logs=[])
    args = arrays(graph)
    expected = run(build.programs["f"], args)
    w_now = args["w"].copy()
    got = build.library.context().run("f", {"x": args["x"], "w": w_now})
    for name in ("y", "x_flat"):
        np.testing.assert_allclose(got[name], expected[name], rtol=1e-6, err_msg=name)
    np.testing.assert_array_equal(w_now, (args["w"].ravel() + args["x"].ravel()).reshape(2, 12))


def test_summary_counts_kernels_by_source() -> None:
    b = GraphBuilder()
    x = b.input("x", (4, 4), "float32")
    b.output("y", b.emit(op.exp(x)))
    assert build_graphs({"f": b.finish()}, logs=[]).summary() == "1 kernels: 1 default"


def test_second_build_lowers_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEGRAD_CACHE_DIR", str(tmp_path))

    def graph(scale: float) -> Graph:
        b = GraphBuilder()
        x = b.input("x", (4, 4), "float32")
        b.output("y", b.emit(op.multiply(x, relax.const(scale, "float32"))))
        return b.finish()

    first = build_graphs({"f": graph(2.0)}, logs=[])
    with monkeypatch.context() as m:
        m.setattr(driver, "lower", lambda *_: pytest.fail("lowered again"))
        again = build_graphs({"f": graph(2.0)}, logs=[])
    assert (again.library.path, again.choices) == (first.library.path, first.choices)
    assert again.programs["f"].text() == first.programs["f"].text()
    other = build_graphs({"f": graph(3.0)}, logs=[])  # another constant is another program
    x = np.ones((4, 4), "float32")
    assert [float(b.library.context().run("f", {"x": x})["y"][0, 0]) for b in (again, other)] == [2.0, 3.0]
    first.library.path.unlink()  # the library is gone: made again
    assert build_graphs({"f": graph(2.0)}, logs=[]).library.path.exists()


def test_large_outputs_start_at_a_cache_line() -> None:
    b = GraphBuilder()
    x = b.input("x", (100, 1000), "float32")
    b.output("y", b.emit(relax.op.permute_dims(x)))
    a = np.arange(100_000, dtype="float32").reshape(100, 1000)
    y = build_graphs({"f": b.finish()}, logs=[]).library.context().run("f", {"x": a})["y"]
    assert y.ctypes.data % 64 == 0 and y.flags.c_contiguous and y.flags.writeable
    np.testing.assert_array_equal(y, a.T)


@pytest.mark.parametrize("first", [True, False])
def test_a_product_takes_along_a_result_that_does_not_depend_on_it(first: bool) -> None:
    """s = a - c is a result of its own and a factor of the product's epilogue, wherever it stands."""
    b = GraphBuilder()
    x, w = b.input("x", (13, 8), "float32"), b.input("w", (8, 21), "float32")
    a, c = b.input("a", (13, 21), "float32"), b.input("c", (1, 21), "float32")
    s = b.emit(relax.op.subtract(a, c)) if first else None
    product = b.emit(relax.op.matmul(x, w))
    s = b.emit(relax.op.subtract(a, c)) if s is None else s
    b.output("y", b.emit(relax.op.multiply(product, s)))
    b.output("s", s)
    build = build_graphs({"main": b.finish()}, logs=[])
    assert [choice.template for choice in build.choices.values()] == ["contraction/1"]
    rng = np.random.default_rng(0)
    shapes = {"x": (13, 8), "w": (8, 21), "a": (13, 21), "c": (1, 21)}
    given = {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}
    found = build.library.context().run("main", given)
    expected = given["a"].astype(np.float64) - given["c"]
    np.testing.assert_allclose(found["s"], expected, rtol=1e-6)
    np.testing.assert_allclose(found["y"], given["x"].astype(np.float64) @ given["w"] * expected, rtol=1e-4, atol=1e-5)
