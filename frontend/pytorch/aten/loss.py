"""Losses that PyTorch keeps whole. Targets are compared with class numbers, so that gradients fuse and need no scatter."""

from __future__ import annotations

from collections.abc import Sequence

from tilegrad.frontend.pytorch.lowering import Lowering
from tilegrad.frontend.pytorch.table import aten
from tilegrad.relax_ext.vjp.values import F, Value

_NONE, _MEAN, _SUM = 0, 1, 2


@aten("nll_loss_forward", "nll_loss2d_forward")
def nll_loss_forward(
    k: Lowering, x: Value, target: Value, weight: Value | None, reduction: int, ignore_index: int
) -> list[Value]:
    axis = 0 if x.ndim == 1 else 1
    classes = x.shape[axis]
    column = [classes if i == axis else 1 for i in range(x.ndim)]
    hot = F.equal(target.reshape(_with_unit(target.shape, axis, x.ndim)), k.arange(classes, target.dtype).reshape(column))
    hot = F.logical_and(hot, F.not_equal(target.reshape(_with_unit(target.shape, axis, x.ndim)), ignore_index))
    zero = k.number(0, x.dtype)
    w = weight.reshape(column) if weight is not None else k.full(column, 1, x.dtype)
    losses = -F.sum(F.where(hot, x * w, zero), [axis], False)
    total = F.sum(F.where(hot, w.broadcast_to(x.shape), zero), None, False)
    if reduction == _NONE:
        return [losses.reshape(k.out.shape), k.zeros((), x.dtype)]
    loss = F.sum(losses, None, False)
    return [loss / total if reduction == _MEAN else loss, total]


def _with_unit(shape: Sequence[int], axis: int, ndim: int) -> Sequence[int]:
    """The target's shape with a unit class axis."""
    return (*shape[:axis], 1, *shape[axis:]) if len(shape) == ndim - 1 else shape


@aten("nll_loss_backward", "nll_loss2d_backward")
def nll_loss_backward(
    k: Lowering, g: Value, x: Value, target: Value, weight: Value | None, reduction: int, ignore_index: int, total: Value
) -> Value:
    axis = 0 if x.ndim == 1 else 1
    classes = x.shape[axis]
    column = [classes if i == axis else 1 for i in range(x.ndim)]
    place = target.reshape(_with_unit(target.shape, axis, x.ndim))
    hot = F.logical_and(F.equal(place, k.arange(classes, target.dtype).reshape(column)), F.not_equal(place, ignore_index))
    g = g / total if reduction == _MEAN else g
    if reduction == _NONE and x.ndim > 1:
        g = g.reshape(_with_unit(target.shape, axis, x.ndim))
    w = weight.reshape(column) if weight is not None else k.number(1, x.dtype)
    return F.where(hot, -(g * w), k.number(0, x.dtype)).broadcast_to(x.shape)
