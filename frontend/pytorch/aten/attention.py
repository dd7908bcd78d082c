"""Scaled dot-product attention: softmax(q k^T scale + mask) v."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tilegrad.frontend.pytorch.aten.contraction import product
from tilegrad.frontend.pytorch.aten.randomness import dropped
from tilegrad.frontend.pytorch.lowering import Lowering
from tilegrad.frontend.pytorch.table import aten
from tilegrad.relax_ext.vjp.attention import additive, attend, attend_backward
from tilegrad.relax_ext.vjp.values import F, Value


def _repeat_heads(x: Value, heads: int) -> Value:
    """Grouped queries: each key head serves several query heads in a row."""
    have = x.shape[-3]
    if have == heads:
        return x
    lead, tail = x.shape[:-3], x.shape[-2:]
    spread = x.reshape((*lead, have, 1, *tail)).broadcast_to((*lead, have, heads // have, *tail))
    return spread.reshape((*lead, heads, *tail))


def _attention(
    k: Lowering, q: Value, key: Value, v: Value, mask: Value | None, dropout_p: float, causal: bool, scale: float | None
) -> list[Value]:
    """The result and each row's log sum of exponentials (as float32 for half floats)."""
    dtype = q.dtype
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    if q.ndim > 3:
        key, v = _repeat_heads(key, q.shape[-3]), _repeat_heads(v, q.shape[-3])
    q = k.value(q, "float32" if dtype in ("float16", "bfloat16") else dtype)
    key, v = k.value(key, q.dtype), k.value(v, q.dtype)
    if dropout_p == 0:
        out, lse = attend(q, key, v, mask, scale, 0 if causal else None)
        return [k.value(out, dtype), lse]
    # Dropout needs the matrix of weights.
    scores = product(k, q, key.mT) * scale
    if causal:
        allowed = k.constant(np.tril(np.ones((q.shape[-2], key.shape[-2]), bool)))
        scores = F.where(allowed, scores, k.number(-math.inf, q.dtype))
    if mask is not None:
        scores = scores + additive(mask, q.dtype)
    axis = scores.ndim - 1
    blind = F.equal(F.max(scores, [axis], True), -math.inf)  # a row that sees nothing gives zeros, not NaN
    weights = F.softmax(F.where(blind, k.number(0, q.dtype), scores), axis)
    weights = dropped(k, F.where(blind, k.number(0, q.dtype), weights), dropout_p)[0]
    return [k.value(product(k, weights, v), dtype)]


@aten("scaled_dot_product_attention")
def scaled_dot_product_attention(
    k: Lowering, q: Value, key: Value, v: Value, attn_mask: Value | None = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: float | None = None, enable_gqa: bool = False,
) -> Value:  # fmt: skip
    return _attention(k, q, key, v, attn_mask, dropout_p, is_causal, scale)[0]


@aten("_scaled_dot_product_flash_attention_for_cpu")
def flash_attention_for_cpu(
    k: Lowering, q: Value, key: Value, v: Value, dropout_p: float = 0.0, is_causal: bool = False, attn_mask: Value | None = None,
    scale: float | None = None,
) -> list[Any]:  # fmt: skip
    found = _attention(k, q, key, v, attn_mask, dropout_p, is_causal, scale)
    return [*found, *[None] * (2 - len(found))]


@aten("_scaled_dot_product_flash_attention_for_cpu_backward")
def flash_attention_for_cpu_backward(
    k: Lowering, grad_out: Value, q: Value, key: Value, v: Value, out: Value, logsumexp: Value, dropout_p: float, is_causal: bool,
    attn_mask: Value | None = None, scale: float | None = None,
) -> list[Any]:  # fmt: skip
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    wide = k.value(logsumexp, "float64" if q.dtype == "float64" else "float32")
    g, out, query, key, v = (k.value(x, wide.dtype) for x in (grad_out, out, q, key, v))
    delta = (g * out).sum([g.ndim - 1])
    grads = attend_backward(query, key, v, g, wide, delta, attn_mask, scale, 0 if is_causal else None)
    return [k.value(x, q.dtype) for x in grads]
