"""Rules of detection operators, as compositions: regions of interest by separable interpolation, anchor boxes by arithmetic."""

from __future__ import annotations

import numpy as np

from tilegrad._base.errors import UnsupportedOperatorError
from tilegrad._base.tvm import relax
from tilegrad.relax_ext.vjp.convolution import relayout
from tilegrad.relax_ext.vjp.movement import piece
from tilegrad.relax_ext.vjp.table import composition
from tilegrad.relax_ext.vjp.values import F, Node, Value


def _line(like: Value, numbers: np.ndarray, shape: tuple[int, ...]) -> Value:
    """A constant of the dtype of ``like``."""
    return Value(like.tape, relax.const(np.asarray(numbers, "float64").reshape(shape), like.dtype))


def _column(rois: Value, k: int) -> Value:
    """Column k of [regions, 5] as [regions, 1, 1]."""
    return piece(rois, 1, k, k + 1).reshape([rois.shape[0], 1, 1])


def _images(n: Node, x: Value) -> Value:
    """The image of each region, N, C, H, W."""
    return F.take(x, piece(n.y, 1, 0, 1).reshape([n.y.shape[0]]).astype("int64"), 0, "clip")


@composition("relax.vision.roi_align")
def roi_align(n: Node):
    """z = x at regular points of each region, interpolated linearly, averaged (or the largest) per bin: a product with hat
    functions of the points' rows and one with those of their columns; differentiated in x and in the regions."""
    samples, layout = n.attr("sample_ratio"), n.attr("layout")
    if samples <= 0:
        raise UnsupportedOperatorError(
            "gradient of relax.vision.roi_align", f"sample_ratio {samples}", "a fixed number of samples"
        )
    x = _images(n, relayout(n.x, layout, "NCHW"))
    regions, c, height, width = x.shape
    pooled = n.attr("pooled_size")
    rows = _hats(n, 2, pooled[0], samples, height)
    cols = _hats(n, 1, pooled[1], samples, width)
    lift = [regions, 1]
    values = F.matmul(F.matmul(rows.reshape([*lift, *rows.shape[1:]]), x), cols.mT.reshape([*lift, width, cols.shape[1]]))
    values = values.reshape([regions, c, pooled[0], samples, pooled[1], samples])
    reduce = F.mean if n.attr("mode") == "avg" else F.max
    return relayout(reduce(values, [3, 5], False), "NCHW", layout)


def _hats(n: Node, start_column: int, bins: int, samples: int, size: int) -> Value:
    """[regions, bins * samples, size]: how much of each row (or column) of the image a point takes."""
    scale = n.attr("spatial_scale")
    start, end = _column(n.y, start_column) * scale, _column(n.y, start_column + 2) * scale
    if n.attr("aligned"):
        extent = end - start
    else:
        extent = F.maximum(end - start, 1.0)
    centres = (np.arange(bins)[:, None] + (np.arange(samples)[None, :] + 0.5) / samples) / bins
    at = start + extent * _line(n.y, centres, (1, bins * samples, 1))
    inside = F.logical_and(at >= -1.0, at <= float(size))
    clamped = F.minimum(F.maximum(at, 0.0), float(size - 1))
    hat = F.maximum(1.0 - F.abs(clamped - _line(n.y, np.arange(size), (1, 1, size))), 0.0)
    return F.where(inside, hat, 0.0).astype(n.x.dtype)


@composition("relax.vision.roi_pool")
def roi_pool(n: Node):
    """z = the maximum of x over each bin of each region, rows first, then columns; 0 for empty bins."""
    x = _images(n, n.x)
    regions, c, height, width = x.shape
    pooled = n.attr("pooled_size")
    rows, cols = _bins(n, 2, pooled[0], height), _bins(n, 1, pooled[1], width)
    tall = x.reshape([regions, c, 1, height, width])
    tall = F.max(F.where(rows.reshape([regions, 1, pooled[0], height, 1]), tall, -np.inf), [3], False)
    wide = tall.reshape([regions, c, pooled[0], 1, width])
    z = F.max(F.where(cols.reshape([regions, 1, 1, pooled[1], width]), wide, -np.inf), [4], False)
    some = F.logical_and(_any(rows, x).reshape([regions, 1, pooled[0], 1]), _any(cols, x).reshape([regions, 1, 1, pooled[1]]))
    return F.where(some, z, 0.0)


def _any(mask: Value, like: Value) -> Value:
    return mask.astype(like.dtype).sum([2]) > 0.0


def _bins(n: Node, start_column: int, bins: int, size: int) -> Value:
    """[regions, bins, size]: which rows (or columns) of the image a bin holds."""
    scale = n.attr("spatial_scale")
    start, end = (F.floor(_column(n.y, k) * scale + 0.5) for k in (start_column, start_column + 2))
    extent = F.maximum(end - start + 1.0, 1.0) * (1.0 / bins)
    first = F.floor(extent * _line(n.y, np.arange(bins), (1, bins, 1))) + start
    last = F.ceil(extent * _line(n.y, np.arange(bins) + 1.0, (1, bins, 1))) + start
    at = _line(n.y, np.arange(size), (1, 1, size))
    return F.logical_and(at >= first, at < last)


@composition("relax.vision.multibox_transform_loc")
def multibox_transform_loc(n: Node):
    """(boxes, scores): anchors moved and scaled by the predictions (exp for extents); softmax over classes above a threshold."""
    scores, location, anchor = n.args
    batch, _, count = scores.shape
    boxes = location.reshape([batch, count, 4])
    v = n.attr("variances")
    ex, ey, ew, eh = (piece(boxes, 2, k, k + 1) for k in range(4))
    left, top, right, bottom = (piece(anchor, 2, k, k + 1) for k in range(4))
    y, x = ey * v[1] * (bottom - top) + (top + bottom) * 0.5, ex * v[0] * (right - left) + (left + right) * 0.5
    half_h, half_w = F.exp(eh * v[3]) * (bottom - top) * 0.5, F.exp(ew * v[2]) * (right - left) * 0.5
    corners = F.concat([y - half_h, x - half_w, y + half_h, x + half_w], 2)
    if n.attr("clip"):
        corners = F.maximum(F.minimum(corners, 1.0), 0.0)
    if n.attr("apply_softmax"):
        scores = F.softmax(scores, 1)
    kept = F.where(scores >= n.attr("threshold"), scores, 0.0)
    if not n.attr("keep_background"):
        kept = F.where(_line(kept, np.arange(kept.shape[1]), (1, kept.shape[1], 1)) > 0.0, kept, 0.0)
    return [corners, kept]
