"""Arithmetic, activations and other elementwise operators whose dtype follows PyTorch's promotion."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tilegrad.frontend.pytorch.lowering import Cannot, Lowering, Number
from tilegrad.frontend.pytorch.table import aten
from tilegrad.relax_ext.vjp.values import F, Value

Operand = Value | Number


def _float_unary(relax_name: str, *overloads: str) -> None:
    """An elementwise function of floats: whole numbers are converted, half floats computed in float32."""

    @aten(*overloads)
    def rule(k: Lowering, x: Value) -> Value:
        return k.narrow(getattr(F, relax_name)(k.wide(x)))


for _name in "exp log sqrt rsqrt sigmoid tanh sin cos tan asin acos atan asinh acosh atanh erf".split():
    _float_unary(_name, _name)
_float_unary("silu", "silu")


def _unary(overload: str) -> Callable[..., Any]:
    """A rule for floats only; whole numbers and bools come back as they are."""

    def decorate(rule: Callable[..., Value]) -> Callable[..., Value]:
        @aten(overload)
        def guarded(k: Lowering, x: Value) -> Value:
            return rule(k, x) if "float" in x.dtype else x

        return guarded

    return decorate


for _name in ("ceil", "floor", "trunc", "round"):

    @_unary(_name)
    def _rounding(k: Lowering, x: Value, name: str = _name) -> Value:
        return k.narrow(getattr(F, name)(k.wide(x)))


@aten("fix")
def fix(k: Lowering, x: Value) -> Value:
    return _rounding_of(k, "trunc", x)


def _rounding_of(k: Lowering, name: str, x: Value) -> Value:
    return k.narrow(getattr(F, name)(k.wide(x))) if "float" in x.dtype else x


@aten("round.decimals")
def round_decimals(k: Lowering, x: Value, decimals: int = 0) -> Value:
    if "float" not in x.dtype:
        raise Cannot("round(decimals) of whole numbers")
    wide, scale = k.wide(x), float(10 ** abs(decimals))
    if decimals == 0:
        return k.narrow(F.round(wide))
    return k.narrow(F.round(wide * scale) / scale if decimals > 0 else F.round(wide / scale) * scale)


def add_like(k: Lowering, x: Operand, y: Operand, alpha: Number, op: Callable[[Value, Value], Value]) -> Value:
    """``x op alpha y`` in the result's dtype."""
    dtype = k.out.dtype
    if dtype == "bool":  # + and * of bools are or and and
        return op(k.value(x, dtype), k.value(y, dtype))
    a, b = _operand(k, x), _operand(k, y)
    if alpha != 1:
        b = b * k.number(alpha, b.dtype)
    return k.narrow(op(a, b))


def _operand(k: Lowering, x: Operand) -> Value:
    """An operand in the dtype that PyTorch computes in."""
    dtype = k.out.dtype
    return k.value(k.value(x, dtype) if isinstance(x, Value) else x, "float32" if dtype in ("float16", "bfloat16") else dtype)


@aten("add.Tensor", "add.Scalar", "prims::add")
def add(k: Lowering, x: Operand, y: Operand, alpha: Number = 1) -> Value:
    return add_like(k, x, y, alpha, F.logical_or if k.out.dtype == "bool" else F.add)


@aten("sub.Tensor", "sub.Scalar", "prims::sub")
def sub(k: Lowering, x: Operand, y: Operand, alpha: Number = 1) -> Value:
    return add_like(k, x, y, alpha, F.subtract)


@aten("rsub.Tensor", "rsub.Scalar")
def rsub(k: Lowering, x: Operand, y: Operand, alpha: Number = 1) -> Value:
    return add_like(k, y, x, alpha, F.subtract)


@aten("mul.Tensor", "mul.Scalar", "prims::mul")
def mul(k: Lowering, x: Operand, y: Operand) -> Value:
    if not isinstance(y, Value) and y == 0 and "float" in k.out.dtype and isinstance(x, Value):
        # TVM folds x * 0 to 0, which would hide infinities and NaNs.
        a = k.value(x, k.out.dtype)
        return F.where(F.isfinite(a), k.number(0, a.dtype), k.number(math.nan, a.dtype))
    return add_like(k, x, y, 1, F.logical_and if k.out.dtype == "bool" else F.multiply)


@aten("prims::div")
def prims_div(k: Lowering, x: Operand, y: Operand) -> Value:
    return div_mode(k, x, y, None if "float" in k.out.dtype else "trunc")


@aten("div.Tensor", "div.Scalar", "true_divide.Tensor")
def div(k: Lowering, x: Operand, y: Operand) -> Value:
    return k.narrow(F.divide(_operand(k, x), _operand(k, y)))


@aten("div.Tensor_mode", "div.Scalar_mode")
def div_mode(k: Lowering, x: Operand, y: Operand, rounding_mode: str | None = None) -> Value:
    if rounding_mode is None:
        return div(k, x, y)
    a, b = _operand(k, x), _operand(k, y)
    if "float" not in a.dtype:
        return F.floor_divide(a, b) if rounding_mode == "floor" else _truncated_int(k, a, b)
    return k.narrow(_floor_div(k, a, b) if rounding_mode == "floor" else F.trunc(F.divide(a, b)))


def _truncated_int(k: Lowering, a: Value, b: Value) -> Value:
    quotient = F.floor_divide(a, b)
    inexact = F.logical_and(F.not_equal(quotient * b, a), F.less(quotient, 0))
    return quotient + k.value(inexact, a.dtype)


def _floor_div(k: Lowering, a: Value, b: Value) -> Value:
    """Python's floor division of floats (c10::div_floor_floating): from the remainder, so that a / b rounding up cannot err."""
    mod = _fmod(a, b)
    exact = F.divide(a - mod, b)
    wrong_sign = F.logical_and(F.not_equal(mod, 0.0), F.logical_xor(F.less(b, 0.0), F.less(mod, 0.0)))
    exact = exact - k.value(wrong_sign, a.dtype)
    down = F.floor(exact)
    result = F.where(F.greater(exact - down, 0.5), down + 1.0, down)
    return F.where(F.equal(b, 0.0), F.divide(a, b), result)


@aten("floor_divide", "floor_divide.Scalar")
def floor_divide(k: Lowering, x: Operand, y: Operand) -> Value:
    return div_mode(k, x, y, "floor")


def _fmod(a: Value, b: Value) -> Value:
    """C's fmod; relax.mod truncates."""
    return F.mod(a, b)


@aten("fmod.Tensor", "fmod.Scalar")
def fmod(k: Lowering, x: Operand, y: Operand) -> Value:
    a, b = _operand(k, x), _operand(k, y)
    if "float" not in a.dtype:
        return a - _truncated_int(k, a, b) * b
    return k.narrow(_fmod(a, b))


@aten("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor")
def remainder(k: Lowering, x: Operand, y: Operand) -> Value:
    a, b = _operand(k, x), _operand(k, y)
    if "float" not in a.dtype:
        return a - F.floor_divide(a, b) * b
    mod = _fmod(a, b)
    wrong = F.logical_and(F.not_equal(mod, 0.0), F.logical_xor(F.less(b, 0.0), F.less(mod, 0.0)))
    return k.narrow(F.where(wrong, mod + b, mod))


@aten("neg")
def neg(k: Lowering, x: Value) -> Value:
    return F.negative(x)


@aten("abs")
def abs_(k: Lowering, x: Value) -> Value:
    return x if x.dtype in ("bool", "uint8") else F.abs(x)


@aten("sign", "sgn")
def sign(k: Lowering, x: Value) -> Value:
    if x.dtype == "bool":
        return x
    if x.dtype == "uint8":
        return k.value(F.greater(x, 0), x.dtype)
    return k.narrow(F.sign(k.wide(x)) if "float" in x.dtype else F.sign(x))


@aten("reciprocal")
def reciprocal(k: Lowering, x: Value) -> Value:
    wide = k.wide(x)
    return k.narrow(F.divide(k.number(1, wide.dtype), wide))


@aten("square")
def square(k: Lowering, x: Value) -> Value:
    a = _operand(k, x)
    return k.narrow(a * a)


@aten("pow.Tensor_Tensor", "pow.Tensor_Scalar", "pow.Scalar")
def pow_(k: Lowering, x: Operand, y: Operand) -> Value:
    a = _operand(k, x)
    if isinstance(y, (int, float)):
        chain = _small_power(k, a, y)
        if chain is not None:
            return k.narrow(chain)
    if "float" not in a.dtype:
        return _integer_power(k, a, y)
    return k.narrow(F.power(a, _operand(k, y)))


def _small_power(k: Lowering, a: Value, y: Number) -> Value | None:
    """Exponents that are products and roots: exact, and differentiable at zero and for negative numbers."""
    if y == 0:
        return k.value(k.full(a.shape, 1, a.dtype), a.dtype)
    if float(y).is_integer() and 1 <= y <= 64:
        result, base, n = None, a, int(y)
        while n:
            if n & 1:
                result = base if result is None else result * base
            n >>= 1
            base = base * base if n else base
        return result
    if "float" not in a.dtype:
        return None
    one = k.number(1, a.dtype)
    return {0.5: lambda: F.sqrt(a), -0.5: lambda: F.rsqrt(a), -1: lambda: F.divide(one, a), -2: lambda: F.divide(one, a * a)}.get(
        y, lambda: None
    )()


def _integer_power(k: Lowering, a: Value, y: Operand) -> Value:
    """Square and multiply over the exponent's bits."""
    if a.dtype == "bool":
        raise Cannot("pow of bools")
    n = k.value(y, a.dtype)
    one = k.full(a.shape if a.ndim else n.shape, 1, a.dtype)
    result, base = one, a
    for bit in range(6):
        odd = F.not_equal(F.bitwise_and(F.right_shift(n, k.number(bit, n.dtype)), k.number(1, n.dtype)), 0)
        result = F.where(odd, result * base, result)
        base = base * base
    if a.dtype == "uint8":
        return result
    inverse = F.where(F.equal(a, 1), result, F.where(F.equal(a, -1), result, result * 0))
    return F.where(F.less(n, 0), inverse, result)


@aten("maximum")
def maximum(k: Lowering, x: Value, y: Value) -> Value:
    return _extreme(k, x, y, F.maximum, F.logical_or)


@aten("minimum")
def minimum(k: Lowering, x: Value, y: Value) -> Value:
    return _extreme(k, x, y, F.minimum, F.logical_and)


def _extreme(k: Lowering, x: Operand, y: Operand, op: Any, of_bools: Any) -> Value:
    if k.out.dtype == "bool":
        return of_bools(k.value(x, "bool"), k.value(y, "bool"))
    a, b = _operand(k, x), _operand(k, y)
    result = op(a, b)
    if "float" in a.dtype:  # a NaN on either side wins
        result = F.where(F.isnan(a), a + F.full_like(b, k.number(0, b.dtype).expr), F.where(F.isnan(b), b, result))
        result = result.broadcast_to(k.out.shape)
    return k.narrow(result)


@aten("clamp", "clamp.Tensor")
def clamp(k: Lowering, x: Value, min: Operand | None = None, max: Operand | None = None) -> Value:
    dtype = k.out.dtype
    y = _operand(k, x)
    low = None if min is None else _bound(k, min, y.dtype)
    high = None if max is None else _bound(k, max, y.dtype)
    for bound, op in ((low, F.maximum), (high, F.minimum)):
        if bound is None:
            continue
        if isinstance(bound, Value) and bound.ndim:
            y = _nan_aware(y, bound, op)
        else:
            # PyTorch's gradient passes at the bounds themselves, so this is a choice, not a maximum.
            outside = F.less(y, bound) if op is F.maximum else F.greater(y, bound)
            y = F.where(outside, bound, y)
    return k.value(y, dtype)


def _nan_aware(y: Value, bound: Value, op: Any) -> Value:
    outside = F.less(y, bound) if op is F.maximum else F.greater(y, bound)
    if "float" in y.dtype:
        outside = F.logical_or(outside, F.isnan(bound))
    return F.where(outside, bound, y)


def _bound(k: Lowering, bound: Operand, dtype: str) -> Value:
    if isinstance(bound, float) and math.isnan(bound):
        raise Cannot("clamp to NaN")
    return k.value(bound, dtype)


@aten("clamp_min", "clamp_min.Tensor")
def clamp_min(k: Lowering, x: Value, min: Operand) -> Value:
    return clamp(k, x, min, None)


@aten("clamp_max", "clamp_max.Tensor")
def clamp_max(k: Lowering, x: Value, max: Operand) -> Value:
    return clamp(k, x, None, max)


@aten("atan2")
def atan2(k: Lowering, x: Value, y: Value) -> Value:
    return k.narrow(F.atan2(_operand(k, x), _operand(k, y)))


@aten("where.self", "where.ScalarSelf", "where.ScalarOther", "where.Scalar")
def where(k: Lowering, condition: Value, x: Operand, y: Operand) -> Value:
    return F.where(k.value(condition, "bool"), k.value(x, k.out.dtype), k.value(y, k.out.dtype)).broadcast_to(k.out.shape)


@aten("_to_copy", "to.dtype", "convert_element_type")
def to_copy(k: Lowering, x: Value, *args: Any, dtype: str | None = None, **ignored: Any) -> Value:
    return k.value(x, k.out.dtype)


@aten("prims::convert_element_type")
def convert_element_type(k: Lowering, x: Value, dtype: str) -> Value:
    return k.value(x, dtype)


@aten("lerp.Scalar", "lerp.Tensor")
def lerp(k: Lowering, start: Value, end: Value, weight: Operand) -> Value:
    a, b, w = _operand(k, start), _operand(k, end), _operand(k, weight)
    small = F.less(F.abs(w), 0.5)
    return k.narrow(F.where(small, a + w * (b - a), b - (b - a) * (1.0 - w)).broadcast_to(k.out.shape))


@aten("copy")
def copy(k: Lowering, x: Value, source: Value, non_blocking: bool = False) -> Value:
    return k.value(source, k.out.dtype).broadcast_to(k.out.shape)


@aten("copysign.Tensor", "copysign.Scalar")
def copysign(k: Lowering, x: Operand, y: Operand) -> Value:
    a, b = _operand(k, x), _operand(k, y)
    magnitude = F.abs(a)
    negative = signbit_of(k, b)
    return k.narrow(F.where(negative, F.negative(magnitude), magnitude).broadcast_to(k.out.shape))


def signbit_of(k: Lowering, x: Value) -> Value:
    """Whether the sign bit is set, of -0.0 as well: the sign of atan2(0, x) tells the zeros apart."""
    if "float" not in x.dtype:
        return F.less(x, k.number(0, x.dtype)) if x.dtype != "bool" else k.zeros(x.shape, "bool")
    zero = F.equal(x, 0.0)
    one = k.full(x.shape, 1, x.dtype)
    return F.less(F.divide(one, F.where(zero, x, one)) * F.where(zero, one, x), 0.0)


@aten("signbit")
def signbit(k: Lowering, x: Value) -> Value:
    return signbit_of(k, x)


@aten("addcmul")
def addcmul(k: Lowering, x: Value, a: Value, b: Value, value: Number = 1) -> Value:
    product = _operand(k, a) * _operand(k, b)
    scaled = product if value == 1 else product * k.number(value, product.dtype)
    return k.narrow(_operand(k, x) + scaled)


@aten("addcdiv")
def addcdiv(k: Lowering, x: Value, a: Value, b: Value, value: Number = 1) -> Value:
    quotient = F.divide(_operand(k, a), _operand(k, b))
    scaled = quotient if value == 1 else quotient * k.number(value, quotient.dtype)
    return k.narrow(_operand(k, x) + scaled)


@aten("hypot", "prims::hypot")
def hypot(k: Lowering, x: Value, y: Value) -> Value:
    """The longer side times sqrt(1 + ratio^2): no overflow, no underflow."""
    a, b = F.abs(k.wide(x)), F.abs(k.wide(y))
    long, short = F.maximum(a, b), F.minimum(a, b)
    none = F.logical_or(F.equal(long, 0.0), F.isinf(long))
    ratio = F.where(none, k.number(0, long.dtype), short) / F.where(none, k.number(1, long.dtype), long)
    return k.narrow((long * F.sqrt(ratio * ratio + 1.0)).broadcast_to(k.out.shape))


@aten("angle")
def angle(k: Lowering, x: Value) -> Value:
    """Of real numbers: pi below zero, else 0."""
    x = k.value(x, k.out.dtype)
    half_turn = F.where(F.less(x, 0.0), k.number(math.pi, x.dtype), k.number(0, x.dtype))
    return F.where(F.isnan(x), x, half_turn)
