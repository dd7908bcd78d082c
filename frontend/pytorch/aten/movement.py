"""Views and copies: the same elements in another shape or order, or some of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilegrad.frontend.pytorch.lowering import Cannot, Lowering, Number, axis_of
from tilegrad.frontend.pytorch.table import aten
from tilegrad.relax_ext.vjp.values import F, Value


@aten("view", "_unsafe_view", "reshape", "view_copy", "_reshape_alias", "flatten.using_ints", "unflatten.int", "squeeze",
      "squeeze.dim", "squeeze.dims", "unsqueeze", "squeeze_copy", "squeeze_copy.dim", "squeeze_copy.dims", "unsqueeze_copy",
      "_reshape_copy", "prims::view_of", "prims::squeeze", "prims::collapse_view", "prims::split_dim")  # fmt: skip
def view(k: Lowering, x: Value, *args: Any, **kwargs: Any) -> Value:
    """Every view that keeps the order of elements: PyTorch's inferred shape says the rest."""
    if k.out.dtype != x.dtype:
        raise Cannot(f"reinterpreting the bits of {x.dtype} as {k.out.dtype}")
    return x.reshape(k.out.shape)


@aten("view.dtype", "view_copy.dtype")
def view_dtype(k: Lowering, x: Value, dtype: str) -> Value:
    return view(k, x)


@aten("alias", "clone", "contiguous", "detach", "lift_fresh_copy", "lift_fresh", "alias_copy", "detach_copy", "lift",
      "resolve_conj", "resolve_neg", "conj", "_conj", "_conj_physical", "conj_physical", "real", "positive",
      "prims::clone", "_lazy_clone")  # fmt: skip
def same(k: Lowering, x: Value, *args: Any, **kwargs: Any) -> Value:
    if k.name in ("detach.default", "detach_copy.default"):
        from tilegrad.relax_ext import ops

        return k.call(ops.stop_gradient, x)
    return x


@aten("expand", "expand_copy", "broadcast_to")
def expand(k: Lowering, x: Value, size: Sequence[int], implicit: bool = False) -> Value:
    return x.broadcast_to(k.out.shape)


@aten("prims::broadcast_in_dim")
def broadcast_in_dim(k: Lowering, x: Value, shape: Sequence[int], axes: Sequence[int]) -> Value:
    return x.reshape([x.shape[list(axes).index(d)] if d in axes else 1 for d in range(len(shape))]).broadcast_to(shape)


@aten("permute", "permute_copy", "prims::transpose")
def permute(k: Lowering, x: Value, dims: Sequence[int]) -> Value:
    return x.permute([axis_of(d, x.ndim) for d in dims])


@aten("transpose.int", "transpose_copy.int")
def transpose(k: Lowering, x: Value, dim0: int, dim1: int) -> Value:
    if x.ndim == 0:
        return x
    axes = list(range(x.ndim))
    a, b = axis_of(dim0, x.ndim), axis_of(dim1, x.ndim)
    axes[a], axes[b] = axes[b], axes[a]
    return x.permute(axes)


@aten("t", "t_copy", "numpy_T")
def t(k: Lowering, x: Value) -> Value:
    return x.permute(tuple(reversed(range(x.ndim))))


def sliced(k: Lowering, x: Value, axis: int, start: int, stop: int, step: int = 1) -> Value:
    """``x[start:stop:step]`` along an axis; bounds inside the axis. Bools go by way of uint8."""
    if (start, step) == (0, 1) and stop >= x.shape[axis]:
        return x
    if stop <= start:
        return k.zeros([0 if i == axis else d for i, d in enumerate(x.shape)], x.dtype)
    return F.strided_slice(x, axes=[axis], begin=[start], end=[stop], strides=[step])


def _bounds(start: int | None, end: int | None, n: int) -> tuple[int, int]:
    """Python's slice bounds."""
    first, last, _ = slice(start, end).indices(n)
    return first, max(first, last)


@aten("slice.Tensor", "slice_copy.Tensor")
def slice_(k: Lowering, x: Value, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Value:
    axis = axis_of(dim, x.ndim)
    return sliced(k, x, axis, *_bounds(start, end, x.shape[axis]), step)


@aten("narrow", "narrow_copy")
def narrow(k: Lowering, x: Value, dim: int, start: int, length: int) -> Value:
    axis = axis_of(dim, x.ndim)
    start += x.shape[axis] if start < 0 else 0
    return sliced(k, x, axis, start, start + length)


@aten("select.int", "select_copy.int")
def select(k: Lowering, x: Value, dim: int, index: int) -> Value:
    axis = axis_of(dim, x.ndim)
    index += x.shape[axis] if index < 0 else 0
    return sliced(k, x, axis, index, index + 1).reshape(k.out.shape)


def replaced(k: Lowering, x: Value, part: Value, axis: int, start: int, stop: int, step: int) -> Value:
    """``x`` with ``x[start:stop:step] = part``: by concatenation, or by a constant gather for larger steps."""
    n, count = x.shape[axis], part.shape[axis]
    if count == 0:
        return x
    if step == 1:
        pieces = [sliced(k, x, axis, 0, start)] if start else []
        pieces.append(part)
        if stop < n:
            pieces.append(sliced(k, x, axis, stop, n))
        return joined(k, pieces, axis)
    source = np.arange(n)
    source[start:stop:step] = n + np.arange(count)
    return F.take(joined(k, [x, part], axis), k.constant(source), axis, mode="clip")


@aten("slice_scatter")
def slice_scatter(
    k: Lowering, x: Value, src: Value, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Value:
    axis = axis_of(dim, x.ndim)
    first, last = _bounds(start, end, x.shape[axis])
    shape = list(x.shape)
    shape[axis] = len(range(first, last, step))
    return replaced(k, x, k.value(src, x.dtype).broadcast_to(shape), axis, first, last, step)


@aten("select_scatter")
def select_scatter(k: Lowering, x: Value, src: Value, dim: int, index: int) -> Value:
    axis = axis_of(dim, x.ndim)
    index += x.shape[axis] if index < 0 else 0
    shape = [1 if i == axis else d for i, d in enumerate(x.shape)]
    return replaced(k, x, k.value(src, x.dtype).reshape(shape), axis, index, index + 1, 1)


def joined(k: Lowering, parts: Sequence[Value], axis: int) -> Value:
    """Concatenation of values of one dtype."""
    parts = [p for p in parts if p.shape[axis]] or list(parts[:1])
    return parts[0] if len(parts) == 1 else F.concat(list(parts), axis)


@aten("cat", "concat", "prims::cat")
def cat(k: Lowering, tensors: Sequence[Value], dim: int = 0) -> Value:
    axis = axis_of(dim, len(k.out.shape))
    # PyTorch lets empty vectors be joined with anything.
    parts = [k.value(v, k.out.dtype) for v in tensors if v.shape != (0,) or len(k.out.shape) == 1]
    return joined(k, parts, axis)


@aten("stack")
def stack(k: Lowering, tensors: Sequence[Value], dim: int = 0) -> Value:
    axis = axis_of(dim, len(k.out.shape))
    parts = [k.value(v, k.out.dtype) for v in tensors]
    shape = (*parts[0].shape[:axis], 1, *parts[0].shape[axis:])
    return joined(k, [p.reshape(shape) for p in parts], axis)


def _pieces(k: Lowering, x: Value, axis: int, sizes: Sequence[int]) -> list[Value]:
    starts = np.concatenate([[0], np.cumsum(sizes)]).tolist()
    return [sliced(k, x, axis, a, b) for a, b in zip(starts, starts[1:], strict=False)]


@aten("split.Tensor", "split_copy.Tensor", "unsafe_split.Tensor", "chunk", "unsafe_chunk", "split_with_sizes",
      "split_with_sizes_copy", "unsafe_split_with_sizes", "split.sizes", "tensor_split.sections",
      "tensor_split.indices")  # fmt: skip
def split(k: Lowering, x: Value, how: Any, dim: int = 0) -> list[Value]:
    axis = axis_of(dim, x.ndim)
    return _pieces(k, x, axis, [t.shape[axis] for t in k.types if t is not None])


@aten("unbind.int", "unbind_copy.int")
def unbind(k: Lowering, x: Value, dim: int = 0) -> list[Value]:
    axis = axis_of(dim, x.ndim)
    return [p.reshape(k.out.shape) for p in _pieces(k, x, axis, [1] * x.shape[axis])]


@aten("flip", "prims::rev")
def flip(k: Lowering, x: Value, dims: Sequence[int]) -> Value:
    for d in dims:
        x = F.flip(x, axis_of(d, x.ndim)) if x.ndim else x
    return x


@aten("roll")
def roll(k: Lowering, x: Value, shifts: int | Sequence[int], dims: int | Sequence[int] = ()) -> Value:
    shifts = [shifts] if isinstance(shifts, int) else list(shifts)
    dims = [dims] if isinstance(dims, int) else list(dims)
    if not dims:
        flat = x.reshape((math.prod(x.shape),))
        return _rolled(k, flat, shifts[0], 0).reshape(x.shape)
    for s, d in zip(shifts, dims, strict=True):
        x = _rolled(k, x, s, axis_of(d, x.ndim))
    return x


def _rolled(k: Lowering, x: Value, shift: int, axis: int) -> Value:
    n = x.shape[axis]
    shift %= n
    return joined(k, [sliced(k, x, axis, n - shift, n), sliced(k, x, axis, 0, n - shift)], axis) if shift else x


@aten("repeat")
def repeat(k: Lowering, x: Value, repeats: Sequence[int]) -> Value:
    x = x.reshape((1,) * (len(repeats) - x.ndim) + x.shape)
    # As a broadcast: [r, n] for each axis. Its gradient is a sum, and it fuses like one.
    spread = x.reshape([d for n in x.shape for d in (1, n)])
    return spread.broadcast_to([d for r, n in zip(repeats, x.shape, strict=True) for d in (r, n)]).reshape(k.out.shape)


@aten("constant_pad_nd")
def constant_pad_nd(k: Lowering, x: Value, pad: Sequence[int], value: Number = 0) -> Value:
    """``pad`` counts from the last axis: (before, after) pairs; negative ones crop."""
    widths = [(0, 0)] * x.ndim
    for i in range(len(pad) // 2):
        before, after = pad[2 * i : 2 * i + 2]
        axis = x.ndim - 1 - i
        n = x.shape[axis]
        x = sliced(k, x, axis, max(-before, 0), n - max(-after, 0))
        widths[axis] = (max(before, 0), max(after, 0))
    if all(w == (0, 0) for w in widths):
        return x
    if x.dtype == "bool" or 0 in x.shape or (value != 0 and not math.isfinite(value)):
        return _framed(k, x, widths, value)
    return F.pad(x, [w for before_after in widths for w in before_after], "constant", _exact(value, x.dtype))


def _exact(value: Number, dtype: str) -> Number:
    return float(value) if "float" in dtype else int(value)


def _framed(k: Lowering, x: Value, widths: Sequence[tuple[int, int]], value: Number) -> Value:
    """Padding by concatenation, for what relax's pad cannot take."""
    for axis, (before, after) in enumerate(widths):
        parts = [x]
        for n, at in ((before, 0), (after, len(parts))):
            if n:
                block = k.full([n if i == axis else d for i, d in enumerate(x.shape)], value, x.dtype)
                parts.insert(0 if at == 0 else len(parts), block)
        x = joined(k, parts, axis)
    return x


@aten("diagonal", "diagonal_copy")
def diagonal(k: Lowering, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    a, b = axis_of(dim1, x.ndim), axis_of(dim2, x.ndim)
    rest = [i for i in range(x.ndim) if i not in (a, b)]
    n = k.out.shape[-1]
    rows = np.arange(n) + max(-offset, 0)
    flat = x.permute([*rest, a, b]).reshape([*(x.shape[i] for i in rest), x.shape[a] * x.shape[b]])
    places = rows * x.shape[b] + rows + offset
    return F.take(flat, k.constant(places), flat.ndim - 1, mode="clip")


@aten("diag_embed")
def diag_embed(k: Lowering, x: Value, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Value:
    ndim, n = x.ndim + 1, x.shape[-1]
    a, b = axis_of(dim1, ndim), axis_of(dim2, ndim)
    size = n + abs(offset)
    rows, columns = np.indices((size, size))
    on = k.constant(columns - rows == offset)
    place = np.clip(rows - max(-offset, 0), 0, n - 1)
    spread = F.take(x, k.constant(place), x.ndim - 1, mode="clip")
    result = F.where(on, spread, k.number(0, x.dtype))
    order = [i for i in range(ndim) if i not in (a, b)] + [a, b]
    return result.permute([order.index(i) for i in range(ndim)])


def _triangle(k: Lowering, x: Value, diagonal: int, keep_lower: bool) -> Value:
    rows, columns = np.indices(x.shape[-2:])
    keep = columns - rows <= diagonal if keep_lower else columns - rows >= diagonal
    return F.where(k.constant(keep), x, k.number(0, x.dtype)).broadcast_to(x.shape)


@aten("tril")
def tril(k: Lowering, x: Value, diagonal: int = 0) -> Value:
    return _triangle(k, x, diagonal, True)


@aten("triu")
def triu(k: Lowering, x: Value, diagonal: int = 0) -> Value:
    return _triangle(k, x, diagonal, False)


@aten("unfold", "unfold_copy")
def unfold(k: Lowering, x: Value, dimension: int, size: int, step: int) -> Value:
    if x.ndim == 0:
        return x.reshape(k.out.shape)
    axis = axis_of(dimension, x.ndim)
    starts = np.arange(k.out.shape[axis]) * step
    windows = F.take(x, k.constant(starts[:, None] + np.arange(size)), axis, mode="clip")
    return windows.permute([i for i in range(windows.ndim) if i != axis + 1] + [axis + 1])


@aten("as_strided", "as_strided_copy")
def as_strided(k: Lowering, x: Value, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None) -> Value:
    """Only over contiguous storage that the value covers: places beyond it are not there to read."""
    places = np.full(tuple(size), storage_offset or 0, np.int64)
    for axis, (n, s) in enumerate(zip(size, stride, strict=True)):
        places += (np.arange(n) * s).reshape([-1 if i == axis else 1 for i in range(len(size))])
    total = math.prod(x.shape)
    if places.size and (places.min() < 0 or places.max() >= total):
        raise Cannot("as_strided beyond the tensor's own elements")
    return F.take(x.reshape((total,)), k.constant(places), 0, mode="clip")
