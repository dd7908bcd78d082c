"""How many kernels twelve small graphs become. A change of these numbers is a change of memory traffic."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tilegrad._base.tvm import relax
from tilegrad.relax_ext import report
from tilegrad.relax_ext.graph import GraphBuilder
from tilegrad.relax_ext.pipeline import lower

op = relax.op
Emit = Callable[[relax.Expr], relax.Var]
Case = Callable[[GraphBuilder, Emit], None]
CASES: dict[str, tuple[int, Case]] = {}


def case(kernels: int) -> Callable[[Case], Case]:
    def add(f: Case) -> Case:
        CASES[f.__name__] = (kernels, f)
        return f

    return add


def f32(value: float) -> relax.Expr:
    return relax.const(value, "float32")


@case(1)
def elementwise_chain(b: GraphBuilder, e: Emit) -> None:
    x = b.input("x", (64, 64), "float32")
    b.output("y", e(op.tanh(e(op.add(e(op.multiply(e(op.exp(x)), x)), f32(1.0))))))


@case(1)
def linear_bias_relu(b: GraphBuilder, e: Emit) -> None:
    x, w, c = b.input("x", (8, 16), "float32"), b.input("w", (4, 16), "float32"), b.input("c", (4,), "float32")
    b.output("y", e(op.nn.relu(e(op.add(e(op.matmul(x, e(op.permute_dims(w)))), c)))))


@case(2)
def matmul_then_softmax(b: GraphBuilder, e: Emit) -> None:
    x, w = b.input("x", (8, 16), "float32"), b.input("w", (16, 4), "float32")
    b.output("y", e(op.nn.softmax(e(op.matmul(x, w)))))


@case(1)
def elementwise_into_sum(b: GraphBuilder, e: Emit) -> None:
    x, y = b.input("x", (64, 64), "float32"), b.input("y", (64, 64), "float32")
    d = e(op.subtract(x, y))
    b.output("loss", e(op.multiply(e(op.sum(e(op.multiply(d, d)))), f32(0.5))))


@case(1)
def two_results_of_one_pass(b: GraphBuilder, e: Emit) -> None:
    x = b.input("x", (64, 64), "float32")
    h = e(op.nn.relu(x))
    b.output("h", h)
    b.output("mask", e(op.greater(h, f32(0.0))))


@case(1)
def transpose_into_elementwise(b: GraphBuilder, e: Emit) -> None:
    x, y = b.input("x", (64, 32), "float32"), b.input("y", (32, 64), "float32")
    b.output("z", e(op.add(e(op.permute_dims(x)), y)))


@case(1)
def sgd_in_the_gradient(b: GraphBuilder, e: Emit) -> None:
    x, g, w = b.input("x", (8, 5), "float32"), b.input("g", (8, 3), "float32"), b.input("w", (5, 3), "float32", "state")
    v, lr = b.input("v", (5, 3), "float32", "state"), b.input("lr", (), "float32", "hyper")
    v2 = e(op.add(e(op.multiply(v, f32(0.9))), e(op.matmul(e(op.permute_dims(x)), g))))
    b.output("v2", v2, updates="v")
    b.output("w2", e(op.subtract(w, e(op.multiply(lr, v2)))), updates="w")


@case(0)
def reshape_moves_nothing(b: GraphBuilder, e: Emit) -> None:
    x = b.input("x", (4, 4), "float32", "state")
    e(op.reshape(x, (16,)))
    b.output("x2", x, updates="x")


@case(1)
def convolution_bias_relu(b: GraphBuilder, e: Emit) -> None:
    x, w = b.input("x", (1, 3, 8, 8), "float32"), b.input("w", (4, 3, 3, 3), "float32")
    c = b.input("c", (4,), "float32")
    y = e(op.add(e(op.nn.conv2d(x, w, padding=(1, 1))), e(op.reshape(c, (1, 4, 1, 1)))))
    b.output("y", e(op.nn.relu(y)))


@case(2)
def reader_outside_keeps_the_value(b: GraphBuilder, e: Emit) -> None:
    x, w = b.input("x", (8, 8), "float32"), b.input("w", (8, 8), "float32")
    h = e(op.nn.relu(e(op.matmul(x, w))))
    b.output("y", e(op.add(e(op.matmul(h, w)), h)))


@case(3)
def no_cycle_through_a_reduction(b: GraphBuilder, e: Emit) -> None:
    """x - mean(exp(x)): the subtraction may not join exp, whose mean it needs."""
    x = b.input("x", (64, 64), "float32")
    y = e(op.exp(x))
    b.output("keep", y)
    b.output("z", e(op.subtract(y, e(op.mean(y)))))


@case(2)
def constants_cost_nothing(b: GraphBuilder, e: Emit) -> None:
    x, w = b.input("x", (8, 8), "float32"), b.input("w", (8, 8), "float32")
    h = e(op.matmul(x, w))
    g = e(op.where(e(op.greater(h, f32(0.0))), h, e(op.zeros((8, 8), "float32"))))
    b.output("y", e(op.matmul(g, e(op.ones((8, 8), "float32")))))


def test_scalar_constants_are_written_into_their_reader() -> None:
    b = GraphBuilder()
    x = b.input("x", (8, 8), "float32")
    b.output("y", b.emit(op.where(b.emit(op.greater(x, f32(0.0))), x, f32(-1.5))))
    program = lower(b.finish())
    assert len(program.calls) == 1
    assert not [n for n, buffer in program.buffers.items() if buffer.role == "const"]


@pytest.mark.parametrize("name", CASES)
def test_kernel_count(name: str) -> None:
    kernels, build = CASES[name]
    b = GraphBuilder()
    build(b, b.emit)
    graph = b.finish()
    program = lower(graph)
    assert len(program.calls) == kernels, program.text()
    before, after = report.traffic(report.unfused(graph)), report.traffic(program)
    assert after.calls <= before.calls and after.bytes <= before.bytes


def test_memory_report_finds_the_peak() -> None:
    b = GraphBuilder()
    x = b.input("x", (64, 64), "float32")
    for _ in range(4):
        x = b.emit(op.nn.softmax(x))
    b.output("y", x)
    mem = report.memory(lower(b.finish()))
    assert (mem.arena_bytes, mem.lower_bound, mem.overhead) == (2 * 64 * 64 * 4, 2 * 64 * 64 * 4, 1.0)
    assert mem.peak_call in (1, 2)
