"""Transposes end next to contractions, or nowhere."""

from __future__ import annotations

import numpy as np

from tests.relax_ext.interpreter import run
from tilegrad._base.tvm import relax
from tilegrad.relax_ext.fold_transposes import fold_transposes
from tilegrad.relax_ext.graph import Graph, GraphBuilder
from tilegrad.relax_ext.pipeline import lower

op = relax.op


def operators(graph: Graph) -> list[str]:
    mod = fold_transposes(graph.module)
    return [str(b.value.op.name) for block in mod["main"].body.blocks for b in block.bindings if isinstance(b.value, relax.Call)]


def test_transposed_product_swaps_its_operands() -> None:
    b = GraphBuilder()
    x, g = b.input("x", (8, 5), "float32"), b.input("g", (8, 3), "float32")
    w = b.input("w", (3, 5), "float32", "state")
    dw_t = b.emit(op.matmul(b.emit(op.permute_dims(x)), g))
    b.output("next", b.emit(op.subtract(w, b.emit(op.permute_dims(dw_t)))), updates="w")
    graph = b.finish()
    assert operators(graph) == ["relax.permute_dims", "relax.matmul", "relax.subtract"]  # g.T @ x: x's transposes cancel
    program = lower(graph, "f")
    assert len(program.calls) == 1
    rng = np.random.default_rng(0)
    args = {"x": rng.standard_normal((8, 5)), "g": rng.standard_normal((8, 3)), "w": rng.standard_normal((3, 5))}
    args = {k: v.astype("float32") for k, v in args.items()}
    np.testing.assert_allclose(run(program, args)["w"], args["w"] - args["g"].T @ args["x"], rtol=1e-5, atol=1e-6)


def test_product_with_another_reader_stays() -> None:
    b = GraphBuilder()
    x, y = b.input("x", (4, 5), "float32"), b.input("y", (5, 6), "float32")
    z = b.emit(op.matmul(x, y))
    b.output("z", z)
    b.output("t", b.emit(op.permute_dims(z)))
    assert operators(b.finish()) == ["relax.matmul", "relax.permute_dims"]


def test_inverse_transposes_vanish_and_others_compose() -> None:
    b = GraphBuilder()
    x = b.input("x", (2, 3, 4), "float32")
    same = b.emit(op.permute_dims(b.emit(op.permute_dims(x, (1, 2, 0))), (2, 0, 1)))
    b.output("same", b.emit(op.exp(same)))
    b.output("other", b.emit(op.permute_dims(b.emit(op.permute_dims(x, (1, 2, 0))), (1, 2, 0))))
    graph = b.finish()
    assert operators(graph) == ["relax.exp", "relax.permute_dims"]
    value = np.random.default_rng(0).standard_normal((2, 3, 4)).astype("float32")
    got = run(lower(graph, "f"), {"x": value})
    np.testing.assert_array_equal(got["other"], value.transpose(1, 2, 0).transpose(1, 2, 0))


def test_batched_and_broadcast() -> None:
    b = GraphBuilder()
    x, w = b.input("x", (2, 4, 5), "float32"), b.input("w", (5, 6), "float32")
    y = b.input("y", (2, 5, 6), "float32")
    b.output("broadcast", b.emit(op.permute_dims(b.emit(op.matmul(x, w)), (0, 2, 1))))
    b.output("batched", b.emit(op.permute_dims(b.emit(op.matmul(x, y)), (0, 2, 1))))
    graph = b.finish()
    rng = np.random.default_rng(0)
    args = {n: rng.standard_normal(s).astype("float32") for n, s in (("x", (2, 4, 5)), ("w", (5, 6)), ("y", (2, 5, 6)))}
    got = run(lower(graph, "f"), args)
    np.testing.assert_allclose(got["broadcast"], (args["x"] @ args["w"]).swapaxes(1, 2), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got["batched"], (args["x"] @ args["y"]).swapaxes(1, 2), rtol=1e-5, atol=1e-6)
