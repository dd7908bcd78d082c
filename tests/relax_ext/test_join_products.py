"""Sums of short products: joined where that saves the running total's traffic and costs no copy; the values stay."""

from __future__ import annotations

import numpy as np
import pytest

import tilegrad as tg
from tests.relax_ext.interpreter import run
from tests.relax_ext.test_lowering import arrays
from tilegrad import nn
from tilegrad._base.tvm import relax
from tilegrad.relax_ext import report
from tilegrad.relax_ext.driver import build_graphs
from tilegrad.relax_ext.gradient import grad
from tilegrad.relax_ext.graph import Graph, GraphBuilder
from tilegrad.relax_ext.pipeline import lower
from tilegrad.relax_ext.region import checkpoint
from tilegrad.runtime.program import Program

op = relax.op
STEPS = 5


def products(rows: int, computed: bool = True, more: bool = False) -> Graph:
    """The sum over steps of ``tanh(g).T @ (tanh(h) * 0.5)``, of the arguments as they are, or with a bias added."""
    b = GraphBuilder()
    total = b.input("bias", (48, 32), "float32") if more else None
    for t in range(STEPS):
        g, h = b.input(f"g{t}", (rows, 48), "float32"), b.input(f"h{t}", (rows, 32), "float32")
        if computed:
            g, h = b.emit(op.tanh(g)), b.emit(op.tanh(b.emit(op.multiply(h, relax.const(0.5, "float32")))))
        p = b.emit(op.matmul(b.emit(op.permute_dims(g)), h))
        total = p if total is None else b.emit(op.add(total, p))
    b.output("y", total)
    return b.finish()


def expected(args: dict[str, np.ndarray], computed: bool = True) -> np.ndarray:
    f = {k: v.astype("float64") for k, v in args.items()}
    total = f.get("bias", 0.0)
    for t in range(STEPS):
        g, h = f[f"g{t}"], f[f"h{t}"]
        total = total + (np.tanh(g).T @ np.tanh(h * 0.5) if computed else g.T @ h)
    return total


def contractions(program: Program) -> int:
    return sum("matmul" in c.kernel for c in program.calls)


@pytest.mark.parametrize(
    ("rows", "computed", "more", "count"),
    [(16, True, False, 1), (16, True, True, 1), (256, True, False, STEPS), (16, False, False, STEPS)],
    ids=["joined", "with another term", "long products", "operands that lie elsewhere"],
)
def test_sums_of_short_products_are_one(rows: int, computed: bool, more: bool, count: int) -> None:
    graph = products(rows, computed, more)
    program = lower(graph)
    assert contractions(program) == count, program.text()
    assert not [c for c in program.calls if "concatenate" in c.kernel]
    args = arrays(graph)
    for got in (run(program, args), build_graphs({"f": graph}, logs=[]).library.context().run("f", args)):
        np.testing.assert_allclose(got["y"], expected(args, computed), rtol=1e-4, atol=1e-5)


def test_a_run_of_pieces_is_a_part_of_the_whole() -> None:
    """All values stacked, all but the first and all but the last: one array."""
    b = GraphBuilder()
    parts = [b.emit(op.tanh(b.input(f"x{t}", (16, 32), "float32"))) for t in range(4)]
    whole = b.emit(op.concat([b.emit(op.reshape(p, (1, 16, 32))) for p in parts], 0))
    late, early = b.emit(op.concat(parts[1:], 0)), b.emit(op.concat(parts[:-1], 0))
    b.output("y", b.emit(op.matmul(b.emit(op.permute_dims(late)), early)))
    b.output("z", b.emit(op.sum(whole)))
    graph = b.finish()
    program = lower(graph)
    assert not [c for c in program.calls if "concatenate" in c.kernel], program.text()
    assert program.arena_bytes <= 4 * 16 * 32 * 4 + 64
    args = arrays(graph)
    f = [np.tanh(args[f"x{t}"].astype("float64")) for t in range(4)]
    for got in (run(program, args), build_graphs({"f": graph}, logs=[]).library.context().run("f", args)):
        np.testing.assert_allclose(got["y"], np.concatenate(f[1:]).T @ np.concatenate(f[:-1]), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(got["z"], np.sum(f), rtol=1e-4, atol=1e-4)


def test_what_is_computed_again_to_save_memory_is_not_kept_for_a_join() -> None:
    def gradient(wrap: bool) -> Program:
        b = GraphBuilder()
        h, w = b.input("x", (16, 32), "float32"), b.input("w", (32, 32), "float32")
        for _ in range(4):
            h = b.emit(op.tanh(h))
            step = lambda h: b.emit(op.tanh(b.emit(op.matmul(h, w))))  # noqa: E731
            h = checkpoint(b, step, h)[0] if wrap else step(h)
        b.output("dw", grad(b, b.emit(op.sum(h)), [w])[0])
        return lower(b.finish())

    forward, backward, weights = 4, 3, 4
    assert contractions(gradient(wrap=False)) == forward + backward + 1
    assert contractions(gradient(wrap=True)) > forward + backward + weights


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_a_recurrent_layers_weights_have_one_product_each(kind: str) -> None:
    steps = 6
    tg.manual_seed(0)
    layer = getattr(nn, kind)(16, 32)
    optimizer = tg.optim.SGD(layer.parameters(), lr=0.1)
    x, y = np.zeros((steps, 16, 16), np.float32), np.zeros((steps, 16, 32), np.float32)
    step = tg.compile_step(layer, lambda out, y: ((out[0] - y) ** 2).mean(), optimizer, (x, y), logs=[])
    program = step.programs["step"]
    forward, backward, weights = steps, steps - 1, 2
    first = 2  # of the recurrence: the state before it is no computed value, and the inputs' share of all steps
    assert contractions(program) <= forward + backward + weights + first, program.text()
    assert report.memory(program).overhead <= 1.1
