"""Sorting and selecting by order. Ties keep their order, as a stable sort's do."""

from __future__ import annotations

import math

from tilegrad.frontend.pytorch.aten.movement import sliced
from tilegrad.frontend.pytorch.aten.reduction import gather
from tilegrad.frontend.pytorch.lowering import Lowering, Number, axis_of
from tilegrad.frontend.pytorch.table import aten
from tilegrad.relax_ext.vjp.values import F, Value


def order_of(k: Lowering, x: Value, axis: int, descending: bool) -> Value:
    """Stable argsort as int64; NaNs count as the largest."""
    if x.dtype == "bool":
        x = k.value(x, "uint8")
    return F.argsort(x, axis, descending, "int64")


@aten("sort", "sort.stable")
def sort(k: Lowering, x: Value, dim: int = -1, descending: bool = False, stable: bool | None = None) -> list[Value]:
    if x.ndim == 0:
        return [x, k.zeros((), "int64")]
    axis = axis_of(dim, x.ndim)
    order = order_of(k, x, axis, descending)
    return [gather(k, x, order, axis), order]


@aten("argsort", "argsort.stable")
def argsort(k: Lowering, x: Value, dim: int = -1, descending: bool = False, stable: bool | None = None) -> Value:
    return k.zeros((), "int64") if x.ndim == 0 else order_of(k, x, axis_of(dim, x.ndim), descending)


@aten("argsort.stable")
def argsort_stable(k: Lowering, x: Value, *, stable: bool, dim: int = -1, descending: bool = False) -> Value:
    return argsort(k, x, dim, descending)


@aten("topk")
def topk(k: Lowering, x: Value, count: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> list[Value]:
    if x.ndim == 0:
        return [x, k.zeros((), "int64")]
    axis = axis_of(dim, x.ndim)
    order = sliced(k, order_of(k, x, axis, largest), axis, 0, count)
    return [gather(k, x, order, axis), order]


def _ranked(k: Lowering, x: Value, rank: int, axis: int, keepdim: bool) -> list[Value]:
    """The element of a rank in ascending order, and its place."""
    place = sliced(k, order_of(k, x, axis, False), axis, rank, rank + 1)
    values = gather(k, x, place, axis)
    if keepdim:
        return [values, place]
    shape = (*x.shape[:axis], *x.shape[axis + 1 :])
    return [values.reshape(shape), place.reshape(shape)]


@aten("kthvalue")
def kthvalue(k: Lowering, x: Value, rank: int, dim: int = -1, keepdim: bool = False) -> list[Value]:
    return [x, k.zeros((), "int64")] if x.ndim == 0 else _ranked(k, x, rank - 1, axis_of(dim, x.ndim), keepdim)


def _median(k: Lowering, x: Value, axis: int, keepdim: bool) -> list[Value]:
    """The lower middle element; a NaN in the row is the result."""
    value, place = _ranked(k, x, (x.shape[axis] - 1) // 2, axis, keepdim)
    if "float" in x.dtype:
        last, last_place = _ranked(k, x, x.shape[axis] - 1, axis, keepdim)
        nan = F.isnan(last)
        first = F.argmax(k.value(F.isnan(x), "int32"), axis, keepdim).astype("int64")
        value, place = F.where(nan, last, value), F.where(nan, first, place)
    return [value, place]


@aten("median.dim")
def median_dim(k: Lowering, x: Value, dim: int = -1, keepdim: bool = False) -> list[Value]:
    return [x, k.zeros((), "int64")] if x.ndim == 0 else _median(k, x, axis_of(dim, x.ndim), keepdim)


@aten("median")
def median(k: Lowering, x: Value) -> Value:
    return x if x.ndim == 0 else _median(k, x.reshape((math.prod(x.shape),)), 0, False)[0]


@aten("nanmedian")
def nanmedian(k: Lowering, x: Value) -> Value:
    return x if x.ndim == 0 else _nanmedian(k, x.reshape((math.prod(x.shape),)), 0, False)[0]


@aten("nanmedian.dim")
def nanmedian_dim(k: Lowering, x: Value, dim: int = -1, keepdim: bool = False) -> list[Value]:
    return [x, k.zeros((), "int64")] if x.ndim == 0 else _nanmedian(k, x, axis_of(dim, x.ndim), keepdim)


def _nanmedian(k: Lowering, x: Value, axis: int, keepdim: bool) -> list[Value]:
    """The lower middle of the numbers: NaNs are sorted to the end and not counted."""
    if "float" not in x.dtype:
        return _median(k, x, axis, keepdim)
    order = order_of(k, x, axis, False)
    numbers = F.sum(k.value(F.logical_not(F.isnan(x)), "int64"), [axis], True)
    middle = F.maximum(F.floor_divide(numbers - 1, 2), 0)
    place = F.gather_elements(order, middle, axis)
    values = gather(k, x, place, axis)
    shape = values.shape if keepdim else (*x.shape[:axis], *x.shape[axis + 1 :])
    return [values.reshape(shape), place.reshape(shape)]


@aten("mode")
def mode(k: Lowering, x: Value, dim: int = -1, keepdim: bool = False) -> list[Value]:
    """The most frequent value, the smallest of several, and its last place. By comparison of every pair of places."""
    if x.ndim == 0:
        return [x, k.zeros((), "int64")]
    axis = axis_of(dim, x.ndim)
    y = k.value(x, "uint8") if x.dtype == "bool" else k.wide(x) if "float" in x.dtype else x
    one, other = (y.reshape((*y.shape[:a], 1, *y.shape[a:])) for a in (axis + 1, axis))
    count = F.sum(k.value(F.equal(one, other), "int64"), [axis + 1], False)
    often = F.equal(count, F.max(count, [axis], True))
    least = F.min(F.where(often, y, F.max(y, [axis], True)), [axis], True)
    position = k.arange(x.shape[axis]).reshape([-1 if a == axis else 1 for a in range(x.ndim)])
    place = F.maximum(F.max(F.where(F.equal(y, least), position, k.number(-1, "int64")), [axis], True), 0)
    values = gather(k, x, place, axis)
    shape = values.shape if keepdim else (*x.shape[:axis], *x.shape[axis + 1 :])
    return [values.reshape(shape), place.reshape(shape)]


def _running(name: str, better: str) -> None:
    @aten(name)
    def rule(k: Lowering, x: Value, dim: int) -> list[Value]:
        """The last place of the running extreme; a NaN stays once met. By comparison of every pair of places."""
        if x.ndim == 0:
            return [x, k.zeros((), "int64")]
        axis = axis_of(dim, x.ndim)
        n = x.shape[axis]
        y = k.value(x, "uint8") if x.dtype == "bool" else x
        if "float" in y.dtype:
            y = F.where(F.isnan(y), k.number(math.inf if better == "max" else -math.inf, y.dtype), y)
        place = _running_place(k, x, y, axis, n, better)
        return [gather(k, x, place, axis), place]


def _running_place(k: Lowering, x: Value, y: Value, axis: int, n: int, better: str) -> Value:
    import numpy as np

    last = y.ndim
    rows = y.reshape((*y.shape[:axis], 1, *y.shape[axis:])).broadcast_to((*y.shape[:axis], n, *y.shape[axis:]))
    shape = [1] * (last + 1)
    shape[axis], shape[axis + 1] = n, n
    seen = k.constant(np.tril(np.ones((n, n), bool)).reshape(shape))
    first = y.reshape((*y.shape[:axis], 1, *y.shape[axis:]))
    # What is not yet seen stands in as the first element, which is always seen.
    start = sliced(k, first, axis + 1, 0, 1)
    window = F.where(seen, rows, start)
    best = getattr(F, better)(window, [axis + 1], True)
    position = k.constant(np.arange(n).reshape([-1 if i == axis + 1 else 1 for i in range(last + 1)]))
    hit = F.logical_and(seen, F.equal(window, best))
    return F.max(F.where(hit, position, k.number(-1, "int64")), [axis + 1], False)


_running("cummax", "max")
_running("cummin", "min")


@aten("searchsorted.Tensor", "searchsorted.Scalar")
def searchsorted(
    k: Lowering, sequence: Value, x: Value | Number, *, out_int32: bool = False, right: bool = False, side: str | None = None,
    sorter: Value | None = None,
) -> Value:  # fmt: skip
    """How many elements of each row come before x; NaN comes after all numbers."""
    axis = sequence.ndim - 1
    if sorter is not None:
        sequence = gather(k, sequence, sorter, axis)
    dtype = k.promoted(sequence, x)
    rows, values = k.value(sequence, dtype), k.value(x, dtype)
    inner = values.shape[-1:] if sequence.ndim > 1 else values.shape  # a row of its own for each row of values
    lead = rows.shape[:-1]
    rows = rows.reshape((*lead, *(1 for _ in inner), rows.shape[-1]))
    values = values.reshape((*lead, *inner, 1))
    later = F.greater(rows, values) if right or side == "right" else F.greater_equal(rows, values)
    before = F.where(later, k.number(0, "int64"), k.number(1, "int64"))
    return k.narrow(F.sum(before, [before.ndim - 1], False))


@aten("bucketize.Tensor", "bucketize.Scalar")
def bucketize(k: Lowering, x: Value | Number, boundaries: Value, *, out_int32: bool = False, right: bool = False) -> Value:
    return searchsorted(k, boundaries, x, right=right)
