"""Functions that move data without computing: shapes, joins, slices, gathers."""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tilegrad._base.errors import IndexingError, ShapeError, UsageError
from tilegrad.frontend import dtypes
from tilegrad.frontend.apply import Axes, apply, as_tensor, axes_of, cast, node_of, several, wrap
from tilegrad.frontend.recording import fail_line, limit, record

if TYPE_CHECKING:
    from tilegrad.frontend.tensor import Tensor

Shape = int | Sequence[int]


def _tuple(shape: Shape) -> tuple[int, ...]:
    return (shape,) if isinstance(shape, int) else tuple(int(d) for d in shape)


def reshape(x: Any, shape: Shape) -> Tensor:
    """The elements in another shape; one extent may be -1."""
    node = node_of(x)
    new = _tuple(shape)
    if -1 in new:
        rest = math.prod(d for d in new if d != -1)
        size = math.prod(node.type.shape)
        if new.count(-1) > 1 or rest == 0 or size % rest:
            raise ShapeError(
                fail_line() + "reshape", f"{node.type!r} to {new}", "extents that multiply to the same number of elements"
            )
        new = tuple(size // rest if d == -1 else d for d in new)
    return x if new == node.type.shape and hasattr(x, "_node") else wrap(record("reshape", (node,), (new,)))


def flatten(x: Any, start: int = 0, end: int = -1) -> Tensor:
    """Axes ``start`` to ``end`` joined into one."""
    x = as_tensor(x)
    if not x.ndim:
        return reshape(x, 1)
    (a,), (b,) = axes_of(start, x.ndim, "flatten"), axes_of(end, x.ndim, "flatten")
    return reshape(x, (*x.shape[:a], math.prod(x.shape[a : b + 1]), *x.shape[b + 1 :]))


def squeeze(x: Any, axis: Axes = None) -> Tensor:
    """Without axes of extent 1: all of them, or those named that are."""
    x = as_tensor(x)
    axes = axes_of(axis, x.ndim, "squeeze")
    return reshape(x, [d for i, d in enumerate(x.shape) if d != 1 or i not in axes])


def expand_dims(x: Any, axis: int) -> Tensor:
    """With a new axis of extent 1 at ``axis``."""
    x = as_tensor(x)
    (a,) = axes_of(axis, x.ndim + 1, "expand_dims")
    return reshape(x, (*x.shape[:a], 1, *x.shape[a:]))


def permute(x: Any, axes: Sequence[int]) -> Tensor:
    """Axis ``i`` of the result is axis ``axes[i]`` of ``x``."""
    node = node_of(x)
    rank = len(node.type.shape)
    if len(axes) != rank or sorted(a % rank for a in axes if -rank <= a < rank) != list(range(rank)):
        raise ShapeError(fail_line() + "permute, argument 'axes'", f"{tuple(axes)} for {rank} axes", "every axis exactly once")
    return wrap(record("permute_dims", (node,), (tuple(a % rank for a in axes),)))


def transpose(x: Any, a: int = -2, b: int = -1) -> Tensor:
    """Two axes exchanged (the last two by default)."""
    x = as_tensor(x)
    (a,), (b,) = axes_of(a, x.ndim, "transpose"), axes_of(b, x.ndim, "transpose")
    order = list(range(x.ndim))
    order[a], order[b] = b, a
    return permute(x, order)


def broadcast_to(x: Any, shape: Shape) -> Tensor:
    """Repeated along axes of extent 1 and new leading axes."""
    node = node_of(x)
    new = _tuple(shape)
    return x if new == node.type.shape and hasattr(x, "_node") else wrap(record("broadcast_to", (node,), (new,)))


def expand(x: Any, shape: Shape) -> Tensor:
    """``broadcast_to`` where -1 keeps an extent."""
    x = as_tensor(x)
    new = _tuple(shape)
    lead = len(new) - x.ndim
    return broadcast_to(x, tuple(x.shape[i - lead] if d == -1 and i >= lead else d for i, d in enumerate(new)))


def _joined(tensors: Sequence[Any]) -> list[Any]:
    """Nodes of one dtype."""
    nodes = [node_of(t) for t in tensors]
    if not nodes:
        raise ShapeError(fail_line() + "concat", "no arrays", "at least one")
    dtype = nodes[0].type.dtype
    for n in nodes[1:]:
        ca, cb = dtypes.category(dtype), dtypes.category(n.type.dtype)
        dtype = dtypes.wider(dtype, n.type.dtype) if ca == cb else (dtype if ca > cb else n.type.dtype)
    return [cast(n, dtype) for n in nodes]


def concat(tensors: Sequence[Any], axis: int = 0) -> Tensor:
    """Joined along an existing axis."""
    nodes = _joined(tensors)
    (a,) = axes_of(axis, len(nodes[0].type.shape), "concat")
    return wrap(record("concat", tuple(nodes), (a,)))


def stack(tensors: Sequence[Any], axis: int = 0) -> Tensor:
    """Joined along a new axis."""
    nodes = _joined(tensors)
    (a,) = axes_of(axis, len(nodes[0].type.shape) + 1, "stack")
    return concat([expand_dims(wrap(n), a) for n in nodes], a)


def split(x: Any, size: int | Sequence[int], axis: int = 0) -> list[Tensor]:
    """Pieces of ``size`` along the axis (the last may be smaller), or of the listed sizes."""
    x = as_tensor(x)
    (a,) = axes_of(axis, x.ndim, "split")
    n = x.shape[a]
    if isinstance(size, int):
        if size < 1 and not size == n == 0:
            raise ShapeError(fail_line() + "split, argument 'size'", f"{size} for {n} elements", "at least 1")
        sizes = [builtins.min(size, n - i) for i in range(0, n, size)] if n else [0]
    else:
        sizes = list(size)
    if sum(sizes) != n or not sizes or builtins.min(sizes) < 0:
        raise ShapeError(fail_line() + "split, argument 'size'", f"{size} for {n} elements", f"sizes that add up to {n}")
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [piece(x, a, s, s + d) for s, d in zip(starts, sizes, strict=True)]


def piece(x: Tensor, axis: int, start: int, stop: int, step: int = 1) -> Tensor:
    """``x[..., start:stop:step, ...]`` along one axis."""
    return apply("strided_slice", x, attrs=((axis,), (start,), (stop,), (step,)))


def chunk(x: Any, chunks: int, axis: int = 0) -> list[Tensor]:
    """About equal pieces along the axis."""
    x = as_tensor(x)
    (a,) = axes_of(axis, x.ndim, "chunk")
    if not isinstance(chunks, int) or chunks < 1:
        raise UsageError(fail_line() + "chunk, argument 'chunks'", repr(chunks), "a whole number of at least 1")
    return split(x, -(-x.shape[a] // chunks) if x.shape[a] else [0] * chunks, a)


def flip(x: Any, axis: Axes = None) -> Tensor:
    """Reversed along the axes."""
    x = as_tensor(x)
    for a in axes_of(axis, x.ndim, "flip"):
        x = apply("flip", x, attrs=(a,))
    return x


def roll(x: Any, shift: int, axis: int) -> Tensor:
    """Shifted cyclically along the axis."""
    x = as_tensor(x)
    (a,) = axes_of(axis, x.ndim, "roll")
    n = x.shape[a]
    k = shift % n if n else 0
    return concat([piece(x, a, n - k, n), piece(x, a, 0, n - k)], a) if k else x


def tile(x: Any, repeats: Shape) -> Tensor:
    """Copies side by side along each axis."""
    x, times = as_tensor(x), _tuple(repeats)
    if builtins.min(times, default=0) < 0:
        raise UsageError(fail_line() + "tile, argument 'repeats'", str(repeats), "0 or more")
    return apply("tile", x, attrs=((1,) * (x.ndim - len(times)) + times,))


def repeat(x: Any, repeats: int, axis: int) -> Tensor:
    """Each element ``repeats`` times along the axis."""
    x = as_tensor(x)
    (a,) = axes_of(axis, x.ndim, "repeat")
    return apply("repeat", x, attrs=(repeats, a))


def pad(x: Any, widths: Sequence[tuple[int, int]], value: float = 0.0, mode: str = "constant") -> Tensor:
    """``(before, after)`` elements added per axis: ``value``, or by ``mode`` 'reflect', 'replicate' or 'circular'."""
    x = as_tensor(x)
    if len(widths) != x.ndim or any(w < 0 for pair in widths for w in pair):
        raise ShapeError(
            fail_line() + "pad, argument 'widths'",
            f"{widths} for {x.ndim} axes",
            "a pair (before, after) of at least 0 for every axis",
        )
    if mode not in _PAD_MODES:
        raise UsageError(fail_line() + "pad, argument 'mode'", repr(mode), "one of " + ", ".join(map(repr, _PAD_MODES)))
    most = {"reflect": -1, "circular": 0}.get(mode, math.inf)
    for n, pair in zip(x.shape, widths, strict=True):
        if any(w > builtins.max(n + most, 0) for w in pair) or (mode != "constant" and n == 0 and any(pair)):
            raise ShapeError(fail_line() + f"pad by {mode}, argument 'widths'", f"{pair} for {n} elements", f"at most {n + most}")
    flat = tuple(int(w) for pair in widths for w in pair)
    return apply("pad", x, attrs=(flat, mode, float(value)))


_PAD_MODES = ("constant", "reflect", "replicate", "circular")


def tril(x: Any, diagonal: int = 0) -> Tensor:
    """The lower triangle, zero above the diagonal."""
    _matrices(x, "tril")
    return apply("tril", x, attrs=(diagonal,))


def _matrices(x: Any, op: str) -> None:
    if len(node_of(x).type.shape) < 2:
        raise ShapeError(fail_line() + op, f"shape {node_of(x).type.shape}", "at least two axes")


def triu(x: Any, diagonal: int = 0) -> Tensor:
    """The upper triangle, zero below the diagonal."""
    _matrices(x, "triu")
    return apply("triu", x, attrs=(diagonal,))


def wrapped_index(index: Any, extent: int) -> Tensor:
    """Indices from 0, negative ones counted from the end. Known values are checked: IndexingError outside the range."""
    import numpy as np

    index = as_tensor(index)
    value = index._node.value
    if value is None:
        from tilegrad.frontend.elementwise import where

        limit(index._node, -extent, extent - 1)
        return where(index < 0, index + extent, index)
    if value.size and (value.min() < -extent or value.max() >= extent):
        bad = value[(value < -extent) | (value >= extent)].flat[0]
        raise IndexingError(f"{fail_line()}indexing", f"index {bad}", f"{-extent} to {extent - 1}: {extent} elements")
    return as_tensor(np.where(value < 0, value + extent, value)) if value.size and value.min() < 0 else index


def take(x: Any, index: Any, axis: int = 0) -> Tensor:
    """``x`` at whole-number indices along the axis; negative ones count from the end."""
    x = as_tensor(x)
    (a,) = axes_of(axis, x.ndim, "take")
    index = wrapped_index(index, x.shape[a])
    taken = apply("take", x, index.reshape(-1), attrs=(a,))
    return reshape(taken, (*x.shape[:a], *index.shape, *x.shape[a + 1 :]))


def gather(x: Any, axis: int, index: Any) -> Tensor:
    """``result[i, j, ...] = x[index[i, j, ...], j, ...]`` for axis 0, and so on."""
    x = as_tensor(x)
    (a,) = axes_of(axis, x.ndim, "gather")
    return apply("gather_elements", x, wrapped_index(index, x.shape[a]), attrs=(a,))


def one_hot(index: Any, depth: int, dtype: Any = "int64") -> Tensor:
    """1 at the index, 0 elsewhere, along a new last axis."""
    from tilegrad.frontend.elementwise import astype, equal

    index = as_tensor(index)
    return astype(equal(expand_dims(index, -1), positions(depth, index.dtype)), dtype)


def positions(n: int, dtype: str = "int64") -> Tensor:
    """0 to n - 1, computed where it is used."""
    return apply("arange", attrs=(0, n, 1, dtype))


def outer(a: Any, b: Any) -> Tensor:
    """``a[i] * b[j]`` of two vectors."""
    return reshape(as_tensor(a), (-1, 1)) * reshape(as_tensor(b), (1, -1))


def meshgrid(*axes: Any) -> list[Tensor]:
    """Coordinate arrays with matrix indexing."""
    ts = [as_tensor(a) for a in axes]
    shape = tuple(t.size for t in ts)
    return [broadcast_to(reshape(t, [-1 if j == i else 1 for j in range(len(ts))]), shape) for i, t in enumerate(ts)]


def unbind(x: Any, axis: int = 0) -> list[Tensor]:
    """The slices along an axis, without it."""
    x = as_tensor(x)
    (a,) = axes_of(axis, x.ndim, "unbind")
    return [squeeze(piece(x, a, i, i + 1), a) for i in range(x.shape[a])]


__all__ = [
    "broadcast_to", "chunk", "concat", "expand", "expand_dims", "flatten", "flip", "gather", "meshgrid", "one_hot", "outer",
    "pad", "permute", "positions", "repeat", "reshape", "roll", "several", "split", "squeeze", "stack", "take", "tile",
    "transpose", "tril", "triu", "unbind",
]  # fmt: skip
