"""float32 remainder of a truncated division (C's fmod), exactly, in straight-line arithmetic that vectorises."""

from __future__ import annotations

from tilegrad._base.tvm import tirx
from tilegrad.schedules.math_float32 import Bind, Expr, magnitude, with_sign_of

_BITS = 28
"""Quotient bits a step: times a divisor of 24 bits they fit float64's 53, so that no product rounds."""
_STEPS = 10
"""The quotient of two float32 is below 2^277 = 2^(28 * 9 + 25)."""
_ROUND = 6755399441055744.0  # 1.5 * 2^52: adding it rounds a float64 below 2^51 to an integer


def fmod(x: Expr, y: Expr, bind: Bind) -> Expr:
    """x - y trunc(x / y) with the sign of x; NaN for an infinite x or y = 0, x for an infinite y.

    Long division in float64 by y 2^252, y 2^224, ..., y. Every partial remainder is a multiple of the smaller last place of
    x and y and no larger than both x and the divisor: it has at most 25 bits and is exact. Quotients are rounded to the
    nearest, so a remainder may be negative until the end.
    """
    f64 = lambda v: tirx.const(v, "float64")  # noqa: E731
    a, d = bind(magnitude(x)), bind(magnitude(y))
    rest, divisor = bind(tirx.Cast("float64", a)), bind(tirx.Cast("float64", d))
    inverse = bind(f64(1.0) / divisor)
    for k in reversed(range(_STEPS)):
        shifted = bind(rest * (inverse * f64(2.0 ** (-_BITS * k))) + f64(_ROUND))
        quotient = bind(shifted - f64(_ROUND))
        rest = bind(rest - quotient * (divisor * f64(2.0 ** (_BITS * k))))
    size = tirx.Cast("float32", tirx.Select(rest < f64(0.0), rest + divisor, rest))
    return tirx.Select(a < d, x, with_sign_of(bind(size), x))
