"""docs/gradients.md is what the table of rules says; what is kept for the backward pass is reported."""

from __future__ import annotations

from pathlib import Path

from tilegrad._base.tvm import relax
from tilegrad.relax_ext.gradient import grad
from tilegrad.relax_ext.graph import GraphBuilder
from tilegrad.relax_ext.pipeline import explain, lower
from tilegrad.relax_ext.region import checkpoint
from tilegrad.relax_ext.saved import report, saved_for_backward
from tilegrad.relax_ext.vjp.documentation import page

R = relax.op


def test_the_page_is_current() -> None:
    path = Path(__file__).parents[2] / "docs" / "gradients.md"
    assert path.read_text() == page(), "run: python -m tilegrad.relax_ext.vjp.documentation > docs/gradients.md"


def deep(layers: int, wrap: bool, depth: int = 2) -> tuple[GraphBuilder, int]:
    """x -> tanh(tanh(x w) w) ... in blocks of ``depth``, its gradient, and the number of forward bindings."""
    b = GraphBuilder()
    x, w = b.input("x", (64, 32), "float32"), b.input("w", (32, 32), "float32")

    def block(h: relax.Var) -> relax.Var:
        for _ in range(depth):
            h = b.emit(R.tanh(R.matmul(h, w)))
        return h

    h = x
    for _ in range(layers):
        h = checkpoint(b, block, h)[0] if wrap else block(h)
    loss = b.emit(R.sum(R.multiply(h, h)))
    start = len(b.bindings)
    for name, g in zip("xw", grad(b, loss, [x, w]), strict=True):
        b.output(f"d{name}", g)
    return b, start


def test_outputs_are_kept_rather_than_inputs() -> None:
    saved = saved_for_backward(*deep(1, wrap=False))
    assert [s.op for s in saved] == ["relax.tanh", "relax.tanh"]  # neither product is kept
    assert sum(s.bytes for s in saved) == 2 * 64 * 32 * 4
    assert "16384  in all" in report(saved)


def test_a_graph_says_what_its_backward_pass_keeps() -> None:
    graph = deep(1, wrap=False)[0].finish()
    assert [(s.op, s.bytes) for s in graph.saved] == [("relax.tanh", 8192)] * 2
    assert all("relax.matmul" in s.readers or "relax.multiply" in s.readers for s in graph.saved)
    assert "16384  in all" in explain(graph)


def test_checkpoint_keeps_only_what_enters_a_region() -> None:
    plain = sum(s.bytes for s in saved_for_backward(*deep(6, wrap=False)))
    wrapped = sum(s.bytes for s in saved_for_backward(*deep(6, wrap=True)))
    assert wrapped <= 0.6 * plain


def test_lowering_does_not_undo_the_recomputation() -> None:
    plain, wrapped = (lower(deep(6, wrap, depth=4)[0].finish()) for wrap in (False, True))
    assert wrapped.arena_bytes <= 0.6 * plain.arena_bytes
    assert len(wrapped.calls) > len(plain.calls)
