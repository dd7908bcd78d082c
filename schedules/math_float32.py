"""float32 mathematics as straight-line arithmetic that vectorises: no calls, no tables, no branches.

Every function takes TIR expressions and ``bind``, which names a subexpression that is used more than once. The
polynomials are minimax fits of this project (Lawson's algorithm on Chebyshev nodes in 40 digits, coefficients rounded
to float32 one by one, the rest refitted). Errors are within 4 ulp over the whole domain and NaN, infinities, signed
zeros and denormals come out as in C99's Annex F (tests/schedules/test_math.py). Only +, -, *, /, comparisons, integer
operations and bit casts are used, each rounded as IEEE 754 says, so the bits depend on nothing but the
target's use of fused multiply-add.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilegrad._base.tvm import tirx

Expr = Any
Bind = Callable[[Expr], Expr]

INF = float("inf")
_ROUND = 12582912.0  # 1.5 * 2^23: adding it leaves the nearest integer in the low bits of the mantissa
_ROUND_BITS = 0x4B400000
_LOG2_E = 1.4426950408889634
_LN2_HI, _LN2_LO = 0.693359375, -2.12194440e-4  # the first has 9 bits: products with exponents are exact
_LN2 = 0.6931471805599453


def f32(value: float) -> Expr:
    """A float32 constant."""
    return tirx.const(value, "float32")


def i32(value: int) -> Expr:
    """An int32 constant."""
    return tirx.const(value, "int32")


def _bits(x: Expr) -> Expr:
    return tirx.reinterpret("int32", x)


def _float(bits: Expr) -> Expr:
    return tirx.reinterpret("float32", bits)


def poly(x: Expr, coefficients: Sequence[float], const: Callable[[float], Expr] = f32) -> Expr:
    """Horner's rule; coefficients from the constant term up."""
    value = const(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        value = value * x + const(c)
    return value


def magnitude(x: Expr) -> Expr:
    """|x|."""
    return _float(tirx.bitwise_and(_bits(x), i32(0x7FFFFFFF)))


def with_sign_of(size: Expr, x: Expr) -> Expr:
    """``size``, which is not negative, with the sign of ``x``."""
    return _float(tirx.bitwise_or(_bits(size), tirx.bitwise_and(_bits(x), i32(-0x80000000))))


def _clamp(x: Expr, low: float, high: float, bind: Bind, const: Callable[[float], Expr] = f32) -> Expr:
    """``x`` within bounds; NaN stays."""
    x = bind(tirx.Select(x > const(high), const(high), x))
    return bind(tirx.Select(x < const(low), const(low), x))


_EXP = (0.4999999403953552, 0.1666652113199234, 0.04166826233267784, 0.00836867094039917, 0.001382104237563908)


def _reduce_exp(x: Expr, bind: Bind) -> tuple[Expr, Expr]:
    """(n, r) with x = n ln 2 + r, |r| <= ln 2 / 2, n an int32."""
    n = bind(_bits(x * f32(_LOG2_E) + f32(_ROUND)) - i32(_ROUND_BITS))
    whole = bind(tirx.Cast("float32", n))
    r = bind((x - whole * f32(_LN2_HI)) - whole * f32(_LN2_LO))
    return n, r


def _times_two_to(y: Expr, n: Expr, bind: Bind) -> Expr:
    """y 2^n for |n| <= 250 in two exact steps, so that only a denormal or infinite result rounds."""
    half = bind(tirx.shift_right(n, i32(1)))
    first = _float(tirx.shift_left(half + i32(127), i32(23)))
    second = _float(tirx.shift_left(n - half + i32(127), i32(23)))
    return (y * first) * second


def exp(x: Expr, bind: Bind) -> Expr:
    """e^x."""
    x = _clamp(x, -104.0, 89.0, bind)
    n, r = _reduce_exp(x, bind)
    return _times_two_to(bind((r * r) * poly(r, _EXP) + r + f32(1.0)), n, bind)


def exp2(x: Expr, bind: Bind) -> Expr:
    """2^x."""
    x = _clamp(x, -151.0, 129.0, bind)
    n = bind(_bits(x + f32(_ROUND)) - i32(_ROUND_BITS))
    r = bind((x - tirx.Cast("float32", n)) * f32(_LN2))
    return _times_two_to(bind((r * r) * poly(r, _EXP) + r + f32(1.0)), n, bind)


def expm1(x: Expr, bind: Bind) -> Expr:
    """e^x - 1 without cancellation at 0."""
    clamped = _clamp(x, -104.0, 89.0, bind)
    n, r = _reduce_exp(clamped, bind)
    coefficients = (
        0.5,
        0.1666666567325592,
        0.04166649281978607,
        0.008333545178174973,
        0.0013932321453467011,
        0.00019762459851335734,
    )
    small = bind((r * r) * poly(r, coefficients) + r)
    # 2^(n-1), doubled at the end: 2^128 has no float32. Below 2^-31 the first term no longer counts.
    scale = bind(_float(tirx.shift_left(tirx.max(n, i32(-30)) + i32(126), i32(23))))
    value = bind(small * scale + (scale - f32(0.5)))
    return tirx.Select(tirx.EQ(n, i32(0)), tirx.Select(tirx.EQ(x, f32(0.0)), x, small), value + value)


_LOG = (
    0.3333333432674408, -0.24999825656414032, 0.19999681413173676, -0.16679364442825317, 0.14302723109722137,
    -0.12198442220687866, 0.1076941043138504, -0.12834492325782776, 0.11959315836429596,
)  # fmt: skip
_LOG1P = (
    0.3333333134651184, -0.2500002086162567, 0.2000032365322113, -0.1666562408208847, 0.14270159602165222,
    -0.12498608976602554, 0.11382673680782318, -0.10553881525993347, 0.0803196057677269, -0.031706854701042175,
)  # fmt: skip


def _split_log(x: Expr, bind: Bind) -> tuple[Expr, Expr]:
    """(e, f) with x = 2^e (1 + f), f in [-1/3, 1/3], for positive finite x; e is a float32."""
    tiny = bind(x < f32(1.17549435e-38))
    bits = bind(_bits(bind(tirx.Select(tiny, x * f32(8388608.0), x))))
    raised = bind(tirx.bitwise_and(bits - i32(0x3F2AAAAB), i32(-0x00800000)))  # e 2^23; 0x3F2AAAAB is 2/3
    e = tirx.Cast("float32", tirx.shift_right(raised, i32(23)))
    return bind(tirx.Select(tiny, e - f32(23.0), e)), bind(_float(bits - raised) - f32(1.0))


def _log_edges(x: Expr, value: Expr) -> Expr:
    """``value``, or what the logarithm is outside the positive finite numbers."""
    outside = tirx.Select(tirx.EQ(x, f32(0.0)), f32(-INF), tirx.Select(x > f32(0.0), x, f32(float("nan"))))
    return tirx.Select(tirx.And(x > f32(0.0), x < f32(INF)), value, outside)


def log(x: Expr, bind: Bind) -> Expr:
    """Natural logarithm."""
    e, f = _split_log(x, bind)
    square = bind(f * f)
    tail = bind((square * f) * poly(f, _LOG) + (square * f32(-0.5) + e * f32(_LN2_LO)))
    return _log_edges(x, bind((tail + f) + e * f32(_LN2_HI)))


def log2(x: Expr, bind: Bind) -> Expr:
    """Logarithm to base 2."""
    e, f = _split_log(x, bind)
    square = bind(f * f)
    tail = bind((square * f) * poly(f, _LOG) + square * f32(-0.5))
    # log2(e) = 1 + 0.4427: the whole part multiplies exactly
    return _log_edges(x, bind(((tail * f32(0.44269504) + f * f32(0.44269504)) + tail) + f + e))


def log10(x: Expr, bind: Bind) -> Expr:
    """Logarithm to base 10."""
    e, f = _split_log(x, bind)
    square = bind(f * f)
    natural = bind(((square * f) * poly(f, _LOG) + square * f32(-0.5)) + f)
    return _log_edges(x, bind(natural * f32(0.4342944819) + e * f32(4.605038981e-6) + e * f32(0.30102539)))


def log1p(x: Expr, bind: Bind) -> Expr:
    """log(1 + x), accurate near 0."""
    raised = bind(tirx.bitwise_and(_bits(x + f32(1.0)) - i32(0x3F400000), i32(-0x00800000)))
    e = bind(tirx.Cast("float32", tirx.shift_right(raised, i32(23))))
    # 2^-e (1 + x) - 1 from its two parts; 2^-e as a quarter of 2^(2-e), which is always normal
    rest = bind(_float(i32(0x40800000) - raised) * f32(0.25) - f32(1.0))
    f = bind(_float(_bits(x) - raised) + rest)
    square = bind(f * f)
    tail = bind((square * f) * poly(f, _LOG1P) + (square * f32(-0.5) + e * f32(_LN2_LO)))
    value = bind((tail + f) + e * f32(_LN2_HI))
    outside = tirx.Select(tirx.EQ(x, f32(-1.0)), f32(-INF), tirx.Select(x > f32(0.0), x, f32(float("nan"))))
    inside = tirx.And(x > f32(-1.0), x < f32(INF))
    return tirx.Select(inside, tirx.Select(tirx.EQ(x, f32(0.0)), x, value), outside)


_EXP2 = (0.6931470036506653, 0.24022243916988373, 0.05550704151391983, 0.009671428240835667, 0.0013272454962134361)


def _exp2_bounded(y: Expr, bind: Bind) -> Expr:
    """2^y within 2^-23, for |y| <= 126 only: no edges to mind, and the power is added to the exponent's bits."""
    shifted = bind(y + f32(_ROUND))
    r = bind(y - (shifted - f32(_ROUND)))
    near_one = bind(r * poly(r, _EXP2) + f32(1.0))
    return _float(_bits(near_one) + tirx.shift_left(_bits(shifted), i32(23)))


def tanh(x: Expr, bind: Bind) -> Expr:
    """Hyperbolic tangent: x + x^3 P(x^2) near 0, 1 - 2 / (e^(2|x|) + 1) beyond 0.6."""
    a = bind(magnitude(x))
    coefficients = (-0.33333298563957214, 0.13331936299800873, -0.05378471687436104, 0.02079862542450428, -0.005897966679185629)
    square = bind(a * a)
    small = a + (a * square) * poly(square, coefficients)
    power = _exp2_bounded(bind(tirx.min(a, f32(10.0)) * f32(2 * _LOG2_E)), bind)
    large = f32(1.0) - f32(2.0) / (power + f32(1.0))
    return with_sign_of(bind(tirx.Select(a >= f32(0.6), large, small)), x)


def sinh(x: Expr, bind: Bind) -> Expr:
    """(t + t / (t + 1)) / 2 with t = e^|x| - 1; from the square of e^(|x|/2) where e^|x| itself would overflow."""
    a = bind(magnitude(x))
    t = bind(expm1(bind(tirx.min(a, f32(40.0))), bind))
    h = bind(exp(bind(a * f32(0.5)), bind))
    return with_sign_of(bind(tirx.Select(a < f32(20.0), (t + t / (t + f32(1.0))) * f32(0.5), (h * f32(0.5)) * h)), x)


def cosh(x: Expr, bind: Bind) -> Expr:
    """(e^|x| + e^-|x|) / 2, from h = e^(|x|/2) so that nothing overflows before the result does."""
    h = bind(exp(bind(magnitude(x) * f32(0.5)), bind))
    return (h * f32(0.5)) * h + f32(0.5) / (h * h)


def sigmoid(x: Expr, bind: Bind) -> Expr:
    """1 / (1 + e^-x), with e^-|x| so that the small side keeps its denormals."""
    e = bind(exp(bind(f32(0.0) - magnitude(x)), bind))
    value = tirx.Select(x < f32(0.0), e, f32(1.0)) / (e + f32(1.0))
    return value


def erf(x: Expr, bind: Bind) -> Expr:
    """The error function: x (1 + P(x^2)) near 0, 1 - 2^(|x| Q(|x|)) beyond 0.6, 1 beyond 4."""
    a = bind(magnitude(x))
    near = (0.12837915122509003, -0.3761245012283325, 0.11280116438865662, -0.026608306914567947, 0.004459105432033539)
    far = (
        -1.6280912160873413, -0.9172216057777405, -0.15170276165008545, 0.032874953001737595, -0.004574531689286232,
        0.00029851801809854805,
    )  # fmt: skip
    small = a * poly(bind(a * a), near) + a
    bounded = bind(tirx.min(a, f32(4.0)))
    large = f32(1.0) - _exp2_bounded(bind(bounded * poly(bounded, far)), bind)
    return with_sign_of(bind(tirx.Select(a >= f32(0.6), large, small)), x)


def quadrant(x: Expr, bind: Bind) -> tuple[Expr, Expr]:
    """(q, r): |x| = (q + 4 k) pi/2 + r, |r| <= pi/4; Payne and Hanek's reduction in integers, exact for every float32.

    The 96 bits of 2/pi that matter for this exponent, times the 24-bit mantissa, modulo 4.
    """
    table = (0, 0xA2F9836E, 0x4E441529, 0xFC2757D1, 0xF534DDC0, 0xDB629599, 0x3C439041, 0xFE5163AB)
    bits = bind(_bits(magnitude(x)))
    position = bind(tirx.max(tirx.shift_right(bits, i32(23)) - i32(120), i32(0)))
    word = bind(tirx.shift_right(position, i32(5)))
    shift = bind(tirx.Cast("uint32", tirx.bitwise_and(position, i32(31))))
    mantissa = bind(tirx.Cast("uint64", tirx.bitwise_or(tirx.bitwise_and(bits, i32(0x007FFFFF)), i32(0x00800000))))
    u32 = lambda v: tirx.const(v, "uint32")  # noqa: E731

    def entry(k: int) -> Expr:
        value = u32(table[k + 4])
        for w in (3, 2, 1, 0):
            value = tirx.Select(tirx.EQ(word, i32(w)), u32(table[k + w]), value)
        return bind(value)

    entries = [entry(k) for k in range(4)]
    keep = bind(tirx.EQ(shift, u32(0)))

    def window(k: int) -> Expr:
        carried = tirx.shift_right(entries[k + 1], tirx.bitwise_and(u32(32) - shift, u32(31)))
        joined = tirx.bitwise_or(tirx.shift_left(entries[k], shift), carried)
        return tirx.Cast("uint64", tirx.Select(keep, entries[k], joined))

    high = tirx.shift_left(mantissa * window(0), tirx.const(32, "uint64"))
    low = tirx.shift_right(mantissa * window(2), tirx.const(32, "uint64"))
    turn = bind(tirx.Cast("int64", bind(high + mantissa * window(1) + low)))
    i64 = lambda v: tirx.const(v, "int64")  # noqa: E731
    quarter = bind(tirx.shift_right(turn + i64(1 << 61), i64(62)))
    rest = bind(turn - tirx.shift_left(quarter, i64(62)))
    top = tirx.Cast("float64", tirx.Cast("int32", tirx.shift_right(rest, i64(32))))
    bottom = tirx.Cast("float64", tirx.Cast("int32", tirx.bitwise_and(tirx.shift_right(rest, i64(1)), i64(0x7FFFFFFF))))
    f64 = lambda v: tirx.const(v, "float64")  # noqa: E731
    half_pi = 1.5707963267948966
    angle = tirx.Cast("float32", top * f64(half_pi / 2**30) + bottom * f64(half_pi / 2**61))
    near = bind(magnitude(x) < f32(0.78539816))
    q = tirx.Select(near, i32(0), tirx.bitwise_and(tirx.Cast("int32", quarter), i32(3)))
    return bind(q), bind(tirx.Select(near, magnitude(x), angle))


def _sin_cos(r: Expr, bind: Bind) -> tuple[Expr, Expr]:
    square = bind(r * r)
    sine = (r * square) * poly(
        square, (-0.1666666716337204, 0.008333379402756691, -0.00019853086268994957, 2.832952077369555e-06)
    ) + r
    cosine = (square * square) * poly(square, (0.04166664555668831, -0.0013887310633435845, 2.4432552891084924e-05))
    return bind(sine), bind((cosine - square * f32(0.5)) + f32(1.0))


def sin(x: Expr, bind: Bind) -> Expr:
    """Sine of any float32."""
    q, r = quadrant(x, bind)
    sine, cosine = _sin_cos(r, bind)
    value = bind(tirx.Select(tirx.EQ(tirx.bitwise_and(q, i32(1)), i32(0)), sine, cosine))
    sign = tirx.bitwise_xor(tirx.shift_left(tirx.bitwise_and(q, i32(2)), i32(30)), tirx.bitwise_and(_bits(x), i32(-0x80000000)))
    return tirx.Select(magnitude(x) < f32(INF), _float(tirx.bitwise_xor(_bits(value), sign)), f32(float("nan")))


def cos(x: Expr, bind: Bind) -> Expr:
    """Cosine of any float32."""
    q, r = quadrant(x, bind)
    sine, cosine = _sin_cos(r, bind)
    value = bind(tirx.Select(tirx.EQ(tirx.bitwise_and(q, i32(1)), i32(0)), cosine, sine))
    sign = tirx.shift_left(tirx.bitwise_and(q + i32(1), i32(2)), i32(30))
    return tirx.Select(magnitude(x) < f32(INF), _float(tirx.bitwise_xor(_bits(value), sign)), f32(float("nan")))


_LOG2_D = (2.8853900817778473, 0.9617966941131115, 0.5770779424445102, 0.4122092435203337, 0.3199060857245889, 0.282894296039459)
_EXP2_D = (
    0.9999999999997624, 0.6931471805465148, 0.24022650698880837, 0.05550410939340831, 0.009618128542758356,
    0.0013333452062882153, 0.00015403851814215982, 1.5309737282325278e-05, 1.3175844956205517e-06,
)  # fmt: skip


def pow(x: Expr, y: Expr, bind: Bind) -> Expr:
    """x^y by 2^(y log2 |x|) in float64 inside, so that the error of the logarithm does not grow with y."""
    f64 = lambda v: tirx.const(v, "float64")  # noqa: E731
    a = bind(magnitude(x))
    e, f = _split_log(a, bind)
    f = bind(tirx.Cast("float64", f))
    s = bind(f / (f + f64(2.0)))
    logarithm = bind(s * poly(bind(s * s), _LOG2_D, f64) + tirx.Cast("float64", e))
    edge = tirx.Select(tirx.EQ(a, f32(0.0)), f64(-INF), tirx.Cast("float64", a))  # log2 of 0, inf, NaN
    logarithm = tirx.Select(tirx.And(a > f32(0.0), a < f32(INF)), logarithm, edge)
    t = _clamp(bind(logarithm * tirx.Cast("float64", y)), -200.0, 200.0, bind, f64)
    n = bind(tirx.Cast("int32", tirx.reinterpret("int64", t + f64(6755399441055744.0))))  # 1.5 * 2^52: the low word is n
    fraction = bind(t - tirx.Cast("float64", n))
    scale = tirx.reinterpret("float64", tirx.shift_left(tirx.Cast("int64", n + i32(1023)), tirx.const(52, "int64")))
    size = bind(tirx.Cast("float32", poly(fraction, _EXP2_D, f64) * scale))
    # the sign, and where the result is not a number, depend on whether y is whole and odd
    whole = bind(_is_whole(y, bind))
    odd = tirx.And(whole, tirx.Not(_is_whole(bind(y * f32(0.5)), bind)))
    negative = bind(_bits(x) < i32(0))
    signed = bind(tirx.Select(tirx.And(negative, odd), _float(tirx.bitwise_xor(_bits(size), i32(-0x80000000))), size))
    undefined = tirx.And(tirx.And(x < f32(0.0), tirx.Not(whole)), x > f32(-INF))
    result = bind(tirx.Select(undefined, f32(float("nan")), signed))
    # |x| = 1 and an infinite y is 1; 1^y and x^0 are 1 whatever the other is
    infinite = tirx.And(tirx.EQ(a, f32(1.0)), tirx.EQ(magnitude(y), f32(INF)))
    one = tirx.Or(tirx.Or(tirx.EQ(x, f32(1.0)), tirx.EQ(y, f32(0.0))), infinite)
    return tirx.Select(one, f32(1.0), result)


def _is_whole(y: Expr, bind: Bind) -> Expr:
    """Whether y is an integer; every |y| >= 2^23 is, infinity included. (NaN counts as one.)"""
    a = bind(magnitude(y))
    small = bind(tirx.Select(a < f32(8388608.0), a, f32(0.0)))
    return tirx.EQ(tirx.Cast("float32", tirx.Cast("int32", small)), small)
