"""Rules of normalisations. Mean and deviation are computed again from x; what the forward pass shares is reused."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilegrad.relax_ext.vjp.table import composition, vjp_rule
from tilegrad.relax_ext.vjp.values import F, Node, Value


def _unit(x: Value, axes: Sequence[int], epsilon: float) -> tuple[Value, Value]:
    """(x - mean) / sqrt(variance + epsilon) over ``axes``, and the factor 1 / sqrt(...)."""
    centred = x - F.mean(x, list(axes), True)
    scale = F.rsqrt(F.mean(centred * centred, list(axes), True) + epsilon)
    return centred * scale, scale


def _unit_vjp(g: Value, unit: Value, scale: Value, axes: Sequence[int]) -> Value:
    """Through ``_unit``: scale (g - mean g - unit mean(g unit))."""
    axes = list(axes)
    return scale * (g - F.mean(g, axes, True) - unit * F.mean(g * unit, axes, True))


def _along(v: Value, axes: Sequence[int], ndim: int) -> Value:
    """A parameter over ``axes`` with unit axes elsewhere."""
    return v.reshape([v.shape[list(axes).index(i)] if i in axes else 1 for i in range(ndim)])


def _others(axes: Sequence[int], ndim: int) -> list[int]:
    return [i for i in range(ndim) if i not in axes]


@vjp_rule("relax.nn.layer_norm")
def layer_norm(n: Node, g: Value):
    """z = u c + b, u = (x - mean) r, r = (variance + e)^(-1/2): (r (h - mean h - u mean(h u)) with h = g c, sum g u, sum g)."""
    x, gamma, axes, ndim = n.x, n.y, n.axes("axes"), n.x.ndim
    unit, scale = _unit(x, axes, n.attr("epsilon"))
    rest = _others(axes, ndim)
    return _unit_vjp(g * _along(gamma, axes, ndim), unit, scale, axes), (g * unit).sum(rest), g.sum(rest)


@vjp_rule("relax.nn.instance_norm")
def instance_norm(n: Node, g: Value):
    """As layer_norm over the spatial axes, with one factor and offset per channel."""
    x, axes, ndim = n.x, n.axes("axes"), n.x.ndim
    channel = n.attr("channel_axis") % ndim
    unit, scale = _unit(x, axes, n.attr("epsilon"))
    rest = _others([channel], ndim)
    return _unit_vjp(g * _along(n.y, [channel], ndim), unit, scale, axes), (g * unit).sum(rest), g.sum(rest)


@vjp_rule("relax.nn.group_norm")
def group_norm(n: Node, g: Value):
    """As layer_norm over the channels of a group and the given axes, with one factor and offset per channel."""
    x, ndim, groups = n.x, n.x.ndim, n.attr("num_groups")
    channel = n.attr("channel_axis") % ndim
    rest = _others([channel], ndim)
    split = [*x.shape[:channel], groups, x.shape[channel] // groups, *x.shape[channel + 1 :]]
    # Axes after the channel axis move up by one; the channels of a group are axis channel + 1.
    axes = sorted({channel + 1, *(a if a < channel else a + 1 for a in n.axes("axes"))})
    unit, scale = _unit(x.reshape(split), axes, n.attr("epsilon"))
    h = (g * _along(n.y, [channel], ndim)).reshape(split)
    return _unit_vjp(h, unit, scale, axes).reshape(x.shape), (g * unit.reshape(x.shape)).sum(rest), g.sum(rest)


@vjp_rule("relax.nn.rms_norm")
def rms_norm(n: Node, g: Value):
    """z = u c, u = x r, r = (mean x^2 + e)^(-1/2): (r (h - u mean(h u)) with h = g c, sum g u)."""
    x, axes, ndim = n.x, n.axes("axes"), n.x.ndim
    scale = F.rsqrt(F.mean(x * x, list(axes), True) + n.attr("epsilon"))
    unit, h = x * scale, g * _along(n.y, axes, ndim)
    return scale * (h - unit * F.mean(h * unit, list(axes), True)), (g * unit).sum(_others(axes, ndim))


@vjp_rule("relax.nn.batch_norm")
def batch_norm(n: Node, g: list[Value | None]):
    """Training: as layer_norm over all axes but the channel's; running statistics m' = (1 - a) m + a mean pass on (1 - a) g
    and, to x, a g mean'. Evaluation: u = (x - m) (v + e)^(-1/2) is differentiated in x, m and v."""
    return _batch_norm_training(n, g) if n.attr("training") else _batch_norm_evaluation(n, g)


def _batch_norm_training(n: Node, g: list[Value | None]):
    x, ndim, momentum = n.x, n.x.ndim, n.attr("momentum")
    axis = n.attr("axis") % ndim
    axes = _others([axis], ndim)
    unit, scale = _unit(x, axes, n.attr("epsilon"))
    gx = ggamma = gbeta = None
    if g[0] is not None:
        h = g[0] * _along(n.y, [axis], ndim) if n.attr("scale") else g[0]
        gx = _unit_vjp(h, unit, scale, axes)
        ggamma = (g[0] * unit).sum(axes) if n.attr("scale") else None
        gbeta = g[0].sum(axes) if n.attr("center") else None
    size = prod(x.shape[a] for a in axes)
    if g[1] is not None:
        gx = _plus(gx, _along(g[1] * (momentum / size), [axis], ndim).broadcast_to(x.shape))
    if g[2] is not None:
        centred = x - F.mean(x, list(axes), True)
        gx = _plus(gx, centred * _along(g[2] * (2.0 * momentum / size), [axis], ndim))
    return gx, ggamma, gbeta, *(None if v is None else v * (1.0 - momentum) for v in g[1:])


def _batch_norm_evaluation(n: Node, g: list[Value | None]):
    x, gamma, _, mean, var = n.args
    ndim, axis = x.ndim, n.attr("axis") % x.ndim
    axes = _others([axis], ndim)
    if g[0] is None:
        return None, None, None, g[1], g[2]
    scale = F.rsqrt(var + n.attr("epsilon"))
    unit = (x - _along(mean, [axis], ndim)) * _along(scale, [axis], ndim)
    factor = scale * gamma if n.attr("scale") else scale
    gx = g[0] * _along(factor, [axis], ndim)
    sum_gu = (g[0] * unit).sum(axes)
    gvar = sum_gu * factor * scale * -0.5
    return (
        gx,
        sum_gu if n.attr("scale") else None,
        g[0].sum(axes) if n.attr("center") else None,
        _plus(g[1], -(g[0].sum(axes) * factor)),
        _plus(g[2], gvar),
    )


def _plus(a: Value | None, b: Value) -> Value:
    return b if a is None else a + b


@composition("relax.dequantize")
def dequantize(n: Node):
    """z = (q - zero point) scale: differentiated in scale."""
    axis = n.attr("axis") % max(n.x.ndim, 1)

    def along(v: Value) -> Value:
        return v.reshape([-1 if i == axis else 1 for i in range(n.x.ndim)]) if v.ndim else v

    return (n.x.astype(n.y.dtype) - along(n.args[2]).astype(n.y.dtype)) * along(n.y)
