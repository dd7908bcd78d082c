"""Elementwise functions that Relax lacks, written in those it has: log1p, expm1, erfc, erfinv, lgamma, digamma, ..."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilegrad.frontend.pytorch.aten.pointwise import expm1_of
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


_I0_SMALL = (  # Cephes, i0.c: Chebyshev coefficients of exp(-x) I0(x) on [0, 8]
    -4.41534164647933937950e-18, 3.33079451882223809783e-17, -2.43127984654795469359e-16, 1.71539128555513303061e-15,
    -1.16853328779934516808e-14, 7.67618549860493561688e-14, -4.85644678311192946090e-13, 2.95505266312963983461e-12,
    -1.72682629144155570723e-11, 9.67580903537323691224e-11, -5.18979560163526290666e-10, 2.65982372468238665035e-9,
    -1.30002500998624804212e-8, 6.04699502254191894932e-8, -2.67079385394061173391e-7, 1.11738753912010371815e-6,
    -4.41673835845875056359e-6, 1.64484480707288970893e-5, -5.75419501008210370398e-5, 1.88502885095841655729e-4,
    -5.76375574538582365885e-4, 1.63947561694133579842e-3, -4.32430999505057594430e-3, 1.05464603945949983183e-2,
    -2.37374148058994688156e-2, 4.93052842396707084878e-2, -9.49010970480476444210e-2, 1.71620901522208775349e-1,
    -3.04682672343198398683e-1, 6.76795274409476084995e-1,
)  # fmt: skip
_I0_LARGE = (  # of exp(-x) sqrt(x) I0(x) on [8, inf)
    -7.23318048787475395456e-18, -4.83050448594418207126e-18, 4.46562142029675999901e-17, 3.46122286769746109310e-17,
    -2.82762398051658348494e-16, -3.42548561967721913462e-16, 1.77256013305652638360e-15, 3.81168066935262242075e-15,
    -9.55484669882830764870e-15, -4.15056934728722208663e-14, 1.54008621752140982691e-14, 3.85277838274214270114e-13,
    7.18012445138366623367e-13, -1.79417853150680611778e-12, -1.32158118404477131188e-11, -3.14991652796324136454e-11,
    1.18891471078464383424e-11, 4.94060238822496958910e-10, 3.39623202570838634515e-9, 2.26666899049817806459e-8,
    2.04891858946906374183e-7, 2.89137052083475648297e-6, 6.88975834691682398426e-5, 3.36911647825569408990e-3,
    8.04490411014108831608e-1,
)  # fmt: skip


def _chebyshev(x: Value, coefficients: Sequence[float]) -> Value:
    """Clenshaw's recurrence as in Cephes' chbevl."""
    b0, b1, b2 = x * 0.0 + coefficients[0], x * 0.0, x * 0.0
    for c in coefficients[1:]:
        b2, b1 = b1, b0
        b0 = x * b1 - b2 + c
    return (b0 - b2) * 0.5


@aten("i0")
def i0(k: Lowering, x: Value) -> Value:
    wide = F.abs(k.wide(x))
    small = F.less_equal(wide, 8.0)
    low, high = F.where(small, wide, k.number(8, wide.dtype)), F.where(small, k.number(8, wide.dtype), wide)
    value = F.where(small, _chebyshev(low * 0.5 - 2.0, _I0_SMALL), _chebyshev(32.0 / high - 2.0, _I0_LARGE) / F.sqrt(high))
    return k.narrow(F.exp(wide) * value)


@aten("erfc")
def erfc(k: Lowering, x: Value) -> Value:
    """1 - erf(x) where that keeps its digits; beyond 0.5 the continued fraction's rational form (Numerical Recipes, erfccheb)."""
    wide = k.wide(x)
    z = F.abs(wide)
    t = 2.0 / (z + 2.0)
    tail = t * F.exp(-z * z + _cheb(t * 4.0 - 2.0, _ERFC))
    tail = F.where(F.less(wide, 0.0), 2.0 - tail, tail)
    return k.narrow(F.where(F.less(z, 0.5), 1.0 - F.erf(wide), tail))


_ERFC = (
    -1.3026537197817094, 6.4196979235649026e-1, 1.9476473204185836e-2, -9.561514786808631e-3, -9.46595344482036e-4,
    3.66839497852761e-4, 4.2523324806907e-5, -2.0278578112534e-5, -1.624290004647e-6, 1.303655835580e-6, 1.5626441722e-8,
    -8.5238095915e-8, 6.529054439e-9, 5.059343495e-9, -9.91364156e-10, -2.27365122e-10, 9.6467911e-11, 2.394038e-12,
    -6.886027e-12, 8.94487e-13, 3.13092e-13, -1.12708e-13, 3.81e-16, 7.106e-15, -1.523e-15, -9.4e-17, 1.21e-16, -2.8e-17,
)  # fmt: skip


def _cheb(ty: Value, c: Sequence[float]) -> Value:
    """Numerical Recipes' Chebyshev sum, with its half first coefficient."""
    d, dd = ty * 0.0, ty * 0.0
    for value in reversed(c[1:]):
        d, dd = ty * d - dd + value, d
    return (ty * d + c[0]) * 0.5 - dd


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
    edge = F.where(F.equal(one, 1.0), wide * math.inf, k.number(math.nan, wide.dtype))
    return k.narrow(F.where(inside, y, edge))


_GILES_NEAR = (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503, -0.00417768164, 0.246640727,
               1.50140941)  # fmt: skip
_GILES_FAR = (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047, 1.00167406,
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
    """Stirling's series above 1/2; below by reflection. Large arguments skip the product, which would overflow."""
    wide = k.wide(x)
    low = F.less(wide, 0.5)
    positive = F.where(low, 1.0 - wide, wide)
    huge = F.greater(positive, 1e4)
    moderate = F.where(huge, k.number(1, wide.dtype), positive)
    big = F.where(huge, positive, k.number(2, wide.dtype))
    stirling = (big - 0.5) * F.log(big) - big + 0.5 * math.log(2 * math.pi) + 1.0 / (big * 12.0)
    value = F.where(huge, stirling, _log_gamma_positive(moderate))
    fraction = wide - F.floor(wide)
    sine = F.abs(F.sin(F.where(low, fraction, k.number(0.5, wide.dtype)) * math.pi))
    return k.narrow(F.where(low, math.log(math.pi) - F.log(sine) - value, value))


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
    """(-1)^(n+1) n! zeta(n + 1, x) for positive x, the Hurwitz zeta by Euler and Maclaurin."""
    if n == 0:
        return digamma(k, x)
    wide = k.wide(x)
    value = _hurwitz(wide, n + 1) * float((-1) ** (n + 1) * math.factorial(n))
    if n == 1:  # trigamma's reflection serves negative arguments
        low = F.less(wide, 0.5)
        sine = F.sin(F.where(low, wide, k.number(0.5, wide.dtype)) * math.pi)
        value = F.where(low, math.pi**2 / (sine * sine) - _hurwitz(F.where(low, 1.0 - wide, wide), 2), value)
    else:
        value = F.where(F.less_equal(wide, 0.0), k.number(math.nan, wide.dtype), value)
    return k.narrow(value)


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
