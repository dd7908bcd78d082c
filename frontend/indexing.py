"""``x[key]`` and ``x[key] = value`` as NumPy means them: whole numbers, slices, None, ..., boolean and integer arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tilegrad._base.errors import IndexingError, ShapeError
from tilegrad.frontend.apply import apply, as_tensor
from tilegrad.frontend.movement import broadcast_to, expand_dims, flip, permute, reshape, take, wrapped_index
from tilegrad.frontend.recording import fail_line

if TYPE_CHECKING:
    from tilegrad.frontend.tensor import Tensor


def get(x: Tensor, key: Any) -> Tensor:
    """``x[key]``. Boolean masks need their values at recording time, since they decide the shape."""
    items = _items(x, key)
    arrays = [i for i in items if _is_array(i)]
    x, dropped = _basic(x, [slice(None) if _is_array(i) else i for i in items if i is not None])
    # positions of what is left, None included, once whole numbers are gone
    out: list[Any] = []
    axis = 0
    for i in items:
        if i is None:
            out.append(None)
        else:
            if axis not in dropped:
                out.append(i if _is_array(i) else "axis")
            axis += 1
    x = reshape(x, [d for a, d in enumerate(x.shape) if a not in dropped])
    for position, i in enumerate(out):
        if i is None:
            x = expand_dims(x, position)
    places = [p for p, i in enumerate(out) if _is_array(i)]
    return _advanced(x, places, arrays) if arrays else x


def _is_array(i: Any) -> bool:
    return hasattr(i, "_node")


def _items(x: Tensor, key: Any) -> list[Any]:
    """One entry per axis of ``x`` (whole number, slice or index Tensor), plus None for new axes."""
    keys = list(key) if isinstance(key, tuple) else [key]
    items: list[Any] = []
    for k in keys:
        if isinstance(k, (list, np.ndarray)) or (_is_array(k) and (k.ndim or k.dtype == "bool")):
            items += _index_arrays(k)
        elif isinstance(k, (bool, np.bool_)):
            raise _bad(k)
        elif k is None or k is Ellipsis or isinstance(k, slice):
            items.append(k)
        elif hasattr(k, "__index__"):
            items.append(k.__index__() if not _is_array(k) or k._node.value is not None else k)
        else:
            raise _bad(k)
    used = sum(i is not None and i is not Ellipsis for i in items)
    if used > x.ndim or sum(i is Ellipsis for i in items) > 1:
        raise IndexingError(f"{fail_line()}indexing", f"{used} indices", f"at most {x.ndim}, one an axis, and one ...")
    at = next((p for p, i in enumerate(items) if i is Ellipsis), len(items))
    return items[:at] + [slice(None)] * (x.ndim - used) + items[at + 1 :]


def _bad(k: Any) -> IndexingError:
    expected = "whole numbers, slices, None, ... or arrays of whole numbers or booleans"
    return IndexingError(f"{fail_line()}indexing", f"index {k!r}", expected)


def _index_arrays(k: Any) -> list[Tensor]:
    k = as_tensor(np.zeros(np.shape(k), np.int64) if isinstance(k, list) and not np.size(k) else k)
    if k.dtype == "bool":
        return [as_tensor(a) for a in np.nonzero(k.numpy())]
    if k.dtype.startswith("float"):
        raise _bad(k.dtype)
    return [k]


def _basic(x: Tensor, items: list[Any]) -> tuple[Tensor, set[int]]:
    """Apply whole numbers and slices; whole numbers leave an axis of extent 1, whose positions are returned."""
    axes, begin, end, strides = [], [], [], []
    reversed_axes, dropped = [], set()
    for a, i in enumerate(items):
        n = x.shape[a]
        if isinstance(i, int):
            if not -n <= i < n:
                raise IndexingError(f"{fail_line()}indexing, axis {a}", f"index {i}", f"{-n} to {n - 1}: {n} elements")
            lo, hi, step = i % n, i % n + 1, 1
            dropped.add(a)
        else:
            try:
                lo, hi, step = i.indices(n)
            except (TypeError, ValueError) as e:
                expected = "whole numbers or None, and a step other than 0"
                raise IndexingError(f"{fail_line()}indexing, axis {a}", repr(i), expected) from e
            if step < 0:  # the same elements in ascending order, then reversed
                count = len(range(lo, hi, step))
                lo, hi, step = lo + (count - 1) * step, lo + 1, -step
                hi = max(lo, hi)
                if count > 1:
                    reversed_axes.append(a)
                elif not count:
                    lo = hi = 0
            hi = max(lo, hi)
        if (lo, hi, step) != (0, n, 1):
            axes.append(a)
            begin.append(lo)
            end.append(hi)
            strides.append(step)
    if axes:
        x = apply("strided_slice", x, attrs=(tuple(axes), tuple(begin), tuple(end), tuple(strides)))
    return (flip(x, reversed_axes) if reversed_axes else x), dropped


def _advanced(x: Tensor, places: list[int], arrays: list[Tensor]) -> Tensor:
    """Integer arrays at the axes ``places``: they broadcast together and their axes stand where the first one did if the
    indexed axes are neighbours, in front otherwise."""
    if len(arrays) == 1:
        return take(x, arrays[0], places[0])
    index, shape = flat_index(x, places, arrays)
    rest = [a for a in range(x.ndim) if a not in places]
    front = reshape(permute(x, [*places, *rest]), (-1, *[x.shape[a] for a in rest]))
    taken = reshape(take(front, index, 0), (*shape, *[x.shape[a] for a in rest]))
    if places != list(range(places[0], places[0] + len(places))):
        return taken
    k, before = len(shape), places[0]
    order = [*range(k, k + before), *range(k), *range(k + before, taken.ndim)]
    return permute(taken, order)


def flat_index(x: Tensor, places: list[int], arrays: list[Tensor]) -> tuple[Tensor, tuple[int, ...]]:
    """Index arrays at several axes as one index into those axes flattened, and its shape."""
    try:
        shape = np.broadcast_shapes(*[a.shape for a in arrays])
    except ValueError:
        raise ShapeError(
            fail_line() + "index arrays", " and ".join(str(a.shape) for a in arrays), "shapes that broadcast"
        ) from None
    index: Any = 0
    for a, place in zip(arrays, places, strict=True):
        index = index * x.shape[place] + wrapped_index(a, x.shape[place])
    return broadcast_to(index, shape), shape


def put(x: Tensor, key: Any, value: Any) -> Tensor:
    """``x`` with ``value`` at ``key``: a scatter over the flattened array, built from the positions that ``key`` selects."""
    from tilegrad.frontend.elementwise import astype

    positions = get(as_tensor(np.arange(x.size).reshape(x.shape)), key)
    values = broadcast_to(astype(as_tensor(value), x.dtype), positions.shape)
    if not positions.size:
        return x
    flat = apply("scatter_elements", x.reshape(-1), positions.reshape(-1), values.reshape(-1), attrs=(0, "update"))
    return flat.reshape(x.shape)
