"""Convolution of any rank; transposed convolution is the gradient by data of the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilegrad._base.tvm import relax
from tilegrad.frontend.pytorch.lowering import Cannot, Lowering, pair
from tilegrad.frontend.pytorch.table import aten
from tilegrad.relax_ext import ops
from tilegrad.relax_ext.vjp.values import F, Value

Ints = Sequence[int]
_FORWARD = {1: "conv1d", 2: "conv2d", 3: "conv3d"}


def _attrs(n: int, stride: Ints, padding: Ints, dilation: Ints, groups: int) -> dict[str, Any]:
    return {"strides": pair(stride, n), "padding": pair(padding, n) * 2, "dilation": pair(dilation, n), "groups": groups}


def _forward(x: Value, w: Value, attrs: dict[str, Any]) -> Value:
    n = x.ndim - 2
    return x.tape.bind(
        getattr(relax.op.nn, _FORWARD[n])(x.expr, w.expr, **{k: list(v) if isinstance(v, tuple) else v for k, v in attrs.items()})
    )


@aten("convolution", "_convolution")
def convolution(
    k: Lowering, x: Value, w: Value, bias: Value | None, stride: Ints, padding: Ints, dilation: Ints, transposed: bool,
    output_padding: Ints, groups: int, *ignored: Any,
) -> Value:  # fmt: skip
    batched = x.ndim == w.ndim
    if not batched:
        x = x.reshape((1, *x.shape))
    n = w.ndim - 2
    if n not in _FORWARD:
        raise Cannot(f"convolution over {n} axes")
    shape = k.out.shape if batched else (1, *k.out.shape)
    attrs = _attrs(n, stride, padding, dilation, groups)
    x, w = _computed(k, x), _computed(k, w)
    if 0 in x.shape or 0 in w.shape:
        y = k.zeros(shape, x.dtype)
    elif transposed:
        y = k.call(ops.conv_by_data, x, w, x_shape=shape, **attrs)
    else:
        y = _forward(x, w, attrs)
    if bias is not None:
        y = y + k.value(bias, y.dtype).reshape((1, bias.shape[0], *[1] * n))
    return k.narrow(y.reshape(k.out.shape))


def _computed(k: Lowering, x: Value) -> Value:
    return k.value(x, "float32") if x.dtype in ("float16", "bfloat16") else x


@aten("convolution_backward")
def convolution_backward(
    k: Lowering, g: Value, x: Value, w: Value, bias_sizes: Ints | None, stride: Ints, padding: Ints, dilation: Ints,
    transposed: bool, output_padding: Ints, groups: int, output_mask: Sequence[bool],
) -> list[Value | None]:  # fmt: skip
    if x.ndim != w.ndim:
        raise Cannot("convolution without a batch axis")
    attrs = _attrs(w.ndim - 2, stride, padding, dilation, groups)
    dtype = x.dtype
    g, x, w = (_computed(k, v) for v in (g, x, w))
    if transposed:
        dx = _forward(g, w, attrs)
        for axis in range(2, dx.ndim):
            if dx.shape[axis] != x.shape[axis]:
                dx = F.strided_slice(dx, [axis], [0], [x.shape[axis]], [1])
        dw = k.call(ops.conv_by_weight, x, g, w_shape=w.shape, **attrs)
    else:
        dx = k.call(ops.conv_by_data, g, w, x_shape=x.shape, **attrs)
        dw = k.call(ops.conv_by_weight, g, x, w_shape=w.shape, **attrs)
    db = F.sum(g, [0, *range(2, g.ndim)], False)
    return [k.value(v, dtype) if wanted else None for v, wanted in zip((dx, dw, db), output_mask, strict=True)]
