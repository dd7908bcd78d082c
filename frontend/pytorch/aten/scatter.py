"""Scattering: the functional forms of writing at indices."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilegrad.frontend.pytorch.aten.indexing import AdvancedIndex, counted_from_start, take
from tilegrad.frontend.pytorch.aten.movement import sliced
from tilegrad.frontend.pytorch.lowering import Cannot, Lowering, Number, axis_of
from tilegrad.frontend.pytorch.table import aten
from tilegrad.relax_ext import ops
from tilegrad.relax_ext.vjp.values import F, Value

_REDUCTION = {"sum": "add", "add": "add", "prod": "mul", "multiply": "mul", "amax": "max", "amin": "min"}


def _scatter(k: Lowering, x: Value, dim: int, index: Value, src: Value, reduction: str) -> Value:
    """``x`` with ``src`` combined at ``index`` along ``dim``; the source may be larger than the index."""
    if x.ndim == 0:
        return _scatter(k, x.reshape((1,)), 0, index.reshape((1,)), src.reshape((1,)), reduction).reshape(())
    if 0 in index.shape:
        return x
    axis = axis_of(dim, x.ndim)
    for a in range(src.ndim):
        src = sliced(k, src, a, 0, index.shape[a])
    if x.dtype in ("bool", "float16", "bfloat16"):
        wide = "uint8" if x.dtype == "bool" else "float32"
        return k.value(_scatter(k, k.value(x, wide), axis, index, k.value(src, wide), reduction), x.dtype)
    return F.scatter_elements(x, index, src, axis, reduction)


@aten("scatter.src", "scatter.value", "scatter.reduce", "scatter.value_reduce")
def scatter(k: Lowering, x: Value, dim: int, index: Value, src: Value | Number, reduce: str | None = None) -> Value:
    values = src if isinstance(src, Value) else k.full(index.shape, src, x.dtype)
    return _scatter(k, x, dim, index, k.value(values, x.dtype), _REDUCTION[reduce] if reduce else "update")


@aten("scatter_add")
def scatter_add(k: Lowering, x: Value, dim: int, index: Value, src: Value) -> Value:
    return _scatter(k, x, dim, index, src, "add")


@aten("scatter_reduce.two")
def scatter_reduce(k: Lowering, x: Value, dim: int, index: Value, src: Value, reduce: str, include_self: bool = True) -> Value:
    if 0 in index.shape:
        return x
    ones = k.full(index.shape, 1, "float32")
    hits = _scatter(k, k.zeros(x.shape, "float32"), dim, index, ones, "add")
    touched = F.greater(hits, 0.0)
    start = x if include_self else F.where(touched, k.number(_identity(reduce, x.dtype), x.dtype), x)
    if reduce == "mean":
        total = _scatter(k, start, dim, index, src, "add")
        count = F.maximum(hits + (1.0 if include_self else 0.0), 1.0)
        if "float" in x.dtype:
            return total / k.value(count, x.dtype)
        return F.floor_divide(total, k.value(count, x.dtype))
    return _scatter(k, start, dim, index, src, _REDUCTION[reduce])


def _identity(reduce: str, dtype: str) -> Number:
    """What leaves every number as it is under the reduction."""
    if reduce in ("sum", "mean"):
        return 0
    if reduce == "prod":
        return 1
    if "float" in dtype:
        return -math.inf if reduce == "amax" else math.inf
    if dtype == "bool":
        return reduce == "amin"
    bits = int(dtype.lstrip("uint")) - (not dtype.startswith("u"))
    low = 0 if dtype.startswith("u") else -(2**bits)
    return low if reduce == "amax" else 2**bits - 1


def _along(k: Lowering, index: Value, shape: Sequence[int], axis: int) -> Value:
    """A vector of positions along an axis, repeated over the others."""
    n = math.prod(index.shape)
    return (
        index.astype("int64")
        .reshape([n if i == axis else 1 for i in range(len(shape))])
        .broadcast_to([n if i == axis else d for i, d in enumerate(shape)])
    )


def scatter_along(k: Lowering, x: Value, axis: int, index: Value, source: Value, reduction: str) -> Value:
    """``x`` with slice j of ``source`` combined into slice ``index[j]`` along ``axis``."""
    return _scatter(k, x, axis, _along(k, index, x.shape, axis), source.reshape(_like(x, index, axis)), reduction)


@aten("index_add")
def index_add(k: Lowering, x: Value, dim: int, index: Value, source: Value, alpha: Number = 1) -> Value:
    if x.ndim == 0:
        return index_add(k, x.reshape((1,)), 0, index.reshape((1,)), source.reshape((1,)), alpha).reshape(())
    if alpha != 1:
        source = source * k.number(alpha, source.dtype)
    return scatter_along(k, x, axis_of(dim, x.ndim), index, source, "add")


def _like(x: Value, index: Value, axis: int) -> list[int]:
    return [math.prod(index.shape) if i == axis else d for i, d in enumerate(x.shape)]


@aten("index_copy")
def index_copy(k: Lowering, x: Value, dim: int, index: Value, source: Value) -> Value:
    if x.ndim == 0:
        return index_copy(k, x.reshape((1,)), 0, index.reshape((1,)), source.reshape((1,))).reshape(())
    return scatter_along(k, x, axis_of(dim, x.ndim), index, source, "update")


@aten("index_fill.int_Scalar", "index_fill.int_Tensor")
def index_fill(k: Lowering, x: Value, dim: int, index: Value, value: Value | Number) -> Value:
    if x.ndim == 0:
        return k.value(value, x.dtype)
    axis = axis_of(dim, x.ndim)
    source = k.value(value, x.dtype).broadcast_to(_like(x, index, axis))
    index = counted_from_start(k, index, x.shape[axis])
    return _scatter(k, x, axis, _along(k, index, x.shape, axis), source, "update")


@aten("index_reduce")
def index_reduce(k: Lowering, x: Value, dim: int, index: Value, source: Value, reduce: str, include_self: bool = True) -> Value:
    if x.ndim == 0:
        return index_reduce(k, x.reshape((1,)), 0, index.reshape((1,)), source.reshape((1,)), reduce, include_self).reshape(())
    axis = axis_of(dim, x.ndim)
    return scatter_reduce(k, x, axis, _along(k, index, x.shape, axis), source, reduce, include_self)


@aten("segment_reduce")
def segment_reduce(
    k: Lowering, x: Value, reduce: str, *, lengths: Value | None = None, indices: Value | None = None,
    offsets: Value | None = None, axis: int = 0, unsafe: bool = False, initial: Number | None = None,
) -> Value:  # fmt: skip
    """Runs of elements along an axis, each combined into one; what lies behind the last run counts nowhere."""
    if lengths is None and offsets is None:
        raise Cannot("segment_reduce by indices")
    axis = axis_of(axis, x.ndim)
    n, segments = x.shape[axis], k.out.shape[axis]
    ends = F.cumsum(lengths, axis) if lengths is not None else sliced(k, offsets, axis, 1, segments + 1)  # type: ignore[arg-type]
    ends = ends.astype("int64").reshape((*ends.shape[:axis], 1, segments))
    passed = F.greater_equal(k.arange(n).reshape((n, 1)), ends)
    run = F.sum(k.value(passed, "int64"), [axis + 1], False)
    if offsets is not None:  # what lies before the first run, too
        first = sliced(k, offsets.astype("int64"), axis, 0, 1)
        run = F.where(F.less(k.arange(n), first), k.number(segments, "int64"), run)
    run = run.reshape((*run.shape, *[1] * (x.ndim - axis - 1))).broadcast_to(x.shape)
    start = initial if initial is not None else 0 if reduce == "mean" else _identity(_SEGMENT.get(reduce, reduce), x.dtype)
    shape = [segments + 1 if a == axis else d for a, d in enumerate(x.shape)]
    total = _scatter(k, k.full(shape, start, x.dtype), axis, run, x, _REDUCTION[_SEGMENT.get(reduce, reduce)])
    if reduce == "mean":
        count = _scatter(k, k.zeros(shape, x.dtype), axis, run, k.full(x.shape, 1, x.dtype), "add")
        empty = k.number(math.nan if initial is None else initial, x.dtype)
        total = F.where(F.greater(count, 0.0), total / F.maximum(count, 1.0), empty)
    return sliced(k, total, axis, 0, segments)


_SEGMENT = {"max": "amax", "min": "amin", "mean": "sum"}


@aten("index_put", "_unsafe_index_put", "_index_put_impl")
def index_put(
    k: Lowering, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False, unsafe: bool = False
) -> Value:
    if len([i for i in indices if i is not None]) == 1:
        axis, mask = next((a, i) for a, i in enumerate(indices) if i is not None)
        if mask.dtype == "bool":
            return _put_where(k, x, axis, mask, k.value(values, x.dtype), accumulate)
    at = AdvancedIndex(k, x.shape, indices)
    shape = [*at.rest_shape[: at.at], *at.index_shape, *at.rest_shape[at.at :]]
    updates = at.from_result(k.value(values, x.dtype).broadcast_to(shape))
    n = math.prod(at.index_shape)
    return _put_rows(k, x, at, at.joined.reshape((n,)), updates.reshape([n, *at.rest_shape]), accumulate)


def _put_where(k: Lowering, x: Value, axis: int, mask: Value, values: Value, accumulate: bool) -> Value:
    """Written wherever the mask is set: one row of values, or as many as there are set places, in their order."""
    before, after = x.shape[:axis], x.shape[axis + mask.ndim :]
    values = values.reshape([1] * (len(before) + 1 + len(after) - values.ndim) + list(values.shape))
    spread = mask.reshape([1] * axis + list(mask.shape) + [1] * len(after))
    if values.shape[axis] == 1:
        rows = values.reshape([*values.shape[:axis], *[1] * mask.ndim, *values.shape[axis + 1 :]])
    else:
        order = F.cumsum(k.value(mask, "int64").reshape((math.prod(mask.shape),)), 0) - 1
        rows = take(k, values, F.maximum(order, 0), axis)
        rows = rows.reshape([*values.shape[:axis], *mask.shape, *values.shape[axis + 1 :]])
    return F.where(spread, x + rows if accumulate else rows, x).broadcast_to(x.shape)


def _put_rows(k: Lowering, x: Value, at: AdvancedIndex, index: Value, updates: Value, accumulate: bool) -> Value:
    rows = at.rows_first(x)
    if accumulate and x.dtype not in ("bool",):
        added = k.call(ops.take_backward, updates, index, x_shape=rows.shape, axis=0, mode="clip")
        return at.restored(rows + added, x.shape)
    wide = "uint8" if x.dtype == "bool" else x.dtype
    put = F.scatter_nd(k.value(rows, wide), index.reshape((*index.shape, 1)), k.value(updates, wide), "update")
    return at.restored(k.value(put, x.dtype), x.shape)


@aten("_unsafe_masked_index_put_accumulate")
def unsafe_masked_index_put_accumulate(
    k: Lowering, x: Value, mask: Value, indices: Sequence[Value | None], values: Value
) -> Value:
    at = AdvancedIndex(k, x.shape, indices)
    shape = [*at.rest_shape[: at.at], *at.index_shape, *at.rest_shape[at.at :]]
    kept = F.where(mask, k.value(values, x.dtype), k.number(0, x.dtype)).broadcast_to(shape)
    n = math.prod(at.index_shape)
    return _put_rows(k, x, at, at.joined.reshape((n,)), at.from_result(kept).reshape([n, *at.rest_shape]), True)


@aten("put")
def put(k: Lowering, x: Value, index: Value, source: Value, accumulate: bool = False) -> Value:
    n, m = math.prod(x.shape), math.prod(index.shape)
    flat = index_put(k, x.reshape((n,)), [index.reshape((m,))], source.reshape((m,)), accumulate)
    return flat.reshape(x.shape)


@aten("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(k: Lowering, x: Value, mask: Value, value: Value | Number) -> Value:
    return F.where(k.value(mask, "bool"), k.value(value, x.dtype), x).broadcast_to(k.out.shape)


@aten("masked_scatter")
def masked_scatter(k: Lowering, x: Value, mask: Value, source: Value) -> Value:
    """The source's elements in order wherever the mask is set: the count of set places before one is its source index."""
    shape = k.out.shape
    mask = k.value(mask, "bool").broadcast_to(shape)
    n = math.prod(shape)
    order = F.cumsum(k.value(mask, "int64").reshape((n,)), 0) - 1
    picked = F.take(source.reshape((math.prod(source.shape),)), F.maximum(order, 0), 0, mode="clip").reshape(shape)
    return F.where(mask, picked, x.broadcast_to(shape))


@aten("diagonal_scatter")
def diagonal_scatter(k: Lowering, x: Value, src: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    from tilegrad.frontend.pytorch.aten.movement import diag_embed

    a, b = axis_of(dim1, x.ndim), axis_of(dim2, x.ndim)
    rows, columns = x.shape[a], x.shape[b]
    n = src.shape[-1]
    size = n + abs(offset)
    embedded = diag_embed(k, src, offset, a, b)
    keep = diag_embed(k, k.full(src.shape, 1, "float32"), offset, a, b)
    for axis, extent in ((a, rows), (b, columns)):
        embedded, keep = (_fitted(k, v, axis, size, extent) for v in (embedded, keep))
    return F.where(F.greater(keep, 0.0), embedded, x)


def _fitted(k: Lowering, x: Value, axis: int, size: int, extent: int) -> Value:
    """Cropped or padded with zeros at the end of an axis."""
    if extent <= size:
        return sliced(k, x, axis, 0, extent)
    widths = [w for i in range(x.ndim) for w in (0, extent - size if i == axis else 0)]
    return F.pad(x, widths, "constant", 0.0)


@aten("as_strided_scatter")
def as_strided_scatter(
    k: Lowering, x: Value, src: Value, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Value:
    import numpy as np

    places = np.full(tuple(size), storage_offset or 0, np.int64)
    for axis, (n, s) in enumerate(zip(size, stride, strict=True)):
        places += (np.arange(n) * s).reshape([-1 if i == axis else 1 for i in range(len(size))])
    total = math.prod(x.shape)
    if places.size and (places.min() < 0 or places.max() >= total):
        raise Cannot("as_strided_scatter beyond the tensor's own elements")
    return put(k, x, k.constant(places), src)
