"""What is joined is written into its place; gradients of slices are joined instead of added up."""

from __future__ import annotations

import numpy as np

from tests.relax_ext.interpreter import run
from tilegrad._base.tvm import relax
from tilegrad.relax_ext.driver import build_graphs
from tilegrad.relax_ext.graph import Graph, GraphBuilder
from tilegrad.relax_ext.pipeline import lower

op = relax.op
RNG = np.random.default_rng(0)


def outputs(graph: Graph, **args: np.ndarray) -> list[dict[str, np.ndarray]]:
    return [run(lower(graph), args), build_graphs({"f": graph}, logs=[]).library.context().run("f", args)]


def test_products_are_written_where_their_join_wants_them() -> None:
    b = GraphBuilder()
    x, w = b.input("x", (3, 4, 16), "float32"), b.input("w", (16, 16), "float32")
    rows = [b.emit(op.reshape(b.emit(op.strided_slice(x, [0], [i], [i + 1])), (4, 16))) for i in range(3)]
    y = b.emit(op.concat([b.emit(op.matmul(r, w)) for r in rows], axis=0))
    b.output("z", b.emit(op.matmul(y, w)))
    graph = b.finish()
    assert not any("concatenate" in c.kernel for c in lower(graph).calls), lower(graph).text()
    x_value, w_value = (RNG.standard_normal(s).astype("float32") for s in ((3, 4, 16), (16, 16)))
    for got in outputs(graph, x=x_value, w=w_value):
        np.testing.assert_allclose(got["z"], x_value.reshape(12, 16) @ w_value @ w_value, rtol=1e-4, atol=1e-4)


def test_one_value_twice_and_inputs_are_copied() -> None:
    b = GraphBuilder()
    x, w = b.input("x", (4, 16), "float32"), b.input("w", (16, 16), "float32")
    y = b.emit(op.matmul(x, w))
    twice = b.emit(op.concat([y, y], axis=0))
    b.output("twice", b.emit(op.matmul(twice, w)))
    b.output("beside", b.emit(op.matmul(b.emit(op.concat([x, y], axis=0)), w)))
    graph = b.finish()
    x_value, w_value = (RNG.standard_normal(s).astype("float32") for s in ((4, 16), (16, 16)))
    y_value = x_value @ w_value
    for got in outputs(graph, x=x_value, w=w_value):
        np.testing.assert_allclose(got["twice"], np.concatenate([y_value, y_value]) @ w_value, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(got["beside"], np.concatenate([x_value, y_value]) @ w_value, rtol=1e-4, atol=1e-4)


def padded(b: GraphBuilder, piece: relax.Var, begin: int, total: int) -> relax.Var:
    rows = int(piece.ty.shape[0])
    return b.emit(op.nn.pad(piece, [begin, total - begin - rows, 0, 0]))


def test_padded_pieces_that_make_up_the_whole_are_joined() -> None:
    b = GraphBuilder()
    p, q = b.input("p", (5, 16), "float32"), b.input("q", (3, 16), "float32")
    b.output("y", b.emit(op.add(padded(b, q, 5, 8), padded(b, p, 0, 8))))
    graph = b.finish()
    assert ["concatenate" in c.kernel for c in lower(graph).calls] == [True]
    p_value, q_value = (RNG.standard_normal(s).astype("float32") for s in ((5, 16), (3, 16)))
    for got in outputs(graph, p=p_value, q=q_value):
        np.testing.assert_array_equal(got["y"], np.concatenate([p_value, q_value]))


def test_gaps_stay_zero() -> None:
    b = GraphBuilder()
    p, q = b.input("p", (2, 16), "float32"), b.input("q", (3, 16), "float32")
    b.output("y", b.emit(op.add(padded(b, q, 4, 8), padded(b, p, 1, 8))))
    p_value, q_value = (RNG.standard_normal(s).astype("float32") for s in ((2, 16), (3, 16)))
    expected = np.zeros((8, 16), "float32")
    expected[1:3], expected[4:7] = p_value, q_value
    for got in outputs(b.finish(), p=p_value, q=q_value):
        np.testing.assert_array_equal(got["y"], expected)


def test_pieces_that_overlap_are_added() -> None:
    b = GraphBuilder()
    p, q = b.input("p", (2, 16), "float32"), b.input("q", (3, 16), "float32")
    b.output("y", b.emit(op.add(padded(b, p, 1, 8), padded(b, q, 2, 8))))
    p_value, q_value = (RNG.standard_normal(s).astype("float32") for s in ((2, 16), (3, 16)))
    expected = np.zeros((8, 16), "float32")
    expected[1:3] += p_value
    expected[2:5] += q_value
    for got in outputs(b.finish(), p=p_value, q=q_value):
        np.testing.assert_allclose(got["y"], expected, rtol=1e-6)
