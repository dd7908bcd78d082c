"""Slices that are one stretch of an intermediate value cost nothing; all others are copied."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.relax_ext.interpreter import run
from tilegrad._base.tvm import relax
from tilegrad.relax_ext.driver import build_graphs
from tilegrad.relax_ext.graph import GraphBuilder
from tilegrad.relax_ext.pipeline import lower

op = relax.op
Slice = Callable[[np.ndarray], np.ndarray]


def sliced(x: relax.Var, axis: int, begin: int, end: int, step: int = 1) -> relax.Expr:
    return op.strided_slice(x, [axis], [begin], [end], [step])


CASES: dict[str, tuple[tuple[int, int, int, int], Slice, bool]] = {
    "rows": ((0, 2, 5, 1), lambda y: y[2:5], True),
    "one row": ((0, 3, 4, 1), lambda y: y[3:4], True),
    "unaligned rows": ((1, 0, 16, 1), lambda y: y[:, :16], False),
    "every other row": ((0, 0, 6, 2), lambda y: y[0:6:2], False),
}


@pytest.mark.parametrize("name", CASES)
def test_stretches_of_memory_are_views(name: str) -> None:
    (axis, begin, end, step), reference, free = CASES[name]
    b = GraphBuilder()
    x, w = b.input("x", (6, 32), "float32"), b.input("w", (32, 32), "float32")
    y = b.emit(op.matmul(x, w))
    piece = b.emit(sliced(y, axis, begin, end, step))
    b.output("sum", b.emit(op.sum(b.emit(op.multiply(piece, piece)), axis=[0])))
    b.output("all", b.emit(op.matmul(y, w)))
    graph = b.finish()
    program = lower(graph)
    assert any(buffer.role == "view" and buffer.offset is not None for buffer in program.buffers.values()) == free
    rng = np.random.default_rng(0)
    args = {"x": rng.standard_normal((6, 32)).astype("float32"), "w": rng.standard_normal((32, 32)).astype("float32")}
    expected = (reference(args["x"] @ args["w"]) ** 2).sum(0)
    for got in (run(program, args), build_graphs({"f": graph}, logs=[]).library.context().run("f", args)):
        np.testing.assert_allclose(got["sum"], expected, rtol=1e-4, atol=1e-4)


def test_a_part_of_a_part_and_its_reshape() -> None:
    b = GraphBuilder()
    x, w = b.input("x", (8, 16), "float32"), b.input("w", (16, 16), "float32")
    y = b.emit(op.matmul(x, w))
    inner = b.emit(sliced(b.emit(sliced(y, 0, 2, 7)), 0, 1, 3))
    b.output("z", b.emit(op.matmul(b.emit(op.reshape(inner, (4, 8))), b.emit(op.reshape(w, (8, 32))))))
    graph = b.finish()
    assert len(lower(graph).calls) == 2, lower(graph).text()
    rng = np.random.default_rng(0)
    args = {"x": rng.standard_normal((8, 16)).astype("float32"), "w": rng.standard_normal((16, 16)).astype("float32")}
    expected = (args["x"] @ args["w"])[3:5].reshape(4, 8) @ args["w"].reshape(8, 32)
    np.testing.assert_allclose(run(lower(graph), args)["z"], expected, rtol=1e-4, atol=1e-4)


def test_parts_of_inputs_and_parts_that_are_results_are_copied() -> None:
    b = GraphBuilder()
    x = b.input("x", (8, 16), "float32")
    b.output("head", b.emit(sliced(x, 0, 0, 2)))
    b.output("tail", b.emit(sliced(b.emit(op.exp(x)), 0, 6, 8)))
    graph = b.finish()
    x_value = np.random.default_rng(0).standard_normal((8, 16)).astype("float32")
    got = build_graphs({"f": graph}, logs=[]).library.context().run("f", {"x": x_value})
    np.testing.assert_array_equal(got["head"], x_value[:2])
    np.testing.assert_allclose(got["tail"], np.exp(x_value[6:]), rtol=1e-6)


def test_unrolled_steps_share_their_kernels() -> None:
    b = GraphBuilder()
    x, w, u = b.input("x", (12, 4, 16), "float32"), b.input("w", (16, 16), "float32"), b.input("u", (16, 16), "float32")
    shares = b.emit(op.matmul(x, w))
    h = b.emit(op.zeros((4, 16), "float32"))
    for t in range(12):
        share = b.emit(op.reshape(b.emit(sliced(shares, 0, t, t + 1)), (4, 16)))
        h = b.emit(op.tanh(b.emit(op.add(share, b.emit(op.matmul(h, u))))))
    b.output("h", h)
    program = lower(b.finish())
    assert len(program.kernels) <= 3, program.text()


@pytest.mark.parametrize("shape", [(32,), (2, 16)], ids=str)
def test_a_part_that_is_a_result_is_written_to_it(shape: tuple[int, ...]) -> None:
    b = GraphBuilder()
    x, w = b.input("x", (6, 32), "float32"), b.input("w", (32, 32), "float32")
    y = b.emit(op.matmul(x, w))
    b.output("row", b.emit(op.reshape(b.emit(sliced(y, 0, 2, 3)), shape)))
    b.output("next", b.emit(op.matmul(y, w)))
    graph = b.finish()
    rng = np.random.default_rng(0)
    args = {"x": rng.standard_normal((6, 32)).astype("float32"), "w": rng.standard_normal((32, 32)).astype("float32")}
    found = build_graphs({"f": graph}, logs=[]).library.context().run("f", args)
    np.testing.assert_allclose(found["row"], (args["x"] @ args["w"])[2].reshape(shape), rtol=1e-4, atol=1e-4)
