"""Attention's rules: one operator each way. Second order, and a bias's cotangent, by the plain operators of the weights."""

from __future__ import annotations

import math

import numpy as np

from tilegrad._base.tvm import ir, relax
from tilegrad.relax_ext import ops
from tilegrad.relax_ext.vjp.contraction import product
from tilegrad.relax_ext.vjp.table import composition, vjp_rule
from tilegrad.relax_ext.vjp.values import F, Node, Value, fields


def attend(
    q: Value, k: Value, v: Value, bias: Value | None = None, scale: float | None = None, diagonal: int | None = None
) -> list[Value]:
    """[softmax(q k^T scale + bias) v over the last two axes, its rows' log sums], by the operator; leading axes broadcast.

    ``bias`` broadcasts to the scores; a boolean one says who may be seen. ``scale`` is 1 / sqrt(width) unless given;
    ``diagonal``: query i sees key j where j <= i + diagonal. A row that sees nothing gives zeros. 16-bit floats are
    computed in float32.
    """
    dtype = q.dtype
    if dtype in ("float16", "bfloat16"):
        q, k, v = (x.astype("float32") for x in (q, k, v))
    scale = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    lead = np.broadcast_shapes(*(x.shape[:-2] for x in (q, k, v)), () if bias is None else bias.shape[:-2])
    args = [x.broadcast_to((*lead, *x.shape[-2:])) for x in (q, k, v)] + _bias(bias, q.dtype, len(lead))
    out, lse = fields(q.tape.bind(ops.attention(*(x.expr for x in args), scale=scale, diagonal=diagonal)))
    return [out.astype(dtype), lse]


def attend_backward(
    q: Value, k: Value, v: Value, g: Value, lse: Value, delta: Value, bias: Value | None, scale: float, diagonal: int | None
) -> list[Value]:
    """The cotangents of q, k and v (see ``attend``; all leading axes equal), by the operator."""
    args = [q, k, v, g, lse, delta, *_bias(bias, q.dtype, q.ndim - 2)]
    return fields(q.tape.bind(ops.attention_backward(*(x.expr for x in args), scale=scale, diagonal=diagonal)))


def additive(mask: Value, dtype: str) -> Value:
    """A mask as what is added to scores of ``dtype``: a boolean one, who may be seen, as 0 and minus infinity."""
    if mask.dtype == "bool":
        mask = F.where(mask, mask.tape.constant(0.0, dtype), mask.tape.constant(-math.inf, dtype))
    return mask.astype(dtype)


def _bias(bias: Value | None, dtype: str, lead: int) -> list[Value]:
    if bias is None:
        return []
    bias = additive(bias, dtype)
    return [bias.reshape((*(1,) * (lead + 2 - bias.ndim), *bias.shape))]


@composition("relax.nn.attention", "relax.nn.attention_bias")
def nn_attention(n: Node):
    """z = softmax(q k^T scale + bias, causally masked) v, heads in axis 2: by tilegrad.attention."""
    q, k, v = (a.permute([0, 2, 1, 3]) for a in n.args[:3])
    causal, diagonal = n.attr("causal_mask"), None
    if causal is not None:
        diagonal = abs(q.shape[-2] - k.shape[-2]) if causal == "BottomRight" else 0
    return attend(q, k, v, n.args[3] if len(n.args) > 3 else None, n.attr("scale"), diagonal)[0].permute([0, 2, 1, 3])


@vjp_rule("tilegrad.attention")
def attention(n: Node, g: list[Value | None]):
    """z, l = softmax(q k^T s + b) v and its log sums: by tilegrad.attention_backward; b gets p (g v^T - sum g z + gl)."""
    q, k, v, *bias = n.args
    out, lse = n.out
    g_out = out.zeros_like() if g[0] is None else g[0]
    delta = (g_out * out).sum([out.ndim - 1])
    if g[1] is not None:
        delta = delta - g[1]
    scale, diagonal = n.attr("scale"), n.attr("diagonal")
    grads = attend_backward(q, k, v, g_out, lse, delta, bias[0] if bias else None, scale, diagonal)
    if not bias:
        return grads
    return [*grads, _slopes(_weights(q, k, lse, bias[0], scale, diagonal), v, g_out, delta)]


@composition("tilegrad.attention_backward")
def attention_backward(n: Node):
    """p = e^(q k^T s + b - l), t = p (g v^T - d) s as whole matrices: (t k, t^T q, p^T g)."""
    q, k, v, g, lse, delta, *bias = n.args
    scale = n.attr("scale")
    p = _weights(q, k, lse, bias[0] if bias else None, scale, n.attr("diagonal"))
    t = _slopes(p, v, g, delta) * scale
    return [product(t, k), product(t.mT, q), product(p.mT, g)]


FEW_QUERIES = 8
"""Below so many the kernel's vectors, whose lanes are queries, are mostly empty (1 query, 512 keys: 2.2 ms against 0.4)."""


def few_queries(call: ir.Call) -> bool:
    """Whether attention, or its gradient, is better lowered as plain operators."""
    queries, keys = (int(x.ty.shape[-2]) for x in call.args[:2])
    return queries < FEW_QUERIES or keys == 0


def plain_attention(n: Node) -> list[Value]:
    """tilegrad.attention by whole matrices."""
    q, k, v, *bias = n.args
    if k.shape[-2] == 0:
        nothing, rows = (n.tape.constant(x, q.dtype) for x in (0.0, math.inf))
        return [nothing.broadcast_to((*q.shape[:-1], v.shape[-1])), rows.broadcast_to(q.shape[:-1])]
    logits = _logits(q, k, bias[0] if bias else None, n.attr("scale"), n.attr("diagonal"))
    axis = logits.ndim - 1
    high = F.maximum(F.max(logits, [axis], True), float(np.finfo(q.dtype).min))
    e = F.exp(logits - high)
    total = e.sum([axis], keepdims=True)
    blind = total.equals(0.0)
    safe = F.where(blind, 1.0, total)
    lse = F.where(blind, math.inf, high + F.log(safe))
    return [product(e, v) / safe, lse.reshape(lse.shape[:-1])]


def _weights(q: Value, k: Value, lse: Value, bias: Value | None, scale: float, diagonal: int | None) -> Value:
    return F.exp(_logits(q, k, bias, scale, diagonal) - lse.reshape((*lse.shape, 1)))


def _logits(q: Value, k: Value, bias: Value | None, scale: float, diagonal: int | None) -> Value:
    logits = product(q, k.mT) * scale
    if bias is not None:
        logits = logits + bias
    if diagonal is not None:
        seen = np.arange(k.shape[-2]) <= np.arange(q.shape[-2])[:, None] + diagonal
        logits = F.where(Value(q.tape, relax.const(seen)), logits, -math.inf)
    return logits


def _slopes(p: Value, v: Value, g: Value, delta: Value) -> Value:
    """The cotangent of the logits."""
    return p * (product(g, v.mT) - delta.reshape((*delta.shape, 1)))
