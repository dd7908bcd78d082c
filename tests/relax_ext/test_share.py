"""Equal calls are one; what a checkpoint computes again is not shared with what it repeats."""

from __future__ import annotations

import numpy as np

import tilegrad as tg
from tests.relax_ext.interpreter import run
from tilegrad._base.tvm import relax
from tilegrad.relax_ext.graph import GraphBuilder
from tilegrad.relax_ext.pipeline import lower

op = relax.op


def test_repeated_products_and_constants_are_computed_once() -> None:
    b = GraphBuilder()
    x, w = b.input("x", (8, 5), "float32"), b.input("w", (5, 5), "float32")

    def half() -> relax.Var:
        return b.emit(op.matmul(b.emit(op.multiply(x, relax.const(0.5, "float32"))), w))

    b.output("y", b.emit(op.matmul(half(), b.emit(op.permute_dims(half())))))
    program = lower(b.finish())
    assert len(program.calls) == 3, program.text()  # x / 2, its product, the product of that with itself
    rng = np.random.default_rng(0)
    args = {"x": rng.standard_normal((8, 5)).astype("float32"), "w": rng.standard_normal((5, 5)).astype("float32")}
    h = args["x"] / 2 @ args["w"]
    np.testing.assert_allclose(run(program, args)["y"], h @ h.T, rtol=1e-5, atol=1e-5)


def test_other_attributes_are_other_calls() -> None:
    b = GraphBuilder()
    x = b.input("x", (64, 64), "float32")
    rows, columns = (b.emit(op.sum(x, axis=[a], keepdims=True)) for a in (1, 0))
    b.output("y", b.emit(op.add(rows, columns)))
    args = {"x": np.random.default_rng(0).standard_normal((64, 64)).astype("float32")}
    expected = args["x"].sum(1, keepdims=True) + args["x"].sum(0, keepdims=True)
    np.testing.assert_allclose(run(lower(b.finish()), args)["y"], expected, rtol=1e-4, atol=1e-4)


def test_what_a_checkpoint_recomputes_is_not_shared() -> None:
    """Exponentials run again in the backward pass of a checkpoint, and only there."""

    def exponentials(again: bool) -> int:
        def inner(x: tg.Tensor) -> tg.Tensor:
            return ((x @ x).exp() @ x).exp()

        def f(x: tg.Tensor) -> tg.Tensor:
            return (tg.checkpoint(inner, x) if again else inner(x)).sum()

        compiled = tg.compile(tg.value_and_grad(f), [np.eye(16, dtype="float32")], logs=[])
        return sum("exp" in c.kernel for c in compiled.programs["run"].calls)

    assert exponentials(True) > exponentials(False)
