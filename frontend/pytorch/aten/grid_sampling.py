"""``grid_sample`` of volumes; PyTorch takes the one of images apart itself."""

from __future__ import annotations

import math
from itertools import product

from tilegrad.frontend.pytorch.aten.indexing import take
from tilegrad.frontend.pytorch.aten.movement import sliced
from tilegrad.frontend.pytorch.lowering import Cannot, Lowering
from tilegrad.frontend.pytorch.table import aten
from tilegrad.relax_ext.vjp.values import F, Value

_LINEAR, _NEAREST = 0, 1
_ZEROS, _BORDER, _REFLECTION = 0, 1, 2


@aten("grid_sampler_3d")
def grid_sampler_3d(k: Lowering, x: Value, grid: Value, mode: int, padding: int, align_corners: bool) -> Value:
    """x [n, c, depth, height, width] at grid [n, ..., 3] with coordinates (width, height, depth) from -1 to 1."""
    if mode not in (_LINEAR, _NEAREST):
        raise Cannot("grid_sample of volumes by cubic interpolation")
    n, c, *sizes = x.shape
    points = math.prod(grid.shape[1:-1])
    wide, at = k.wide(x), k.wide(grid).reshape((n, points, 3))
    places = []
    for axis, size in enumerate(sizes):
        place = _unnormalised(sliced(k, at, 2, 2 - axis, 3 - axis).reshape((n, points)), size, align_corners)
        places.append(_padded(k, place, size, padding, align_corners))
    rows = wide.permute([0, *range(2, x.ndim), 1]).reshape((n * math.prod(sizes), c))
    if mode == _NEAREST:
        result = _picked(k, rows, [F.round(p) for p in places], sizes, n)
    else:
        corners = [F.floor(p) for p in places]
        result = None
        for offsets in product((0.0, 1.0), repeat=3):
            weight = None
            for p, corner, o in zip(places, corners, offsets, strict=True):
                share = p - corner if o else 1.0 - (p - corner)
                weight = share if weight is None else weight * share
            assert weight is not None
            term = _picked(k, rows, [v + o for v, o in zip(corners, offsets, strict=True)], sizes, n)
            term = term * weight.reshape((n, points, 1))
            result = term if result is None else result + term
    assert result is not None
    return k.narrow(result.permute([0, 2, 1]).reshape(k.out.shape))


def _unnormalised(at: Value, size: int, align_corners: bool) -> Value:
    """-1 and 1 are the centres of the outermost elements, or their outer edges."""
    return (at + 1.0) * (0.5 * (size - 1)) if align_corners else ((at + 1.0) * float(size) - 1.0) * 0.5


def _padded(k: Lowering, at: Value, size: int, padding: int, align_corners: bool) -> Value:
    """A coordinate outside as the one inside whose element stands for it."""
    if padding == _REFLECTION:
        low, span = (0.0, size - 1.0) if align_corners else (-0.5, float(size))
        if span == 0:
            return at * 0.0
        distance = F.abs(at - low)
        flips = F.floor(distance / span)
        extra = distance - flips * span
        odd = F.not_equal(flips - F.floor(flips * 0.5) * 2.0, 0.0)
        at = F.where(odd, span - extra, extra) + low
    if padding in (_BORDER, _REFLECTION):
        at = F.minimum(F.maximum(at, 0.0), float(size - 1))
    return at


def _picked(k: Lowering, rows: Value, places: list[Value], sizes: list[int], n: int) -> Value:
    """[n, points, c]: the elements at whole coordinates, zero outside."""
    index: Value | None = None
    inside: Value | None = None
    for place, size in zip(places, sizes, strict=True):
        here = F.logical_and(F.greater_equal(place, 0.0), F.less_equal(place, float(size - 1)))
        inside = here if inside is None else F.logical_and(inside, here)
        whole = F.where(here, place, place.zeros_like()).astype("int64")
        index = whole if index is None else index * size + whole
    assert index is not None and inside is not None
    image = k.arange(n).reshape((n, 1)) * math.prod(sizes)
    taken = take(k, rows, index + image, 0)
    return F.where(inside.reshape((*inside.shape, 1)), taken, k.number(0, taken.dtype))
