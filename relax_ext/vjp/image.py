"""Rules of resampling images: resize by taps, and sampling at positions that are themselves differentiated."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilegrad._base.errors import UnsupportedOperatorError
from tilegrad._base.tvm import relax
from tilegrad.relax_ext.ops.interpolation import Taps, resize_axes
from tilegrad.relax_ext.vjp.table import composition, vjp_rule
from tilegrad.relax_ext.vjp.values import F, Node, Value


@vjp_rule("tilegrad.interpolate")
def interpolate(n: Node, g: Value):
    """z[o] = sum w[t, o] x[k[t, o]]: the same sum with the table turned round."""
    axis = n.attr("axis")
    return g.tape.bind(Taps.of(n.call).transposed(n.x.shape[axis]).call(g.expr, axis))


@composition("relax.image.resize2d", "relax.image.resize3d")
def resize(n: Node):
    """z = x resized (nearest, linear, cubic): one sum of taps per axis."""
    x = n.x
    for axis, taps in resize_axes(n.call):
        x = x.tape.bind(taps.call(x.expr, axis))
    return x * 1.0 if x.expr.same_as(n.x.expr) else x


@composition("relax.image.affine_grid")
def affine_grid(n: Node):
    """z = theta applied to a regular grid of homogeneous coordinates in [-1, 1]: a product with a constant."""
    shape = [int(d) for d in n.call.args[1].values]
    if n.attr("align_corners"):
        lines = [-1.0 + np.arange(s) * (2.0 - 1e-7) / (s - 1) for s in shape]
    else:
        lines = [(2.0 * np.arange(s) + 1.0) / s - 1.0 for s in shape]
    grid = np.stack([*np.meshgrid(*lines, indexing="ij")[::-1], np.ones(shape)]).reshape(len(shape) + 1, -1)
    points = Value(n.tape, relax.const(grid, n.x.dtype))
    return F.matmul(n.x, points).reshape([n.x.shape[0], len(shape), *shape])


@composition("relax.image.grid_sample")
def grid_sample(n: Node):
    """z = x interpolated linearly (or taken) at grid positions: gathers weighted by distances, differentiated in both."""
    x, grid, nd = n.x, n.y, n.x.ndim - 2
    if n.attr("method") not in ("bilinear", "nearest") or n.attr("padding_mode") == "reflection":
        raise UnsupportedOperatorError(
            "gradient of relax.image.grid_sample",
            f"method '{n.attr('method')}', padding '{n.attr('padding_mode')}'",
            "bilinear or nearest, with zeros or border padding",
        )
    flat = grid.reshape([grid.shape[0], nd, -1])
    positions = [_position(n, flat, d) for d in range(nd)]  # slowest axis first
    corners: list[list[tuple[Value, Value | None]]] = []
    for p in positions:
        if n.attr("method") == "nearest":
            corners.append([(F.round(p), None)])
        else:
            low = F.floor(p)
            corners.append([(low, low + 1.0 - p), (low + 1.0, p - low)])
    total: Any = None
    for choice in np.ndindex(*(len(c) for c in corners)):
        term = _corner(x, [corners[d][k] for d, k in enumerate(choice)])
        total = term if total is None else total + term
    return total.reshape([x.shape[0], x.shape[1], *grid.shape[2:]])


def _position(n: Node, flat: Value, d: int) -> Value:
    """Pixel positions [batch, points] along spatial axis ``d`` (the grid holds the fastest axis first)."""
    nd, size = n.x.ndim - 2, n.x.shape[2 + d]
    g = F.strided_slice(flat, [1], [nd - 1 - d], [nd - d], [1]).reshape([flat.shape[0], flat.shape[2]])
    p = (g + 1.0) * ((size - 1) / 2.0) if n.attr("align_corners") else (g + 1.0) * (size / 2.0) - 0.5
    if n.attr("padding_mode") == "border":
        p = F.minimum(F.maximum(p, 0.0), float(size - 1))
    return p


def _corner(x: Value, picks: list[tuple[Value, Value | None]]) -> Value:
    """x at one corner [batch, channel, points], zero outside, times the corner's weight."""
    sizes = x.shape[2:]
    place: Any = None
    inside: Any = None
    weight: Any = None
    for (p, w), size in zip(picks, sizes, strict=True):
        ok = F.logical_and(p >= 0.0, p <= float(size - 1))
        i = F.minimum(F.maximum(p, 0.0), float(size - 1)).astype("int64")
        place = i if place is None else place * x.tape.constant(size, "int64") + i
        inside = ok if inside is None else F.logical_and(inside, ok)
        weight = w if weight is None else weight if w is None else weight * w
    batch, points = place.shape
    spread = place.reshape([batch, 1, points]).broadcast_to([batch, x.shape[1], points])
    value = F.gather_elements(x.reshape([batch, x.shape[1], -1]), spread, 2)
    value = F.where(inside.reshape([batch, 1, points]), value, 0.0)
    return value if weight is None else value * weight.reshape([batch, 1, points])
