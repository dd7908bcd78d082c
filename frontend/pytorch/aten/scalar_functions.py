"""Elementwise functions that Relax lacks, written in those it has: log1p, expm1, erfc, erfinv, lgamma, digamma, ..."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np

from tilegrad.frontend.pytorch.lowering import Lowering
from tilegrad.frontend.pytorch.table import aten
from tilegrad.relax_ext.vjp.values import F, Value


@aten("log2")
def log2(k: Lowering, x: Value) -> Value:
    return k.narrow(F.log(k.wide(x)) * (1 / math.log(2)))


@aten("log10")
def log10(k: Lowering, x: Value) -> Value:
    return k.narrow(F.log(k.wide(x)) * (1 / math.log(10)))


@aten("exp2")
def exp2(k: Lowering, x: Value) -> Value:
    return k.narrow(F.exp(k.wide(x) * math.log(2)))


def expm1_of(k: Lowering, x: Value) -> Value:
    """exp(x) - 1 without cancellation: 2 exp(x / 2) sinh(x / 2), by tanh(x / 2) (exp(x) + 1)."""
    return F.tanh(x * 0.5) * (F.exp(x) + 1.0)


@aten("expm1")
def expm1(k: Lowering, x: Value) -> Value:
    wide = k.wide(x)
    # The identity would be inf * 1 - fine - but loses a digit for large x, where exp(x) - 1 is exact enough.
    return k.narrow(F.where(F.greater(F.abs(wide), 1.0), F.exp(wide) - 1.0, expm1_of(k, wide)))


def log1p_of(k: Lowering, x: Value) -> Value:
    """log(1 + x) = 2 atanh(x / (2 + x)) near zero."""
    near = F.less(F.abs(x), 0.5)
    small = F.where(near, x, x.zeros_like())
    large = F.where(near, x.zeros_like(), x)
    return F.where(near, F.atanh(small / (small + 2.0)) * 2.0, F.log(large + 1.0))


@aten("log1p")
def log1p(k: Lowering, x: Value) -> Value:
    return k.narrow(log1p_of(k, k.wide(x)))


def polynomial(x: Value, coefficients: Sequence[float]) -> Value:
    """Horner's scheme, highest power first."""
    result = x * 0.0 + coefficients[0]
    for c in coefficients[1:]:
        result = result * x + c
    return result


@aten("cosh")
def cosh(k: Lowering, x: Value) -> Value:
    wide = k.wide(x)
    return k.narrow((F.exp(wide) + F.exp(-wide)) * 0.5)


@aten("sinh")
def sinh(k: Lowering, x: Value) -> Value:
    """(exp(x) - exp(-x)) / 2; near zero by expm1: (e + e / (e + 1)) / 2 with e = exp(x) - 1."""
    wide = k.wide(x)
    near = F.less(F.abs(wide), 1.0)
    e = expm1_of(k, F.where(near, wide, wide.zeros_like()))
    return k.narrow(F.where(near, e + e / (e + 1.0), F.exp(wide) - F.exp(-wide)) * 0.5)


def _extreme_number(name: str, op: str, of_bools: str) -> None:
    @aten(name)
    def rule(k: Lowering, x: Value, y: Value) -> Value:
        """A NaN loses against a number."""
        dtype = k.out.dtype
        a, b = k.value(x, dtype), k.value(y, dtype)
        if dtype == "bool":
            return getattr(F, of_bools)(a, b)
        result = getattr(F, op)(a, b)
        if "float" in dtype:
            result = F.where(F.isnan(a), b, F.where(F.isnan(b), a, result))
        return result.broadcast_to(k.out.shape)


_extreme_number("fmax", "maximum", "logical_or")
_extreme_number("fmin", "minimum", "logical_and")


_ERFC_NUMERATOR = (
    2.46196981473530512524e-10, 5.64189564831068821977e-1, 7.46321056442269912687, 4.86371970985681366614e1,
    1.96520832956077098242e2, 5.26445194995477358631e2, 9.34528527171957607540e2, 1.02755188689515710272e3,
    5.57535335369399327526e2,
)  # fmt: skip
_ERFC_DENOMINATOR = (
    1.0, 1.32281951154744992508e1, 8.67072140885989742329e1, 3.54937778887819891062e2, 9.75708501743205489753e2,
    1.82390916687909736289e3, 2.24633760818710981792e3, 1.65666309194161350182e3, 5.57535340817727675546e2,
)  # fmt: skip


@aten("erfc")
def erfc(k: Lowering, x: Value) -> Value:
    """1 - erf(x) below 1; above, exp(-x^2) times a rational function (Cephes, good to the last digits up to 8), whose
    argument ends at 30: the factor is zero long before."""
    wide = k.wide(x)
    large = F.greater(wide, 1.0)
    z = F.where(large, wide, k.number(1, wide.dtype))
    held = F.minimum(z, 30.0)
    tail = F.exp(-z * z) * (polynomial(held, _ERFC_NUMERATOR) / polynomial(held, _ERFC_DENOMINATOR))
    return k.narrow(F.where(large, tail, 1.0 - F.erf(wide)))


def chebyshev(x: Value, coefficients: Sequence[float]) -> Value:
    """A Chebyshev series on [-1, 1], by Clenshaw's recurrence."""
    ahead = last = x * 0.0
    for c in coefficients[:0:-1]:
        last, ahead = x * last * 2.0 - ahead + c, last
    return x * last - ahead + coefficients[0]


@cache
def _bessel_series() -> tuple[list[float], list[float]]:
    """exp(-x) i0(x) on [0, 8] in x / 4 - 1, and sqrt(x) times it beyond in 16 / x - 1."""
    from numpy.polynomial.chebyshev import chebinterpolate
    from scipy.special import i0e

    near = chebinterpolate(lambda t: i0e(4 * (t + 1)), 29)
    far = chebinterpolate(lambda t: i0e(16 / (t + 1)) * (16 / (t + 1)) ** 0.5, 24)
    return near.tolist(), far.tolist()


@aten("i0")
def i0(k: Lowering, x: Value) -> Value:
    """Bessel's function, by Chebyshev series on both sides of 8."""
    wide = k.wide(x)
    size = F.abs(wide)
    near_series, far_series = _bessel_series()
    near = F.less_equal(size, 8.0)
    close = F.where(near, size, k.number(4, wide.dtype))
    distant = F.where(near, k.number(16, wide.dtype), size)
    small = F.exp(close) * chebyshev(close / 4.0 - 1.0, near_series)
    large = F.exp(distant) * chebyshev(16.0 / distant - 1.0, far_series) / F.sqrt(distant)
    return k.narrow(F.where(near, small, large))


@aten("erfinv")
def erfinv(k: Lowering, x: Value) -> Value:
    """Giles' approximation ("Approximating the erfinv function", 2011), then two steps of Newton's method."""
    wide = k.wide(x)
    one = F.abs(wide)
    inside = F.less(one, 1.0)
    u = F.where(inside, wide, wide.zeros_like())
    w = -F.log((1.0 - u) * (u + 1.0))
    small = F.less(w, 5.0)
    near = polynomial(F.where(small, w, k.number(2.5, w.dtype)) - 2.5, _GILES_NEAR)
    far = polynomial(F.sqrt(F.where(small, k.number(9.0, w.dtype), w)) - 3.0, _GILES_FAR)
    from tilegrad.relax_ext import ops

    y = k.call(ops.stop_gradient, F.where(small, near, far) * u)
    for _ in range(3):
        y = y - (F.erf(y) - u) / (F.exp(-y * y) * (2 / math.sqrt(math.pi)))
    infinity = F.where(F.greater(wide, 0.0), k.number(math.inf, wide.dtype), k.number(-math.inf, wide.dtype))
    edge = F.where(F.equal(one, 1.0), infinity, k.number(math.nan, wide.dtype))
    return k.narrow(F.where(inside, y, edge))


_GILES_NEAR = (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503, -0.00417768164,
               0.246640727,
               1.50140941)  # fmt: skip
_GILES_FAR = (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047,
              1.00167406,
              2.83297682)  # fmt: skip


def _log_gamma_positive(x: Value) -> Value:
    """Stirling's series at x + 8, taken back by log of the product x (x+1) ... (x+7)."""
    product = x
    for i in range(1, 8):
        product = product * (x + float(i))
    z = x + 8.0
    r = 1.0 / (z * z)
    series = polynomial(r, (-691 / 360360, 1 / 1188, -1 / 1680, 1 / 1260, -1 / 360, 1 / 12)) / z
    return (z - 0.5) * F.log(z) - z + 0.5 * math.log(2 * math.pi) + series - F.log(product)


@aten("lgamma")
def lgamma(k: Lowering, x: Value) -> Value:
    return k.narrow(lgamma_of(k, k.wide(x)))


def lgamma_of(k: Lowering, wide: Value) -> Value:
    """Stirling's series above 1/2; below by reflection. Large arguments skip the product, which would overflow."""
    low = F.less(wide, 0.5)
    positive = F.where(low, 1.0 - wide, wide)
    huge = F.greater(positive, 1e4)
    moderate = F.where(huge, k.number(1, wide.dtype), positive)
    big = F.where(huge, positive, k.number(2, wide.dtype))
    stirling = (big - 0.5) * F.log(big) - big + 0.5 * math.log(2 * math.pi) + 1.0 / (big * 12.0)
    value = F.where(huge, stirling, _log_gamma_positive(moderate))
    fraction = wide - F.floor(wide)
    sine = F.abs(F.sin(F.where(low, fraction, k.number(0.5, wide.dtype)) * math.pi))
    return F.where(low, math.log(math.pi) - F.log(sine) - value, value)


@aten("digamma")
def digamma(k: Lowering, x: Value) -> Value:
    """Asymptotic series at x + 8 by recurrence; below zero by reflection; a pole at zero has infinity, others NaN."""
    wide = k.wide(x)
    low = F.less(wide, 0.0)
    z = F.where(low, 1.0 - wide, wide)
    result = z * 0.0
    for i in range(10):
        result = result - 1.0 / (z + float(i))
    z = z + 10.0
    r = 1.0 / (z * z)
    series = polynomial(r, (1 / 12, -691 / 32760, 1 / 132, -1 / 240, 1 / 252, -1 / 120, 1 / 12)) * r
    result = result + F.log(z) - 0.5 / z - series
    fraction = F.where(low, wide - F.trunc(wide), k.number(-0.5, wide.dtype))
    reflected = result - math.pi / F.tan(fraction * math.pi)
    value = F.where(low, F.where(F.equal(fraction, 0.0), k.number(math.nan, wide.dtype), reflected), result)
    return k.narrow(value)


@aten("polygamma")
def polygamma(k: Lowering, n: int, x: Value) -> Value:
    """(-1)^(n+1) n! zeta(n + 1, x), the Hurwitz zeta by Euler and Maclaurin; below 1/2 by reflection:

    polygamma(n, x) = (-1)^n polygamma(n, 1 - x) - pi d^n/dx^n cot(pi x).
    """
    if n == 0:
        return digamma(k, x)
    wide = k.wide(x)
    low = F.less(wide, 0.5)
    sign = float((-1) ** (n + 1))
    value = _hurwitz(F.where(low, 1.0 - wide, wide), n + 1) * (sign * math.factorial(n))
    below = F.where(low, wide - F.floor(wide), k.number(0.5, wide.dtype))
    cotangent = F.cos(below * math.pi) / F.sin(below * math.pi)
    reflected = value * -sign - polynomial(cotangent, _derivative_of_cotangent(n)) * math.pi ** (n + 1)
    value = F.where(low, reflected, value)
    pole = F.logical_and(F.less_equal(wide, 0.0), F.equal(wide, F.floor(wide)))
    return k.narrow(F.where(pole, k.number(math.inf * sign, wide.dtype), value))


def _derivative_of_cotangent(n: int) -> list[float]:
    """d^n/dy^n cot y as a polynomial of c = cot y, highest power first: each derivative multiplies dp/dc by -(1 + c^2)."""
    p = np.polynomial.Polynomial([0.0, 1.0])
    for _ in range(n):
        p = p.deriv() * np.polynomial.Polynomial([-1.0, 0.0, -1.0])
    return [float(c) for c in p.coef[::-1]]


def _hurwitz(x: Value, s: int) -> Value:
    """sum over i of (x + i)^-s."""

    def power(v: Value, n: int) -> Value:
        result = v
        for _ in range(n - 1):
            result = result * v
        return 1.0 / result

    terms = 12
    total = power(x, s)
    for i in range(1, terms):
        total = total + power(x + float(i), s)
    a = x + float(terms)
    total = total + (1.0 / power(a, 1)) * power(a, s) / float(s - 1) + power(a, s) * 0.5
    factor, bernoulli = float(s), (1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160)
    for i, b in enumerate(bernoulli):
        total = total + power(a, s + 1 + 2 * i) * (b * factor)
        factor *= (s + 2 * i + 1) * (s + 2 * i + 2)
    return total
