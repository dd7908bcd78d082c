"""Scaled dot-product attention: softmax(q k^T scale + mask) v."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tilegrad.frontend.pytorch.aten.contraction import product
from tilegrad.frontend.pytorch.aten.randomness import dropped
from tilegrad.frontend.pytorch.lowering import Lowering
from tilegrad.frontend.pytorch.table import aten
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
) -> Value:
    dtype = q.dtype
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    if q.ndim > 3:
        key, v = _repeat_heads(key, q.shape[-3]), _repeat_heads(v, q.shape[-3])
    q = k.value(q, "float32" if dtype in ("float16", "bfloat16") else dtype)
    key, v = k.value(key, q.dtype), k.value(v, q.dtype)
    scores = product(k, q, key.mT) * scale
    allowed: Value | None = None
    if causal:
        allowed = k.constant(np.tril(np.ones((q.shape[-2], key.shape[-2]), bool)))
        scores = F.where(allowed, scores, k.number(-math.inf, q.dtype))
    if mask is not None and mask.dtype == "bool":
        allowed = mask
        scores = F.where(mask, scores, k.number(-math.inf, q.dtype))
    elif mask is not None:
        scores = scores + k.value(mask, q.dtype)
    axis = scores.ndim - 1
    if mask is None:
        weights = F.softmax(scores, axis)
    else:
        # A row that sees nothing gives zeros, not NaN.
        blind = F.equal(F.max(scores, [axis], True), -math.inf)
        weights = F.softmax(F.where(blind, k.number(0, q.dtype), scores), axis)
        weights = F.where(blind, k.number(0, q.dtype), weights)
    if dropout_p > 0:
        weights = dropped(k, weights, dropout_p)[0]
    return k.value(product(k, weights, v), dtype)


@aten("scaled_dot_product_attention")
def scaled_dot_product_attention(
    k: Lowering, q: Value, key: Value, v: Value, attn_mask: Value | None = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: float | None = None, enable_gqa: bool = False,
) -> Value:  # fmt: skip
    return _attention(k, q, key, v, attn_mask, dropout_p, is_causal, scale)


@aten("_scaled_dot_product_flash_attention_for_cpu")
def flash_attention_for_cpu(
    k: Lowering, q: Value, key: Value, v: Value, dropout_p: float = 0.0, is_causal: bool = False, attn_mask: Value | None = None,
    scale: float | None = None,
) -> list[Any]:  # fmt: skip
    return [_attention(k, q, key, v, attn_mask, dropout_p, is_causal, scale), None]
