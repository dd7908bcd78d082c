"""Fusion and planning: values against NumPy, kernel counts, in-place updates equal to the out-of-place plan bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from tests.relax_ext.interpreter import run
from tilegrad._base.errors import UnsupportedOperatorError, UsageError
from tilegrad._base.tvm import relax
from tilegrad.relax_ext.graph import Graph, GraphBuilder
from tilegrad.relax_ext.pipeline import lower
from tilegrad.runtime.program import Program

op = relax.op


def const(value: float) -> relax.Expr:
    return relax.const(value, "float32")


def arrays(graph: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = [tuple(int(d) for d in v.ty.shape) for v in graph.main.params]
    return {p.name: np.asarray(rng.standard_normal(s), "float32") for p, s in zip(graph.inputs, shapes, strict=True)}


def mlp_step(b: GraphBuilder, momentum: bool = False) -> None:
    """Two layers, squared error, SGD; backward written by hand."""
    x, y = b.input("x", (16, 20), "float32"), b.input("y", (16, 10), "float32")
    w1, w2 = b.input("w1", (32, 20), "float32", "state"), b.input("w2", (10, 32), "float32", "state")
    b1, lr = b.input("b1", (32,), "float32", "state"), b.input("lr", (), "float32", "hyper")
    e = b.emit
    h = e(op.nn.relu(e(op.add(e(op.matmul(x, e(op.permute_dims(w1)))), b1))))
    d = e(op.subtract(e(op.matmul(h, e(op.permute_dims(w2)))), y))
    g = e(op.multiply(d, const(2 / 160)))
    dh = e(op.matmul(g, w2))
    dz = e(op.where(e(op.greater(h, const(0.0))), dh, e(op.zeros((16, 32), "float32"))))
    grads = {
        "w1": e(op.matmul(e(op.permute_dims(dz)), x)),
        "w2": e(op.matmul(e(op.permute_dims(g)), h)),
        "b1": e(op.sum(dz, axis=0)),
    }
    b.output("loss", e(op.mean(e(op.multiply(d, d)))))
    for name, var in (("w1", w1), ("w2", w2), ("b1", b1)):
        step = grads[name]
        if momentum:
            v = b.input(f"v_{name}", [int(s) for s in var.ty.shape], "float32", "state")
            step = e(op.add(e(op.multiply(v, const(0.9))), grads[name]))
            b.output(f"new_v_{name}", step, updates=f"v_{name}")
        b.output(f"next_{name}", e(op.subtract(var, e(op.multiply(lr, step)))), updates=name)


def mlp_numpy(a: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    a = {k: v.astype("float64") for k, v in a.items()}
    h = np.maximum(a["x"] @ a["w1"].T + a["b1"], 0)
    d = h @ a["w2"].T - a["y"]
    g = d * (2 / 160)
    dz = (g @ a["w2"]) * (h > 0)
    grads = {"w1": dz.T @ a["x"], "w2": g.T @ h, "b1": dz.sum(0)}
    out = {"loss": (d * d).mean()}
    for n, grad in grads.items():
        if f"v_{n}" in a:
            out[f"v_{n}"] = grad = 0.9 * a[f"v_{n}"] + grad
        out[n] = a[n] - a["lr"] * grad
    return out


@pytest.mark.parametrize("momentum", [False, True])
def test_training_step_is_one_kernel_per_contraction_and_right(momentum: bool) -> None:
    b = GraphBuilder()
    mlp_step(b, momentum)
    graph = b.finish()
    program = lower(graph, "step")
    args = arrays(graph)
    got = run(program, args)
    for name, want in mlp_numpy(args).items():
        np.testing.assert_allclose(got[name], want, rtol=2e-5, atol=1e-5, err_msg=name)
    assert len(program.calls) == 7  # 5 contractions with their epilogues, the loss, the bias gradient
    assert not any("copy" in c.kernel or c.kernel.startswith("transpose_") and "matmul" not in c.kernel for c in program.calls)


def out_of_place(graph: Graph) -> Graph:
    """The same graph whose updates are plain outputs."""
    outs = tuple(type(p)(f"out_{p.updates}" if p.updates else p.name) for p in graph.outputs)
    return Graph(graph.module, graph.inputs, outs)


def assert_in_place_equals_out_of_place(graph: Graph, expect_copy: bool | None = None) -> Program:
    """Three steps both ways, bit for bit."""
    inside, outside = lower(graph, "step"), lower(out_of_place(graph), "step")
    args = arrays(graph)
    states = {p.updates for p in graph.outputs if p.updates}
    one, two = dict(args), dict(args)
    for _ in range(3):
        got, want = run(inside, one), run(outside, two)
        for s in states:
            np.testing.assert_array_equal(got[s].view("uint32"), want[f"out_{s}"].view("uint32"), err_msg=s)
        one |= {s: got[s] for s in states}
        two |= {s: want[f"out_{s}"] for s in states}
    if expect_copy is not None:
        assert any(c.kernel.startswith("copy") for c in inside.calls) == expect_copy
    return inside


def test_tied_weights() -> None:
    """W is an encoder and, transposed, a decoder; its gradient is a sum over both uses."""
    b = GraphBuilder()
    x, w = b.input("x", (8, 12), "float32"), b.input("w", (12, 5), "float32", "state")
    e = b.emit
    h = e(op.matmul(x, w))
    d = e(op.subtract(e(op.matmul(h, e(op.permute_dims(w)))), x))
    dh = e(op.matmul(d, w))
    dw = e(op.add(e(op.matmul(e(op.permute_dims(x)), dh)), e(op.matmul(e(op.permute_dims(d)), h))))
    b.output("loss", e(op.sum(e(op.multiply(d, d)))))
    b.output("w_next", e(op.subtract(w, e(op.multiply(dw, const(0.001))))), updates="w")
    assert_in_place_equals_out_of_place(b.finish(), expect_copy=False)


def test_weight_used_after_its_update_would_run() -> None:
    """w' is ready early, but a later kernel reads the old w: the update waits."""
    b = GraphBuilder()
    x, w = b.input("x", (6, 6), "float32"), b.input("w", (6, 6), "float32", "state")
    e = b.emit
    b.output("w_next", e(op.subtract(w, e(op.multiply(w, const(0.1))))), updates="w")
    b.output("y", e(op.nn.softmax(e(op.matmul(e(op.nn.softmax(e(op.matmul(x, w)))), w)))))
    program = assert_in_place_equals_out_of_place(b.finish(), expect_copy=False)
    update = next(i for i, c in enumerate(program.calls) if c.args[-1] == "w")
    assert all(i < update for i, c in enumerate(program.calls) if i != update and "w" in c.args)


def test_update_that_its_own_readers_need_goes_through_scratch() -> None:
    """A reader of the old w needs the new w: no order makes it in-place."""
    b = GraphBuilder()
    x, w = b.input("x", (6, 6), "float32"), b.input("w", (6, 6), "float32", "state")
    e = b.emit
    new = e(op.nn.softmax(w))
    b.output("w_next", new, updates="w")
    b.output("y", e(op.matmul(e(op.matmul(x, new)), w)))
    assert_in_place_equals_out_of_place(b.finish(), expect_copy=True)


def test_transposed_update_goes_through_scratch() -> None:
    b = GraphBuilder()
    w = b.input("w", (7, 7), "float32", "state")
    b.output("w_next", b.emit(op.multiply(b.emit(op.permute_dims(w)), const(0.5))), updates="w")
    assert_in_place_equals_out_of_place(b.finish(), expect_copy=True)


def test_swap_of_two_states() -> None:
    b = GraphBuilder()
    v, w = b.input("v", (5, 3), "float32", "state"), b.input("w", (5, 3), "float32", "state")
    b.output("v_next", w, updates="v")
    b.output("w_next", v, updates="w")
    graph = b.finish()
    args = arrays(graph)
    got = run(lower(graph, "swap"), args)
    np.testing.assert_array_equal(got["v"], args["w"])
    np.testing.assert_array_equal(got["w"], args["v"])


def test_old_value_returned_beside_its_update() -> None:
    b = GraphBuilder()
    w = b.input("w", (5, 3), "float32", "state")
    b.output("w_next", b.emit(op.multiply(w, const(2.0))), updates="w")
    b.output("old", w)
    b.output("old_flat", b.emit(op.reshape(w, (15,))))
    graph = b.finish()
    args = arrays(graph)
    got = run(lower(graph, "f"), args)
    np.testing.assert_array_equal(got["w"], args["w"] * 2)
    np.testing.assert_array_equal(got["old"], args["w"])
    np.testing.assert_array_equal(got["old_flat"], args["w"].ravel())


def test_nesterov_and_global_norm_clipping() -> None:
    b = GraphBuilder()
    x, w = b.input("x", (8, 12), "float32"), b.input("w", (5, 12), "float32", "state")
    v, u = b.input("v", (5, 12), "float32", "state"), b.input("u", (5,), "float32", "state")
    e = b.emit
    y = e(op.add(e(op.matmul(x, e(op.permute_dims(w)))), u))
    dw, du = e(op.matmul(e(op.permute_dims(y)), x)), e(op.sum(y, axis=0))
    norm = e(op.sqrt(e(op.add(e(op.sum(e(op.multiply(dw, dw)))), e(op.sum(e(op.multiply(du, du))))))))
    scale = e(op.minimum(e(op.divide(const(1.0), norm)), const(1.0)))
    dw, du = e(op.multiply(dw, scale)), e(op.multiply(du, scale))
    v_next = e(op.add(e(op.multiply(v, const(0.9))), dw))
    b.output("v_next", v_next, updates="v")
    b.output(
        "w_next", e(op.subtract(w, e(op.multiply(e(op.add(dw, e(op.multiply(v_next, const(0.9))))), const(0.1))))), updates="w"
    )
    b.output("u_next", e(op.subtract(u, e(op.multiply(du, const(0.1))))), updates="u")
    assert_in_place_equals_out_of_place(b.finish(), expect_copy=False)


def test_constants_and_inputs_as_results() -> None:
    b = GraphBuilder()
    x = b.input("x", (4, 4), "float32")
    table = np.arange(16, dtype="float32").reshape(4, 4)
    b.output("same", x)
    b.output("table", relax.const(table))
    b.output("sum", b.emit(op.add(x, relax.const(table))))
    graph = b.finish()
    args = arrays(graph)
    got = run(lower(graph, "f"), args)
    np.testing.assert_array_equal(got["same"], args["x"])
    np.testing.assert_array_equal(got["table"], table)
    np.testing.assert_array_equal(got["sum"], args["x"] + table)


def test_arena_is_reused() -> None:
    """A chain of softmaxes needs two buffers, whatever its length."""
    b = GraphBuilder()
    x = b.input("x", (64, 64), "float32")
    for _ in range(6):
        x = b.emit(op.nn.softmax(x))
    b.output("y", x)
    program = lower(b.finish(), "f")
    assert len(program.calls) == 6
    assert program.arena_bytes == 2 * 64 * 64 * 4


def test_all_unlowered_operators_are_named_at_once() -> None:
    b = GraphBuilder()
    x = b.input("x", (4, 4), "float32")
    b.output("y", b.emit(relax.op.call_pure_packed("my.first", x, ty_args=x.ty)))
    b.output("z", b.emit(relax.op.call_pure_packed("my.second", x, ty_args=x.ty)))
    with pytest.raises(UnsupportedOperatorError, match="call_pure_packed.*2x"):
        lower(b.finish(), "f")


def test_graph_text_round_trip() -> None:
    b = GraphBuilder()
    mlp_step(b, True)
    graph = b.finish()
    assert Graph.loads(graph.dumps()).text() == graph.text()
    with pytest.raises(UsageError, match="not a version-1 .tgraph"):
        Graph.loads("{}")


def test_program_text_names_every_port_and_call() -> None:
    b = GraphBuilder()
    mlp_step(b)
    program = lower(b.finish(), "step")
    text = program.text()
    assert all(f"port %{p}" in text for p in program.ports)
    assert all(c.kernel in text for c in program.calls)


def test_reader_of_an_empty_value_is_not_a_cycle() -> None:
    """The gradient of a linear layer on an empty batch is zero."""
    b = GraphBuilder()
    x, g = b.input("x", (0, 3), "float32"), b.input("g", (0, 2), "float32")
    e = b.emit
    b.output("total", e(op.sum(e(op.add(e(op.concat([x, e(op.exp(x))], axis=1)), const(1.0))))))
    b.output("g2", e(op.multiply(g, const(2.0))))
    graph = b.finish()
    got = run(lower(graph, "f"), {"x": np.zeros((0, 3), "float32"), "g": np.zeros((0, 2), "float32")})
    assert float(got["total"]) == 0.0
