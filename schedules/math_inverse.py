"""float32 tangent, inverse trigonometric and inverse hyperbolic functions, in the manner of ``math_float32``."""

from __future__ import annotations

from tilegrad._base.tvm import tirx
from tilegrad.schedules.math_float32 import INF, Bind, Expr, f32, i32, log1p, magnitude, poly, quadrant, with_sign_of

_HALF_PI, _HALF_PI_LO = 1.57079637050628662109375, -4.371138828673793e-8
_PI, _PI_LO = 3.1415927410125732421875, -8.742277657347586e-8
_LN2 = 0.6931471805599453
_FAR = 2.0**40
"""Beyond it 1 is nothing beside x^2, whose square root would overflow later."""

_TAN = (
    0.33333349227905273, 0.13332676887512207, 0.05405867099761963, 0.02128765918314457, 0.010823366232216358,
    0.00010368525545345619, 0.004369916394352913,
)  # fmt: skip
_ATAN = (
    -0.33333298563957214, 0.1999853104352951, -0.14264050126075745, 0.10951154679059982, -0.08400376886129379,
    0.057904202491045, -0.031124059110879898, 0.01088548544794321, -0.00178706890437752,
)  # fmt: skip
_ASIN = (0.16666752099990845, 0.0749531015753746, 0.045469019562006, 0.024185502901673317, 0.04215701296925545)


def _odd(x: Expr, coefficients: tuple[float, ...], bind: Bind) -> Expr:
    """x + x^3 P(x^2)."""
    square = bind(x * x)
    return bind((x * square) * poly(square, coefficients) + x)


def tan(x: Expr, bind: Bind) -> Expr:
    """Tangent of any float32."""
    q, r = quadrant(x, bind)
    t = _odd(r, _TAN, bind)
    value = bind(tirx.Select(tirx.EQ(tirx.bitwise_and(q, i32(1)), i32(0)), t, f32(-1.0) / t))
    signed = tirx.reinterpret(
        "float32",
        tirx.bitwise_xor(tirx.reinterpret("int32", value), tirx.bitwise_and(tirx.reinterpret("int32", x), i32(-0x80000000))),
    )
    return tirx.Select(magnitude(x) < f32(INF), signed, f32(float("nan")))


def atan(x: Expr, bind: Bind) -> Expr:
    """Arc tangent; pi/2 less that of 1 / |x| beyond 1."""
    a = bind(magnitude(x))
    far = bind(a > f32(1.0))
    t = _odd(bind(tirx.Select(far, f32(1.0) / a, a)), _ATAN, bind)
    return with_sign_of(bind(tirx.Select(far, f32(_HALF_PI) - (t - f32(_HALF_PI_LO)), t)), x)


def atan2(y: Expr, x: Expr, bind: Bind) -> Expr:
    """The angle of the point (x, y), by the smaller coordinate's ratio to the larger and the octant."""
    ay, ax = bind(magnitude(y)), bind(magnitude(x))
    steep = bind(ay > ax)
    low, high = bind(tirx.Select(steep, ax, ay)), bind(tirx.Select(steep, ay, ax))
    equal = tirx.Select(tirx.EQ(high, f32(0.0)), f32(0.0), f32(1.0))
    t = _odd(bind(tirx.Select(tirx.EQ(low, high), equal, low / high)), _ATAN, bind)
    t = bind(tirx.Select(steep, f32(_HALF_PI) - (t - f32(_HALF_PI_LO)), t))
    left = tirx.reinterpret("int32", x) < i32(0)
    angle = bind(tirx.Select(left, f32(_PI) - (t - f32(_PI_LO)), t))
    return with_sign_of(angle, y)


def _asin_parts(x: Expr, bind: Bind) -> tuple[Expr, Expr]:
    """(|x| <= 1/2, t): t is the arc sine of |x| there, and of sqrt((1 - |x|) / 2) beyond."""
    a = bind(magnitude(x))
    near = bind(a <= f32(0.5))
    return near, _odd(bind(tirx.Select(near, a, tirx.sqrt((f32(1.0) - a) * f32(0.5)))), _ASIN, bind)


def asin(x: Expr, bind: Bind) -> Expr:
    """Arc sine; NaN outside [-1, 1]."""
    near, t = _asin_parts(x, bind)
    return with_sign_of(bind(tirx.Select(near, t, f32(_HALF_PI) - ((t + t) - f32(_HALF_PI_LO)))), x)


def acos(x: Expr, bind: Bind) -> Expr:
    """Arc cosine; NaN outside [-1, 1]."""
    near, t = _asin_parts(x, bind)
    left = bind(x < f32(0.0))
    signed = bind(tirx.Select(left, f32(0.0) - t, t))
    middle = f32(_HALF_PI) - (signed - f32(_HALF_PI_LO))
    return tirx.Select(near, middle, tirx.Select(left, f32(_PI) - ((t + t) - f32(_PI_LO)), t + t))


def asinh(x: Expr, bind: Bind) -> Expr:
    """log(a + sqrt(a^2 + 1)) as log1p(a + a^2 / (1 + sqrt(a^2 + 1)))."""
    a = bind(magnitude(x))
    far = bind(a > f32(_FAR))
    square = bind(a * a)
    inner = bind(tirx.Select(far, a, a + square / (f32(1.0) + tirx.sqrt(square + f32(1.0)))))
    return with_sign_of(bind(log1p(inner, bind) + tirx.Select(far, f32(_LN2), f32(0.0))), x)


def acosh(x: Expr, bind: Bind) -> Expr:
    """log1p(t + sqrt(t (t + 2))), t = x - 1; NaN below 1."""
    t = bind(x - f32(1.0))
    far = bind(x > f32(_FAR))
    inner = bind(tirx.Select(far, x, t + tirx.sqrt(t * (t + f32(2.0)))))
    value = log1p(inner, bind) + tirx.Select(far, f32(_LN2), f32(0.0))
    return tirx.Select(x < f32(1.0), f32(float("nan")), value)


def atanh(x: Expr, bind: Bind) -> Expr:
    """log1p(2 a / (1 - a)) / 2; NaN outside [-1, 1]."""
    a = bind(magnitude(x))
    return with_sign_of(bind(log1p(bind((a + a) / (f32(1.0) - a)), bind) * f32(0.5)), x)
