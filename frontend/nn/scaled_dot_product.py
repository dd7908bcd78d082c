"""Scaled dot-product attention: by its own operator, or by its weights where those are wanted."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tilegrad._base.errors import DTypeError, ShapeError
from tilegrad.frontend import functions as F
from tilegrad.frontend.apply import as_tensor, several
from tilegrad.frontend.nn.normalisation import dropout
from tilegrad.frontend.recording import fail_line
from tilegrad.frontend.tensor import Tensor


def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """``softmax(query @ key.T * scale + attn_mask) @ value`` over the last two axes; no matrix of weights is kept.

    query [..., m, d], key [..., n, d], value [..., n, e] of one float dtype, leading axes broadcast -> [..., m, e]. ``scale``
    is 1 / sqrt(d) unless given. ``attn_mask`` broadcasts to [..., m, n]: a boolean one says who may be seen, a float one is
    added; a row that sees nothing gives zeros. ``is_causal``: query i sees keys up to i. ``dropout_p`` drops weights always.
    ``enable_gqa``: each head of key and value serves several of query. Raises ShapeError, DTypeError.
    """
    q, k, v = as_tensor(query), as_tensor(key), as_tensor(value)
    mask = None if attn_mask is None else as_tensor(attn_mask)
    _check_attention(q, k, v, mask)
    if enable_gqa:
        if q.ndim < 3 or k.ndim < 3 or v.ndim < 3 or q.shape[-3] % max(k.shape[-3], 1) or k.shape[-3] != v.shape[-3]:
            raise ShapeError(
                fail_line() + "scaled_dot_product_attention, argument 'enable_gqa'",
                f"query {q.shape}, key {k.shape}, value {v.shape}",
                "[..., heads, length, width], query's heads a multiple of key's and value's",
            )
        k, v = (F.repeat(x, q.shape[-3] // x.shape[-3], -3) for x in (k, v))
    scale = 1.0 / math.sqrt(max(q.shape[-1], 1)) if scale is None else float(scale)
    if mask is not None and mask.dtype == "bool":
        mask = F.where(mask, 0.0, -math.inf)
    if dropout_p:
        return dropout(attention_weights(q, k, mask, is_causal, scale), dropout_p, True) @ v
    return attention(q, k, v, mask, is_causal, scale)


def attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, causal: bool, scale: float) -> Tensor:
    """Attention by its own operator: q [..., m, d], k [..., n, d], v [..., n, e], ``bias`` [..., m, n] is added."""
    lead = np.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2], () if bias is None else bias.shape[:-2])
    args = [F.broadcast_to(x, (*lead, *x.shape[-2:])) for x in (q, k, v)]
    if bias is not None:
        args.append(bias.astype(q.dtype).reshape(*(1,) * (len(lead) + 2 - bias.ndim), *bias.shape))
    narrow = q.dtype in ("float16", "bfloat16")
    args = [x.astype("float32") if narrow else x for x in args]
    out = several("attention", *args, attrs=(scale, 0 if causal else None))[0]
    return out.astype(q.dtype) if narrow else out


def attention_weights(q: Tensor, k: Tensor, bias: Tensor | None, causal: bool, scale: float) -> Tensor:
    """The matrix ``softmax(q @ k.T * scale + bias)`` itself, [..., m, n]."""
    scores = q @ k.mT * scale
    if causal:
        scores = F.where(F.positions(q.shape[-2]).reshape(-1, 1) >= F.positions(k.shape[-2]), scores, -math.inf)
    return F.softmax(scores if bias is None else scores + bias, -1)


def _check_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> None:
    what = fail_line() + "scaled_dot_product_attention"
    for name, x in (("query", q), ("key", k), ("value", v)):
        if x.ndim < 2:
            raise ShapeError(f"{what}, argument {name!r}", f"shape {x.shape}", "[..., length, width]")
        if x.dtype != q.dtype or not x.dtype.startswith(("float", "bfloat")):
            raise DTypeError(f"{what}, argument {name!r}", x.dtype, "one float dtype for query, key and value")
    if k.shape[-1] != q.shape[-1] or v.shape[-2] != k.shape[-2]:
        raise ShapeError(
            what,
            f"query {q.shape}, key {k.shape}, value {v.shape}",
            "query and key of one width, key and value of one length",
        )
    if mask is not None:
        if mask.dtype != "bool" and not mask.dtype.startswith(("float", "bfloat")):
            raise DTypeError(f"{what}, argument 'attn_mask'", mask.dtype, "booleans (who may be seen) or floats to add")
        full = (q.shape[-2], k.shape[-2])
        if mask.ndim < 2 or any(m not in (1, f) for m, f in zip(mask.shape[-2:], full, strict=True)):
            raise ShapeError(
                f"{what}, argument 'attn_mask'", f"shape {mask.shape}", f"one that broadcasts to [..., {full[0]}, {full[1]}]"
            )
