"""Bags of embeddings: rows of a table summed, averaged or maximised by runs of indices."""

from __future__ import annotations

import math
from typing import Any

from tilegrad.frontend.pytorch.aten.indexing import take
from tilegrad.frontend.pytorch.aten.ordering import searchsorted
from tilegrad.frontend.pytorch.aten.scatter import scatter_along
from tilegrad.frontend.pytorch.lowering import Cannot, Lowering
from tilegrad.frontend.pytorch.table import aten
from tilegrad.relax_ext.vjp.values import F, Value

_SUM, _MEAN, _MAX = 0, 1, 2


@aten("_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(
    k: Lowering, weight: Value, indices: Value, offsets: Value, scale_grad_by_freq: bool = False, mode: int = _SUM,
    sparse: bool = False, per_sample_weights: Value | None = None, include_last_offset: bool = False, padding_idx: int = -1,
) -> list[Any]:  # fmt: skip
    """Bag b holds the indices from offsets[b] to offsets[b + 1], those at ``padding_idx`` left out; an empty one gives zeros."""
    if scale_grad_by_freq:
        raise Cannot("embedding_bag with scale_grad_by_freq")
    (n,), (bags, width) = indices.shape, k.out.shape
    bag = searchsorted(k, offsets.astype("int64"), k.arange(n), right=True) - 1
    counts = F.less(bag, bags)
    if padding_idx >= 0:
        counts = F.logical_and(counts, F.not_equal(indices, padding_idx))
    counts = counts.reshape((n, 1))
    rows = take(k, weight, indices, 0)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.reshape((n, 1))
    absent = k.number(-math.inf if mode == _MAX else 0, rows.dtype)
    rows = F.where(counts, rows, absent)
    start = k.full((bags, width), -math.inf if mode == _MAX else 0, rows.dtype)
    bag = F.minimum(bag, bags - 1)
    result = scatter_along(k, start, 0, bag, rows, "max" if mode == _MAX else "add")
    if mode != _SUM:
        size = scatter_along(k, k.zeros((bags, 1), rows.dtype), 0, bag, k.value(counts, rows.dtype), "add")
        if mode == _MEAN:
            result = result / F.maximum(size, 1.0)
        else:
            result = F.where(F.equal(size, 0.0), k.number(0, rows.dtype), result)
    return [result, None, None, None]
