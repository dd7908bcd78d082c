"""Attention on its way down: how many kernels, and what few queries become; values and gradients from PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tilegrad._base.tvm import relax
from tilegrad.relax_ext.driver import build_graphs
from tilegrad.relax_ext.gradient import vjp
from tilegrad.relax_ext.graph import Graph, GraphBuilder
from tilegrad.relax_ext.pipeline import lower
from tilegrad.relax_ext.vjp.attention import attend
from tilegrad.relax_ext.vjp.values import Tape
from tilegrad.schedules.attention.read import in_place, read
from tilegrad.schedules.contraction.pack_blocks import style_of

R = relax.op


def projected(length: int, gradient: bool = False) -> Graph:
    """Attention of 4 heads of width 8 whose operands are parts of one projection, as a transformer has them."""
    b = GraphBuilder()
    x = b.input("x", (2, length, 3, 4, 8), "float32")
    tape = Tape(b)
    parts = [tape.bind(R.strided_slice(x, [2], [p], [p + 1])).permute([0, 2, 3, 1, 4]) for p in range(3)]
    out = attend(*parts, diagonal=0)[0]
    tape.flush([out.expr])
    b.output("out", out.expr)
    if gradient:
        g = b.input("g", out.shape, "float32")
        b.output("dx", vjp(b, [out.expr], [g], [x])[0])
    return b.finish()


def expected(x, g):
    x = torch.tensor(x, requires_grad=True)
    q, k, v = x.permute(2, 0, 3, 1, 4)
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return out[:, None].detach().numpy(), torch.autograd.grad(out, x, torch.tensor(g)[:, 0])[0].numpy()


def test_slices_and_transposes_are_read_in_place():
    assert len(lower(projected(24)).calls) == 1


def test_heads_that_are_split_off_a_row_are_read_in_place():
    b = GraphBuilder()
    x = b.input("x", (2, 24, 96), "float32")
    parts = b.emit(R.split(x, 3, 2))
    tape = Tape(b)
    q, k, v = (tape.bind(relax.TupleGetItem(parts, i)).reshape((2, 24, 4, 8)).permute([0, 2, 1, 3]) for i in range(3))
    out = attend(q, k, v)[0]
    tape.flush([out.expr])
    b.output("out", out.expr)
    program = lower(b.finish())
    assert len(program.calls) == 1
    (func,) = program.kernels.values()
    x = read(func)
    assert all(in_place(side, [*c.m, *c.k]) for c in map(x.product, ("scores", "mix")) for side in [c.a])
    assert style_of(x.product("scores")) == "transpose"


@pytest.mark.parametrize("length", [5, 24])
def test_few_queries_take_plain_operators_and_more_the_kernel(length):
    graph = projected(length, gradient=True)
    build = build_graphs({"main": graph}, logs=[])
    names = {c.template for c in build.choices.values()}
    assert ("attention/1" in names) == (length == 24)
    rng = np.random.default_rng(0)
    shapes = {"x": (2, length, 3, 4, 8), "g": (2, 1, 4, length, 8)}
    feeds = {name: rng.standard_normal(shape).astype("float32") for name, shape in shapes.items()}
    got = build.library.context().run("main", feeds)
    out, dx = expected(feeds["x"], feeds["g"])
    np.testing.assert_allclose(got["out"], out, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got["dx"], dx, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("asked", ["q", "k", "v", "qk", "kv"])
def test_a_fused_backward_kernel_returns_what_is_asked_for(asked):
    """The cast of the bias is fused into the kernel, which drops the results that nobody reads."""
    rng = np.random.default_rng(3)
    shapes = {"q": (1, 2, 67, 5), "k": (1, 2, 131, 5), "v": (1, 2, 131, 3), "g": (1, 2, 67, 3)}
    values = {name: rng.standard_normal(shape) for name, shape in shapes.items()} | {
        "bias": rng.standard_normal((1, 1, 67, 131), dtype=np.float32)
    }
    b = GraphBuilder()
    v = {name: b.input(name, x.shape, str(x.dtype)) for name, x in values.items()}
    tape = Tape(b)
    out = attend(*(tape.bind(v[n]) for n in "qkv"), tape.bind(R.astype(v["bias"], "float64")))[0]
    tape.flush([out.expr])
    for name, gradient in zip(asked, vjp(b, [out.expr], [v["g"]], [v[n] for n in asked]), strict=True):
        b.output(f"d{name}", gradient)
    graph = b.finish()
    t = {name: torch.tensor(x).double().requires_grad_(name in asked) for name, x in values.items()}
    result = torch.nn.functional.scaled_dot_product_attention(t["q"], t["k"], t["v"], attn_mask=t["bias"])
    wanted = torch.autograd.grad(result, [t[n] for n in asked], t["g"])
    for threads in (1, 3):
        got = build_graphs({"main": graph}, logs=[], num_threads=threads).library.context().run("main", values)
        for name, want in zip(asked, wanted, strict=True):
            np.testing.assert_allclose(got[f"d{name}"], want.numpy(), rtol=1e-9, atol=1e-11)
