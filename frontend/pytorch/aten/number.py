"""Functions of the form of numbers: greatest common divisors, mantissa and exponent, neighbours among the floats."""

from __future__ import annotations

import math

from tilegrad.frontend.pytorch.lowering import Cannot, Lowering
from tilegrad.frontend.pytorch.table import aten
from tilegrad.relax_ext import ops
from tilegrad.relax_ext.vjp.values import F, Value

_FORM = {"float32": ("int32", 23, 127), "float64": ("int64", 52, 1023)}
"""The whole number of the same width, bits of the mantissa, bias of the exponent."""


def _magnitudes(k: Lowering, x: Value, y: Value) -> tuple[Value, Value, Value]:
    """Both without their signs, in the result's dtype and shape, and their greatest common divisor."""
    dtype, shape = k.out.dtype, k.out.shape
    a, b = (k.value(v, dtype).broadcast_to(shape) for v in (x, y))
    if dtype != "uint8":
        a, b = F.abs(a), F.abs(b)
    return a, b, F.sum(k.call(ops.euclid, a, b), [0], False)


@aten("gcd")
def gcd(k: Lowering, x: Value, y: Value) -> Value:
    return _magnitudes(k, x, y)[2]


@aten("lcm")
def lcm(k: Lowering, x: Value, y: Value) -> Value:
    a, b, divisor = _magnitudes(k, x, y)
    product = F.floor_divide(a, F.maximum(divisor, k.number(1, a.dtype))) * b
    # When the product overflows: PyTorch takes the sign away before it wraps narrow types around, and after it wraps wide ones.
    return F.abs(product) if a.dtype in ("int32", "int64") else product


def _bits(k: Lowering, x: Value, dtype: str) -> Value:
    return k.call(ops.reinterpret, x, dtype=dtype)


def _power_of_two(k: Lowering, exponent: Value, dtype: str) -> Value:
    """2 to a whole number within the range of normal numbers."""
    whole, mantissa, bias = _FORM[dtype]
    return _bits(k, F.left_shift(exponent + bias, k.number(mantissa, whole)), dtype)


@aten("frexp.Tensor")
def frexp(k: Lowering, x: Value) -> list[Value]:
    """x = m 2^e with 1/2 <= |m| < 1; zero, infinities and NaN are their own mantissa."""
    wide = k.wide(x)
    whole, mantissa, bias = _FORM[wide.dtype]
    normal = float(2 ** (mantissa + 1))
    small = F.less(F.abs(wide), 2.0 ** (1 - bias))
    scaled = F.where(small, wide * normal, wide)  # numbers below the normal ones have no leading bit
    field = F.bitwise_and(F.right_shift(_bits(k, scaled, whole), k.number(mantissa, whole)), k.number(2 * bias + 1, whole))
    exponent = field - (bias - 1) - F.where(small, k.number(mantissa + 1, whole), k.number(0, whole))
    plain = F.logical_and(F.not_equal(wide, 0.0), F.isfinite(wide))
    exponent = F.where(plain, exponent, k.number(0, whole))
    half = F.floor_divide(exponent, k.number(2, whole))  # in two steps: 2^-e itself may be out of range
    m = wide * _power_of_two(k, -half, wide.dtype) * _power_of_two(k, half - exponent, wide.dtype)
    return [k.value(m, x.dtype), k.value(exponent, "int32")]


@aten("nextafter")
def nextafter(k: Lowering, x: Value, y: Value) -> Value:
    dtype, shape = k.out.dtype, k.out.shape
    if dtype not in _FORM:
        raise Cannot(f"nextafter of {dtype}")
    a, b = (k.value(v, dtype).broadcast_to(shape) for v in (x, y))
    whole = _FORM[dtype][0]
    one = k.number(1, whole)
    at = _bits(k, a, whole)
    inwards = F.logical_xor(F.greater(b, a), F.greater(a, 0.0))
    moved = _bits(k, F.where(inwards, at - one, at + one), dtype)
    smallest = _bits(k, one, dtype)
    moved = F.where(F.equal(a, 0.0), F.where(F.greater(b, 0.0), smallest, -smallest), moved)
    unordered = F.logical_or(F.isnan(a), F.isnan(b))
    result = F.where(unordered, k.number(math.nan, dtype), F.where(F.equal(a, b), b, moved))
    step = F.where(F.isfinite(a), a - k.call(ops.stop_gradient, a), k.number(0, dtype))  # zero, with the derivative of x
    return k.call(ops.stop_gradient, result) + step
