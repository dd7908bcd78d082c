"""Histograms: each element's bin, then ones (or weights) added up at the bins. Elements outside every bin count nowhere."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tilegrad.frontend.pytorch.aten.movement import sliced
from tilegrad.frontend.pytorch.lowering import Lowering, Number
from tilegrad.frontend.pytorch.table import aten
from tilegrad.relax_ext.vjp.values import F, Value


def _outer(k: Lowering, x: Value, low: Number, high: Number, widened: float) -> tuple[Value, Value]:
    """The outermost edges: those given, or the extremes of the data; an empty range grows by ``widened`` on both sides."""
    ends = (k.number(low, x.dtype), k.number(high, x.dtype))
    if low == high:
        ends = (F.min(x, [0], False), F.max(x, [0], False)) if x.shape[0] else ends
        same = F.equal(*ends)
        return F.where(same, ends[0] - widened, ends[0]), F.where(same, ends[1] + widened, ends[1])
    return ends


@aten("histc")
def histc(k: Lowering, x: Value, bins: int = 100, min: Number = 0, max: Number = 0) -> Value:
    wide = k.wide(x.reshape((math.prod(x.shape),)))
    low, high = _outer(k, wide, min, max, 1.0)
    inside = F.logical_and(F.greater_equal(wide, low), F.less_equal(wide, high))
    place = F.where(inside, (wide - low) * float(bins) / (high - low), k.number(0, wide.dtype)).astype("int64")
    place = F.minimum(place, k.number(bins - 1, "int64"))
    return k.narrow(_added_up(k, place, k.value(inside, wide.dtype), bins))


def _added_up(k: Lowering, place: Value, amounts: Value, bins: int) -> Value:
    return F.scatter_elements(k.zeros((bins,), amounts.dtype), place, amounts, 0, "add")


def _even_edges(k: Lowering, x: Value, bins: int, bounds: Sequence[float] | None) -> Value:
    """``bins`` + 1 edges at equal distances, counted from the nearer end as ``torch.linspace`` does."""
    given, until = bounds or (0.0, 0.0)
    low, high = _outer(k, x, given, until, 0.5)
    step = (high - low) / float(bins)
    i = np.arange(bins + 1)
    first = k.constant(i < (bins + 1) // 2)
    up, down = (k.constant(v.astype(x.dtype)) for v in (i, bins - i))
    return F.where(first, low + step * up, high - step * down)


def _histogram(k: Lowering, columns: Sequence[Value], edges: Sequence[Value], weight: Value | None, density: bool) -> Value:
    """Over the bins of every column: each has one on its lower edge, the last also one on its upper edge."""
    joint: Value | None = None
    inside: Value | None = None
    sizes = [e.shape[0] - 1 for e in edges]
    for x, edge, bins in zip(columns, edges, sizes, strict=True):
        below = F.sum(k.value(F.greater_equal(x.reshape((*x.shape, 1)), edge), "int64"), [1], False)
        last = F.max(edge, [0], False)
        here = F.logical_and(F.greater(below, 0), F.less_equal(x, last))
        place = F.minimum(F.maximum(below - 1, 0), k.number(bins - 1, "int64"))
        joint = place if joint is None else joint * bins + place
        inside = here if inside is None else F.logical_and(inside, here)
    assert joint is not None and inside is not None
    dtype = columns[0].dtype
    amounts = k.value(inside, dtype) if weight is None else F.where(inside, k.value(weight, dtype), k.number(0, dtype))
    total = _added_up(k, joint, amounts, math.prod(sizes)).reshape(sizes)
    if density:
        total = total / F.sum(total, list(range(len(sizes))), False)
        for axis, (edge, bins) in enumerate(zip(edges, sizes, strict=True)):
            width = sliced(k, edge, 0, 1, bins + 1) - sliced(k, edge, 0, 0, bins)
            total = total / width.reshape([bins if a == axis else 1 for a in range(len(sizes))])
    return total


def _flat(x: Value) -> Value:
    return x.reshape((math.prod(x.shape),))


@aten("histogram.bin_ct")
def histogram_counts(
    k: Lowering, x: Value, bins: int = 100, *, range: Sequence[float] | None = None, weight: Value | None = None,
    density: bool = False,
) -> list[Value]:  # fmt: skip
    column = _flat(x)
    edges = _even_edges(k, column, bins, range)
    return [_histogram(k, [column], [edges], None if weight is None else _flat(weight), density), edges]


@aten("histogram.bins_tensor")
def histogram_edges(k: Lowering, x: Value, bins: Value, *, weight: Value | None = None, density: bool = False) -> list[Value]:
    edges = _flat(bins)
    return [_histogram(k, [_flat(x)], [edges], None if weight is None else _flat(weight), density), edges * 1.0]


def _columns(k: Lowering, x: Value) -> list[Value]:
    """The coordinates of all points, one value each."""
    n, d = math.prod(x.shape[:-1]), x.shape[-1]
    return [sliced(k, x.reshape((n, d)), 1, i, i + 1).reshape((n,)) for i in range(d)]


def _grid(k: Lowering, x: Value, bins: Sequence[int], bounds: Sequence[float] | None) -> list[Value]:
    pairs = [None] * len(bins) if bounds is None else [bounds[2 * i : 2 * i + 2] for i in range(len(bins))]
    return [_even_edges(k, c, n, pair) for c, n, pair in zip(_columns(k, x), bins, pairs, strict=True)]


@aten("_histogramdd_bin_edges")
def histogramdd_bin_edges(
    k: Lowering, x: Value, bins: Sequence[int], *, range: Sequence[float] | None = None, weight: Value | None = None,
    density: bool = False,
) -> list[Value]:  # fmt: skip
    return _grid(k, x, bins, range)


@aten("_histogramdd_from_bin_cts")
def histogramdd_counts(
    k: Lowering, x: Value, bins: Sequence[int], *, range: Sequence[float] | None = None, weight: Value | None = None,
    density: bool = False,
) -> Value:  # fmt: skip
    return _histogram(k, _columns(k, x), _grid(k, x, bins, range), None if weight is None else _flat(weight), density)


@aten("_histogramdd_from_bin_tensors")
def histogramdd_edges(
    k: Lowering, x: Value, bins: Sequence[Value], *, weight: Value | None = None, density: bool = False
) -> Value:
    return _histogram(k, _columns(k, x), list(bins), None if weight is None else _flat(weight), density)
