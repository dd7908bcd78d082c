"""Activations that PyTorch keeps whole."""

from __future__ import annotations

from tilegrad.frontend.pytorch.aten.scalar_functions import expm1_of
from tilegrad.frontend.pytorch.lowering import Lowering, Number
from tilegrad.frontend.pytorch.table import aten
from tilegrad.relax_ext.vjp.values import F, Value


@aten("relu", "relu_")
def relu(k: Lowering, x: Value) -> Value:
    return F.relu(x) if "float" in x.dtype else F.maximum(x, 0)


@aten("relu6")
def relu6(k: Lowering, x: Value) -> Value:
    return F.relu6(x)


@aten("hardtanh")
def hardtanh(k: Lowering, x: Value, min_val: Number = -1, max_val: Number = 1) -> Value:
    # The gradient is zero at the bounds themselves, unlike clamp's.
    inside = F.logical_and(F.greater(x, k.number(min_val, x.dtype)), F.less(x, k.number(max_val, x.dtype)))
    held = F.where(F.less_equal(x, k.number(min_val, x.dtype)), k.number(min_val, x.dtype), k.number(max_val, x.dtype))
    result = F.where(inside, x, held)
    return F.where(F.isnan(x), x, result) if "float" in x.dtype else result


@aten("gelu")
def gelu(k: Lowering, x: Value, approximate: str = "none") -> Value:
    return k.narrow((F.gelu if approximate == "none" else F.gelu_tanh)(k.wide(x)))


@aten("leaky_relu")
def leaky_relu(k: Lowering, x: Value, negative_slope: Number = 0.01) -> Value:
    wide = k.wide(x)
    return k.narrow(F.where(F.greater(wide, 0.0), wide, wide * float(negative_slope)))


@aten("elu")
def elu(k: Lowering, x: Value, alpha: Number = 1, scale: Number = 1, input_scale: Number = 1) -> Value:
    wide = k.wide(x)
    # exp only of negative numbers: an overflow there would make the gradient NaN
    negative = expm1_of(k, F.minimum(wide, 0.0) * float(input_scale)) * float(alpha)
    return k.narrow(F.where(F.greater(wide, 0.0), wide, negative) * float(scale))


@aten("softplus")
def softplus(k: Lowering, x: Value, beta: Number = 1, threshold: Number = 20) -> Value:
    wide = k.wide(x)
    scaled = wide * float(beta)
    beyond = F.greater(scaled, float(threshold))
    soft = F.log(F.exp(F.where(beyond, scaled.zeros_like(), scaled)) + 1.0)
    return k.narrow(F.where(beyond, wide, soft / float(beta)))


@aten("prelu", "_prelu_kernel")
def prelu(k: Lowering, x: Value, weight: Value) -> Value:
    if k.name.startswith("prelu") and weight.ndim == 1:
        weight = weight.reshape([weight.shape[0] if i == min(1, x.ndim - 1) else 1 for i in range(x.ndim)])
    return F.where(F.greater(x, 0.0), x, x * weight).broadcast_to(k.out.shape)
