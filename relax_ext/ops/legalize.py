"""Lowering of Relax operators that upstream lowers not at all, not in float64, or wrongly; importing this registers it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from tilegrad._base.tvm import ir, relax, te, topi
from tilegrad.relax_ext.ops.register import plain
from tilegrad.schedules.te import softmax as rows

Compute = Callable[..., te.Tensor]


def _lower(op: str, *attrs: str) -> Callable[[Compute], Compute]:
    """Lower ``op`` by the decorated TE function of its tensors and the named attributes."""

    def decorate(compute: Compute) -> Compute:
        def legalize(builder: relax.BlockBuilder, call: ir.Call) -> relax.Expr:
            values = {name: plain(getattr(call.attrs, name)) for name in attrs}
            hint = op.rsplit(".", 1)[-1]
            return builder.call_te(lambda *xs: compute(*xs, **values), *call.args, primfunc_name_hint=hint)

        ir.register_op_attr(op, "FLegalize", legalize, level=11)
        return compute

    return decorate


@_lower("relax.ewise_fma")
def ewise_fma(x: te.Tensor, y: te.Tensor, z: te.Tensor) -> te.Tensor:
    """x y + z."""
    return topi.add(topi.multiply(x, y), z)


def _arg(extreme: Compute) -> Compute:
    def compute(x: te.Tensor, axis: int | None, keepdims: bool) -> te.Tensor:
        kept = [1 if axis is None or i == axis % len(x.shape) else d for i, d in enumerate(x.shape)]
        flat = topi.reshape(x, [prod(int(d) for d in x.shape)]) if axis is None else x
        y = extreme(flat, 0 if axis is None else axis)
        return topi.reshape(y, kept) if keepdims else y

    return compute


_lower("relax.argmax", "axis", "keepdims")(_arg(rows.argmax))
_lower("relax.argmin", "axis", "keepdims")(_arg(rows.argmin))


@_lower("relax.nn.pixel_shuffle", "upscale_factor")
def pixel_shuffle(x: te.Tensor, upscale_factor: int) -> te.Tensor:
    """[..., c r r, h, w] -> [..., c, h r, w r]."""
    r, lead, (c, h, w) = upscale_factor, list(x.shape[:-3]), list(x.shape[-3:])
    shape = [*lead, c // (r * r), h * r, w * r]

    def element(*i: Any) -> Any:
        *n, c, y, z = i
        return x(*n, (c * r + y % r) * r + z % r, y // r, z // r)

    return te.compute(shape, element, name="pixel_shuffle")


def _normalised(x: te.Tensor, axes: Sequence[int], epsilon: float, centre: bool = True) -> te.Tensor:
    """(x - mean) / sqrt(variance + epsilon) over ``axes``; 16-bit floats in float32."""
    x = topi.cast(x, "float32") if x.dtype in ("float16", "bfloat16") else x
    scale = 1.0 / prod(int(x.shape[a]) for a in axes)
    if centre:
        x = topi.subtract(x, topi.multiply(topi.sum(x, list(axes), True), scale))
    square = topi.multiply(topi.sum(topi.multiply(x, x), list(axes), True), scale)
    return topi.multiply(x, topi.rsqrt(topi.add(square, epsilon)))


def _affine(unit: te.Tensor, axes: Sequence[int], dtype: str, gamma: te.Tensor, beta: te.Tensor | None = None) -> te.Tensor:
    """unit gamma + beta, both over ``axes``."""

    def element(*i: Any) -> Any:
        at = [i[a] for a in axes]
        value = unit(*i) * gamma(*at).astype(unit.dtype)
        return (value if beta is None else value + beta(*at).astype(unit.dtype)).astype(dtype)

    return te.compute(unit.shape, element, name="affine")


@_lower("relax.nn.layer_norm", "axes", "epsilon")
def layer_norm(x: te.Tensor, gamma: te.Tensor, beta: te.Tensor, axes: Sequence[int], epsilon: float) -> te.Tensor:
    """Normalised over ``axes``."""
    axes = [a % len(x.shape) for a in axes]
    return _affine(_normalised(x, axes, epsilon), axes, x.dtype, gamma, beta)


@_lower("relax.nn.rms_norm", "axes", "epsilon")
def rms_norm(x: te.Tensor, gamma: te.Tensor, axes: Sequence[int], epsilon: float) -> te.Tensor:
    """Divided by the root of the mean square over ``axes``."""
    axes = [a % len(x.shape) for a in axes]
    return _affine(_normalised(x, axes, epsilon, centre=False), axes, x.dtype, gamma)


@_lower("relax.nn.instance_norm", "channel_axis", "axes", "epsilon")
def instance_norm(
    x: te.Tensor, gamma: te.Tensor, beta: te.Tensor, channel_axis: int, axes: Sequence[int], epsilon: float
) -> te.Tensor:
    """Normalised over ``axes``, factor and offset per channel."""
    rank = len(x.shape)
    return _affine(_normalised(x, [a % rank for a in axes], epsilon), [channel_axis % rank], x.dtype, gamma, beta)


@_lower("relax.nn.group_norm", "num_groups", "channel_axis", "axes", "epsilon")
def group_norm(
    x: te.Tensor, gamma: te.Tensor, beta: te.Tensor, num_groups: int, channel_axis: int, axes: Sequence[int], epsilon: float
) -> te.Tensor:
    """Normalised over ``axes`` and the channels of each group, factor and offset per channel."""
    rank = len(x.shape)
    c, axes = channel_axis % rank, [a % rank for a in axes]
    split = [*x.shape[:c], num_groups, x.shape[c] // num_groups, *x.shape[c + 1 :]]
    grouped = sorted({c + 1, *(a if a < c else a + 1 for a in axes)})
    unit = topi.reshape(_normalised(topi.reshape(x, split), grouped, epsilon), x.shape)
    return _affine(unit, [c], x.dtype, gamma, beta)


@_lower("relax.nn.softmax", "axis")
def softmax(x: te.Tensor, axis: int) -> te.Tensor:
    """Each exponential once; a row by one reciprocal."""
    return rows.softmax(x, axis)


@_lower("relax.nn.log_softmax", "axis")
def log_softmax(x: te.Tensor, axis: int) -> te.Tensor:
    """x - max - log of the sum of exponentials."""
    return rows.log_softmax(x, axis)
