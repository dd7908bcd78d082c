"""How many kernels twelve small graphs become. A change of these numbers is a change of memory traffic."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.relax_ext.interpreter import run
from tests.relax_ext.test_lowering import arrays
from tilegrad._base.tvm import relax
from tilegrad.relax_ext import report
from tilegrad.relax_ext.driver import build_graphs
from tilegrad.relax_ext.fuse import MAX_KERNELS
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
def a_reader_of_column_sums_stays_apart(b: GraphBuilder, e: Emit) -> None:
    """The centred rows need the sum over all rows; only the row sums join it."""
    x = b.input("x", (64, 48), "float32")
    b.output("rows", e(op.sum(x, axis=1)))
    b.output("centred", e(op.subtract(x, e(op.multiply(e(op.sum(x, axis=0, keepdims=True)), f32(1 / 64))))))


@case(2)
def constants_cost_nothing(b: GraphBuilder, e: Emit) -> None:
    x, w = b.input("x", (8, 8), "float32"), b.input("w", (8, 8), "float32")
    h = e(op.matmul(x, w))
    g = e(op.where(e(op.greater(h, f32(0.0))), h, e(op.zeros((8, 8), "float32"))))
    b.output("y", e(op.matmul(g, e(op.ones((8, 8), "float32")))))


def softmax_backward(b: GraphBuilder, e: Emit) -> None:
    x, g = b.input("x", (64, 48), "float32"), b.input("g", (64, 48), "float32")
    y = e(op.nn.softmax(x))
    t = e(op.multiply(g, y))
    b.output("y", y)
    b.output("dx", e(op.subtract(t, e(op.multiply(y, e(op.sum(t, axis=-1, keepdims=True)))))))


def layer_norm_backward(b: GraphBuilder, e: Emit) -> None:
    x, g = b.input("x", (64, 48), "float32"), b.input("g", (64, 48), "float32")
    c = e(op.subtract(x, e(op.mean(x, axis=1, keepdims=True))))
    r = e(op.rsqrt(e(op.add(e(op.mean(e(op.multiply(c, c)), axis=1, keepdims=True)), f32(1e-5)))))
    n = e(op.multiply(c, r))
    a, d = e(op.mean(g, axis=1, keepdims=True)), e(op.mean(e(op.multiply(g, n)), axis=1, keepdims=True))
    b.output("dx", e(op.multiply(r, e(op.subtract(e(op.subtract(g, a)), e(op.multiply(n, d)))))))


def layer_norm_parameters(b: GraphBuilder, e: Emit) -> None:
    """dx by rows, dgamma and dbeta beside it, and what follows from dbeta alone."""
    x, g, c = b.input("x", (96, 48), "float32"), b.input("g", (96, 48), "float32"), b.input("c", (48,), "float32")
    m = e(op.mean(g, axis=1, keepdims=True))
    b.output("dx", e(op.multiply(e(op.subtract(g, m)), c)))
    b.output("dgamma", e(op.sum(e(op.multiply(x, e(op.subtract(g, m)))), axis=0)))
    b.output("dbeta", e(op.multiply(e(op.sum(g, axis=0)), f32(0.5))))


def loss_of_rows(b: GraphBuilder, e: Emit) -> None:
    x, t = b.input("x", (64, 48), "float32"), e(op.astype(e(op.abs(b.input("t", (64,), "float32"))), "int64"))
    b.output("loss", e(op.multiply(e(op.nn.nll_loss(e(op.nn.log_softmax(x)), t, reduction="mean")), f32(0.5))))


def channel_sums(b: GraphBuilder, e: Emit) -> None:
    x, g = b.input("x", (4, 16, 6, 6), "float32"), b.input("g", (4, 16, 6, 6), "float32")
    c = e(op.subtract(x, e(op.mean(x, axis=(0, 2, 3), keepdims=True))))
    b.output("dgamma", e(op.sum(e(op.multiply(c, g)), axis=(0, 2, 3))))
    b.output("dbeta", e(op.sum(g, axis=(0, 2, 3))))


def batch_norm_backward(b: GraphBuilder, e: Emit) -> None:
    """What the masked gradient of a convolution is multiplied with is not stored beside it: the sums multiply again."""
    a, w = b.input("a", (4, 8, 6, 6), "float32"), b.input("w", (16, 8, 1, 1), "float32")
    x, gamma = b.input("x", (4, 16, 6, 6), "float32"), b.input("gamma", (16,), "float32")
    g = e(op.where(e(op.greater(x, f32(0.0))), e(op.nn.conv2d(a, w)), f32(0.0)))
    d = e(op.multiply(g, e(op.reshape(gamma, (16, 1, 1)))))
    mean, along = (e(op.mean(v, axis=(0, 2, 3), keepdims=True)) for v in (d, e(op.multiply(d, x))))
    b.output("dx", e(op.subtract(e(op.subtract(d, mean)), e(op.multiply(x, along)))))
    b.output("dgamma", e(op.sum(e(op.multiply(g, x)), axis=(0, 2, 3))))
    b.output("dbeta", e(op.sum(g, axis=(0, 2, 3))))


def other_sums(b: GraphBuilder, e: Emit) -> None:
    """Arithmetic that waited for readers which cannot take it along goes to its producer in the end."""
    a, w = b.input("a", (64, 16), "float32"), b.input("w", (16, 48), "float32")
    p = e(op.matmul(a, w))
    d = e(op.multiply(p, f32(0.5)))
    b.output("total", e(op.sum(p)))
    b.output("halves", e(op.sum(d)))
    b.output("low", e(op.min(d)))


def _softmax_backward(x: np.ndarray, g: np.ndarray) -> dict[str, np.ndarray]:
    y = np.exp(x - x.max(1, keepdims=True))
    y /= y.sum(1, keepdims=True)
    return {"y": y, "dx": y * (g - (g * y).sum(1, keepdims=True))}


def _layer_norm_backward(x: np.ndarray, g: np.ndarray) -> dict[str, np.ndarray]:
    r = 1 / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    n = (x - x.mean(1, keepdims=True)) * r
    return {"dx": r * (g - g.mean(1, keepdims=True) - n * (g * n).mean(1, keepdims=True))}


def _layer_norm_parameters(x: np.ndarray, g: np.ndarray, c: np.ndarray) -> dict[str, np.ndarray]:
    d = g - g.mean(1, keepdims=True)
    return {"dx": d * c, "dgamma": (x * d).sum(0), "dbeta": g.sum(0) / 2}


def _loss_of_rows(x: np.ndarray, t: np.ndarray) -> dict[str, np.ndarray]:
    t = np.abs(t).astype("int64")
    p = x - x.max(1, keepdims=True)
    return {"loss": np.mean(np.log(np.exp(p).sum(1)) - p[np.arange(len(t)), t]) / 2}


def _channel_sums(x: np.ndarray, g: np.ndarray) -> dict[str, np.ndarray]:
    c = x - x.mean((0, 2, 3), keepdims=True)
    return {"dgamma": (c * g).sum((0, 2, 3)), "dbeta": g.sum((0, 2, 3))}


def _batch_norm_backward(a: np.ndarray, w: np.ndarray, x: np.ndarray, gamma: np.ndarray) -> dict[str, np.ndarray]:
    g = np.where(x > 0, np.einsum("nchw,oc->nohw", a, w[:, :, 0, 0]), 0)
    d, over = g * gamma[:, None, None], (0, 2, 3)
    dx = d - d.mean(over, keepdims=True) - x * (d * x).mean(over, keepdims=True)
    return {"dx": dx, "dgamma": (g * x).sum(over), "dbeta": g.sum(over)}


def _other_sums(a: np.ndarray, w: np.ndarray) -> dict[str, np.ndarray]:
    p = a @ w
    return {"total": p.sum(), "halves": (p / 2).sum(), "low": (p / 2).min()}


ROW_CASES: dict[str, tuple[int, Case, Callable[..., dict[str, np.ndarray]]]] = {
    "softmax_backward": (1, softmax_backward, _softmax_backward),
    "layer_norm_backward": (1, layer_norm_backward, _layer_norm_backward),
    "layer_norm_parameters": (1, layer_norm_parameters, _layer_norm_parameters),
    "loss_of_rows": (1, loss_of_rows, _loss_of_rows),
    "channel_sums": (1, channel_sums, _channel_sums),
    "batch_norm_backward": (2, batch_norm_backward, _batch_norm_backward),
    "other_sums": (4, other_sums, _other_sums),
}


@pytest.mark.parametrize("name", ROW_CASES)
def test_reductions_over_the_same_rows_are_one_pass(name: str) -> None:
    kernels, build, reference = ROW_CASES[name]
    b = GraphBuilder()
    build(b, b.emit)
    graph = b.finish()
    program = lower(graph)
    assert len(program.calls) == kernels, program.text()
    args = arrays(graph)
    expected = reference(**{k: v.astype("float64") for k, v in args.items()})
    library = build_graphs({"f": graph}, logs=[]).library
    for got in (run(program, args), library.context().run("f", args)):
        for output, want in expected.items():
            np.testing.assert_allclose(got[output], want, rtol=1e-4, atol=1e-5, err_msg=output)


def test_cheap_products_are_not_stored_for_sums_that_can_multiply() -> None:
    b = GraphBuilder()
    batch_norm_backward(b, b.emit)
    contraction, sums = lower(b.finish()).calls
    assert (contraction.num_outputs, sums.num_outputs) == (1, 3)


def test_chains_are_cut_at_a_length() -> None:
    b = GraphBuilder()
    x = y = b.input("x", (8, 8), "float32")
    for _ in range(100):
        y = b.emit(op.add(b.emit(op.multiply(y, f32(0.5))), x))
    b.output("y", y)
    graph = b.finish()
    assert 200 // MAX_KERNELS <= len(lower(graph).calls) <= 200 // MAX_KERNELS + 2
    value = np.ones((8, 8), "float32")
    got = build_graphs({"f": graph}, logs=[]).library.context().run("f", {"x": value})["y"]
    np.testing.assert_allclose(got, 2 * value, rtol=1e-6)  # the fixed point of y / 2 + x


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
