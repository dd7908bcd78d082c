"""Small independent kernels in one call: a clipped step's number of passes, its numbers, and what must stay apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tilegrad as tg
from tests.relax_ext.interpreter import run
from tilegrad._base.tvm import relax
from tilegrad.relax_ext.combine import MAX_TOGETHER
from tilegrad.relax_ext.driver import build_graphs
from tilegrad.relax_ext.graph import GraphBuilder
from tilegrad.relax_ext.pipeline import lower
from tilegrad.runtime.program import Call, Program

op = relax.op


def f32(value: float) -> relax.Expr:
    return relax.const(value, "float32")


def perceptron(lib: Any) -> Any:
    n = lib.nn
    return n.Sequential(n.Linear(12, 40), n.ReLU(), n.Linear(40, 33), n.LayerNorm(33), n.Linear(33, 7))


def clipped(optimizer: str, max_norm: float | None, **options: Any) -> tuple[Any, Any, Any]:
    """(the compiled step, its model, PyTorch's model with the same parameters)."""
    torch.manual_seed(0)
    theirs, ours = perceptron(torch), perceptron(tg)
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        p.assign_(q.detach().numpy())
    x, y = batch(0)
    clip = None if max_norm is None else lambda ps: tg.optim.clip_grad_norm_(ps, max_norm)
    step = tg.compile_step(
        ours, tg.nn.functional.cross_entropy, getattr(tg.optim, optimizer)(ours.parameters(), **options), (x, y),
        logs=[], num_threads=2, before_update=clip,
    )  # fmt: skip
    return step, ours, theirs


def batch(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return 3 * rng.standard_normal((16, 12), dtype=np.float32), rng.integers(0, 7, 16)


def updates(program: Program) -> list[Call]:
    """The calls that write a state."""
    states = {n for n, b in program.buffers.items() if b.role == "state"}
    written = lambda c: {program.buffers[a].view_of or a for a in c.args[-c.num_outputs :]}  # noqa: E731
    return [c for c in program.calls if written(c) & states]


def test_a_clipped_step_has_one_pass_for_the_norm_and_one_for_all_updates() -> None:
    """Beside the step's own kernels: the sums of the gradients' squares, side by side, their total, and the updates."""
    plain = clipped("SGD", None, lr=0.1)[0].build.programs["step"]
    program = clipped("SGD", 1.0, lr=0.1)[0].build.programs["step"]
    (update,) = updates(program)
    assert update.num_outputs == 8, program.text()  # every parameter
    gradients = update.args[: -update.num_outputs]
    readers = [c for c in program.calls if set(c.args[: -c.num_outputs]) & set(gradients) and c is not update]
    squares = max(readers, key=lambda c: c.num_outputs)
    assert squares.num_outputs == 8 and set(squares.args[:8]) <= set(gradients), program.text()
    assert len(program.calls) <= len(plain.calls) + 4, program.text()


OPTIMIZERS = {
    "SGD": dict(lr=0.1, momentum=0.9, nesterov=True),
    "Adam": dict(lr=0.01, weight_decay=0.01),
    "AdamW": dict(lr=0.01, weight_decay=0.1, amsgrad=True),
    "RMSprop": dict(lr=0.003, momentum=0.5, centered=True),
    "Adagrad": dict(lr=0.05, lr_decay=0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_twenty_clipped_steps_are_pytorchs(name: str) -> None:
    step, ours, theirs = clipped(name, 0.5, **OPTIMIZERS[name])
    optimizer = getattr(torch.optim, name)(theirs.parameters(), **OPTIMIZERS[name])
    for seed in range(20):
        x, y = batch(seed)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(theirs(torch.tensor(x)), torch.tensor(y))
        loss.backward()
        assert torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.5) > 0.5
        optimizer.step()
        assert float(step(x, y)) == pytest.approx(loss.item(), rel=2e-4)
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        np.testing.assert_allclose(p.numpy(), q.detach().numpy(), rtol=2e-3, atol=2e-4)


def test_updates_are_combined_and_in_place() -> None:
    """Parameters of many shapes, one learning rate; more than fit one call."""
    b = GraphBuilder()
    lr = b.input("lr", (), "float32", "hyper")
    shapes = [(k + 1, 5 * k + 3) for k in range(MAX_TOGETHER + 3)]
    for k, shape in enumerate(shapes):
        p, g = b.input(f"p{k}", shape, "float32", "state"), b.input(f"g{k}", shape, "float32")
        b.output(f"new{k}", b.emit(op.subtract(p, b.emit(op.multiply(lr, b.emit(op.tanh(g)))))), updates=f"p{k}")
    graph = b.finish()
    program = lower(graph)
    assert [c.num_outputs for c in program.calls] == [MAX_TOGETHER, 3]
    assert all(b.role not in ("temp", "view") for b in program.buffers.values()), program.text()
    rng = np.random.default_rng(0)
    args = {f"{n}{k}": rng.standard_normal(s, dtype=np.float32) for k, s in enumerate(shapes) for n in "pg"}
    args["lr"] = np.array(0.3, np.float32)
    for threads in (1, 2, 3):
        held = {n: a.copy() for n, a in args.items()}
        build_graphs({"f": graph}, logs=[], num_threads=threads).library.context(threads).run("f", held)
        for k in range(len(shapes)):
            want = args[f"p{k}"] - np.float64(0.3) * np.tanh(args[f"g{k}"].astype("float64"))
            np.testing.assert_allclose(held[f"p{k}"], want, rtol=1e-5, atol=1e-6)


def test_what_reads_a_state_stays_apart_from_its_update() -> None:
    """The mean of old values, and numbers made of the old count, beside updates of both."""
    b = GraphBuilder()
    p, q, n = (b.input(name, shape, "float32", "state") for name, shape in (("p", (64,)), ("q", (64,)), ("n", ())))
    g, h = b.input("g", (64,), "float32"), b.input("h", (32,), "float32")
    b.output("p2", b.emit(op.subtract(p, g)), updates="p")
    b.output("q2", b.emit(op.add(b.emit(op.multiply(q, f32(0.9))), b.emit(op.flip(p, 0)))), updates="q")
    b.output("n2", b.emit(op.add(n, f32(1.0))), updates="n")
    b.output("rate", b.emit(op.exp(b.emit(op.negative(n)))))
    b.output("y", b.emit(op.multiply(h, n)))
    graph = b.finish()
    rng = np.random.default_rng(1)
    args = {k: rng.standard_normal(64, dtype=np.float32) for k in "pqg"} | {"n": np.array(2, np.float32)}
    args["h"] = rng.standard_normal(32, dtype=np.float32)
    got = run(lower(graph), args)
    np.testing.assert_allclose(got["p"], args["p"] - args["g"], rtol=1e-6)
    np.testing.assert_allclose(got["q"], 0.9 * args["q"] + args["p"][::-1], rtol=1e-5, atol=1e-6)
    assert (got["n"], got["rate"]) == (3, pytest.approx(np.exp(-2), rel=1e-6))
    np.testing.assert_allclose(got["y"], 2 * args["h"], rtol=1e-6)


def test_kernels_of_a_chain_are_not_combined() -> None:
    """Each reads the one before through a reduction."""
    b = GraphBuilder()
    x = b.input("x", (64,), "float32")
    for _ in range(4):
        x = b.emit(op.divide(x, b.emit(op.sum(x, keepdims=True))))
    b.output("y", x)
    program = lower(b.finish())
    value = np.linspace(1, 2, 64, dtype=np.float32)
    np.testing.assert_allclose(run(program, {"x": value})["y"], value / value.sum(), rtol=1e-5)
