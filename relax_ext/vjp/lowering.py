"""Operators that are lowered as compositions of others: their parts then use the kernels that the parts have.

Attention with heads inside becomes attention with heads outside, a transposed convolution the gradient of a
convolution by its image, and a convolution in another layout one in N, C, spatial between transposes, which are folded
into its kernel. Attention of a few queries is products and a softmax.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilegrad._base.tvm import ir, relax
from tilegrad.relax_ext.vjp.attention import few_queries, plain_attention
from tilegrad.relax_ext.vjp.convolution import SPATIAL, Window, relayout
from tilegrad.relax_ext.vjp.table import RULES
from tilegrad.relax_ext.vjp.values import Node, Tape, Value

Composition = Callable[[Node], Value | list[Value]]


class _Emitter:
    """What a Tape needs of a GraphBuilder, around the block builder of a pass."""

    def __init__(self, block_builder: relax.BlockBuilder) -> None:
        self.block_builder = block_builder
        self.bindings: list[tuple[relax.Var, relax.Expr]] = []
        self.where: dict[relax.Var, str] = {}


def lower_by(op: str, compose: Composition, applies: Callable[[ir.Call], bool] = lambda _: True) -> None:
    """Make ``compose`` the legalization of ``op`` where it applies; elsewhere upstream's stays."""
    upstream = ir.Op.get(op).get_attr("FLegalize")

    def legalize(builder: relax.BlockBuilder, call: ir.Call) -> relax.Expr:
        if not applies(call):
            return upstream(builder, call)
        emitter: Any = _Emitter(builder)
        tape = Tape(emitter)
        node = Node(tape, relax.Var("out", call.ty), call)
        result = compose(node)
        if isinstance(result, list):
            tape.flush([v.expr for v in result])
            return relax.Tuple([v.expr for v in result])
        last = tape.pending.pop(result.expr)
        tape.flush([v for v in tape.pending])
        return last

    ir.register_op_attr(op, "FLegalize", legalize, level=12)


def conv_other_layout(n: Node) -> Value:
    """The operator in N, C, spatial between transposes."""
    spatial = SPATIAL[n.x.ndim - 2]
    data, kernel = n.attr("data_layout"), n.attr("kernel_layout")
    y = Window.of(n).forward(relayout(n.x, data, "NC" + spatial), relayout(n.y, kernel, "OI" + spatial))
    return relayout(y, "NC" + spatial, n.attr("out_layout") or data).astype(str(n.call.ty.dtype))


def conv_transpose(n: Node) -> Value:
    """The gradient of a convolution by its image, whose extent is the result's."""
    spatial = SPATIAL[n.x.ndim - 2]
    data, kernel, out = n.attr("data_layout"), n.attr("kernel_layout"), n.attr("out_layout") or n.attr("data_layout")
    image = "NC" + spatial
    shape = tuple(int(n.call.ty.shape[out.index(c)]) for c in image)
    y = Window.of(n).by_data(relayout(n.x, data, image), relayout(n.y, kernel, "IO" + spatial), shape)
    return relayout(y, image, out).astype(str(n.call.ty.dtype))


def _other_layout(call: ir.Call) -> bool:
    spatial = SPATIAL[len(call.ty.shape) - 2]
    a = call.attrs
    plain = (str(a.data_layout), str(a.kernel_layout), str(a.out_layout) or str(a.data_layout)) == (
        "NC" + spatial,
        "OI" + spatial,
        "NC" + spatial,
    )
    return not plain and len(str(a.data_layout)) == len(call.ty.shape)


for _rank in (1, 2, 3):
    lower_by(f"relax.nn.conv{_rank}d", conv_other_layout, _other_layout)
    lower_by(f"relax.nn.conv{_rank}d_transpose", conv_transpose)
for _op in ("relax.nn.attention", "relax.nn.attention_bias"):
    lower_by(_op, RULES[_op].function)
lower_by("tilegrad.attention", plain_attention, few_queries)
lower_by("tilegrad.attention_backward", RULES["tilegrad.attention_backward"].function, few_queries)
