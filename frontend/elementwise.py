"""Elementwise functions of Tensors, NumPy arrays and Python numbers."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tilegrad._base.errors import DTypeError, UsageError
from tilegrad.frontend import dtypes
from tilegrad.frontend.apply import apply, as_tensor, cast, node_of, operands, wrap
from tilegrad.frontend.recording import FLOATS, Node, const, fail_line, record

if TYPE_CHECKING:
    from tilegrad.frontend.tensor import Tensor


def detach(x: Any) -> Tensor:
    """The same values, through which no gradient flows."""
    return as_tensor(x).detach()


_Binary = Callable[[Any, Any], "Tensor"]


def _binary(op: str, doc: str, floats: bool = False) -> _Binary:
    def f(a: Any, b: Any) -> Tensor:
        return wrap(record(op, operands(a, b, floats)))

    f.__name__ = f.__qualname__ = op
    f.__doc__ = doc + " Shapes broadcast, dtypes promote as PyTorch's do."
    return f


def _arithmetic(op: str, doc: str, of_bools: str | None) -> _Binary:
    """Of two booleans it is ``of_bools``, or a DTypeError."""

    def f(a: Any, b: Any) -> Tensor:
        nodes = operands(a, b)
        if nodes[0].type.dtype != "bool":
            return wrap(record(op, nodes))
        if of_bools is None:
            raise DTypeError(fail_line() + op, "two booleans", "numbers", "Use ^ or != of booleans, or astype first.")
        return wrap(record(of_bools, nodes))

    f.__name__ = f.__qualname__ = op
    f.__doc__ = doc + " Shapes broadcast, dtypes promote as PyTorch's do."
    return f


def _comparison(op: str, doc: str) -> _Binary:
    """Numbers beyond the array's whole numbers are compared as they are."""

    def f(a: Any, b: Any) -> Tensor:
        for x, number in ((a, b), (b, a)):
            if isinstance(number, builtins.int) and hasattr(x, "_node") and not dtypes.fits(number, x.dtype):
                wide = "int64" if dtypes.fits(number, "int64") else "float64"
                a, b = (wrap(cast(node_of(v), wide)) if v is x else v for v in (a, b))
                break
        return wrap(record(op, operands(a, b)))

    f.__name__ = f.__qualname__ = op
    f.__doc__ = doc + " Shapes broadcast, dtypes promote as PyTorch's do."
    return f


def _logical(name: str, doc: str) -> _Binary:
    def f(a: Any, b: Any) -> Tensor:
        na, nb = (cast(node_of(v), "bool") for v in (a, b))
        return wrap(record(f"logical_{name}", (na, nb)))

    f.__name__ = f.__qualname__ = f"logical_{name}"
    f.__doc__ = doc + " Shapes broadcast."
    return f


def _bitwise(name: str, sign: str) -> _Binary:
    def f(a: Any, b: Any) -> Tensor:
        na, nb = operands(a, b)
        if na.type.dtype in FLOATS:
            raise DTypeError(fail_line() + f"bitwise_{name}", na.type.dtype, "whole numbers or booleans")
        return wrap(record(f"{'logical' if na.type.dtype == 'bool' else 'bitwise'}_{name}", (na, nb)))

    f.__name__ = f.__qualname__ = f"bitwise_{name}"
    f.__doc__ = f"``a {sign} b`` of whole numbers; logical for booleans."
    return f


add = _arithmetic("add", "``a + b``; either, of booleans.", "logical_or")
subtract = _arithmetic("subtract", "``a - b``.", None)
multiply = _arithmetic("multiply", "``a * b``; both, of booleans.", "logical_and")
divide = _binary("divide", "``a / b``; whole numbers give float32.", floats=True)
floor_divide = _arithmetic("floor_divide", "``floor(a / b)``.", None)
remainder = _arithmetic("floor_mod", "``a - b * floor(a / b)``, the sign of ``b``.", None)
maximum = _arithmetic("maximum", "The larger of the two; at ties half the gradient to each.", "logical_or")
minimum = _arithmetic("minimum", "The smaller of the two; at ties half the gradient to each.", "logical_and")
atan2 = _binary("atan2", "The angle of the point ``(b, a)``.", floats=True)
equal = _comparison("equal", "``a == b``, boolean.")
not_equal = _comparison("not_equal", "``a != b``, boolean.")
less = _comparison("less", "``a < b``, boolean.")
less_equal = _comparison("less_equal", "``a <= b``, boolean.")
greater = _comparison("greater", "``a > b``, boolean.")
greater_equal = _comparison("greater_equal", "``a >= b``, boolean.")
logical_and = _logical("and", "Both true (not zero).")
logical_or = _logical("or", "Either true (not zero).")
logical_xor = _logical("xor", "Exactly one true (not zero).")
bitwise_and, bitwise_or, bitwise_xor = _bitwise("and", "&"), _bitwise("or", "|"), _bitwise("xor", "^")
right_shift = _binary("right_shift", "``a >> b`` of whole numbers.")
left_shift = _binary("left_shift", "``a << b`` of whole numbers.")


def bitwise_not(x: Any) -> Tensor:
    """``~x``; logical for booleans."""
    n = node_of(x)
    return wrap(record("logical_not" if n.type.dtype == "bool" else "bitwise_not", (n,)))


_power = _arithmetic("power", "``a ** b``.", None)


def power(a: Any, b: Any) -> Tensor:
    """``a ** b``. Small whole exponents multiply, 0.5 is a square root, -1 a reciprocal."""
    if type(b) in (builtins.int, builtins.float) and hasattr(a, "_node") and a.dtype != "bool":
        if b == 2:
            return multiply(a, a)
        if b == 1:
            return a
        if b == 3:
            return multiply(multiply(a, a), a)
        if b == 0.5 and a.dtype in FLOATS:
            return sqrt(a)
        if b == -1 and a.dtype in FLOATS:
            return divide(1.0, a)
        if b == -0.5 and a.dtype in FLOATS:
            return rsqrt(a)
    if isinstance(b, builtins.int) and b < 0 and hasattr(a, "_node") and a.dtype not in FLOATS:
        raise DTypeError(
            fail_line() + "power", f"{a.dtype} to the power of {b}", "an exponent of 0 or more", "Convert to a float."
        )
    return _power(a, b)


def _unary(op: str, doc: str, floats: bool = True) -> Callable[[Any], Tensor]:
    def f(x: Any) -> Tensor:
        node = node_of(x)
        if floats and node.type.dtype not in FLOATS:
            node = cast(node, "float32")
        return wrap(record(op, (node,)))

    f.__name__ = f.__qualname__ = op
    f.__doc__ = doc
    return f


exp = _unary("exp", "e to the power of ``x``.")
log = _unary("log", "Natural logarithm.")
sqrt = _unary("sqrt", "Square root.")
rsqrt = _unary("rsqrt", "One over the square root.")
sin, cos, tan = _unary("sin", "Sine."), _unary("cos", "Cosine."), _unary("tan", "Tangent.")
asin, acos, atan = _unary("asin", "Inverse sine."), _unary("acos", "Inverse cosine."), _unary("atan", "Inverse tangent.")
sinh, cosh, tanh = _unary("sinh", "Hyperbolic sine."), _unary("cosh", "Hyperbolic cosine."), _unary("tanh", "Hyperbolic tangent.")
asinh, acosh, atanh = (
    _unary("asinh", "Inverse of sinh."),
    _unary("acosh", "Inverse of cosh."),
    _unary("atanh", "Inverse of tanh."),
)
sigmoid = _unary("sigmoid", "``1 / (1 + exp(-x))``.")
erf = _unary("erf", "The error function.")
relu = _unary("relu", "``max(x, 0)``; gradient 0 at 0.")
silu = _unary("silu", "``x * sigmoid(x)``.")
abs = _unary("abs", "Absolute value; gradient 0 at 0.", floats=False)
negative = _unary("negative", "``-x``.", floats=False)
sign = _unary("sign", "-1, 0 or 1.", floats=False)
square = _unary("square", "``x * x``.", floats=False)
floor, ceil = _unary("floor", "Round down."), _unary("ceil", "Round up.")
round, trunc = _unary("round", "Round to nearest, ties to even."), _unary("trunc", "Round towards zero.")
isnan, isinf, isfinite = (
    _unary("isnan", "Is NaN."),
    _unary("isinf", "Is infinite."),
    _unary("isfinite", "Is neither NaN nor infinite."),
)


def logical_not(x: Any) -> Tensor:
    """Whether it is zero (false)."""
    return wrap(record("logical_not", (cast(node_of(x), "bool"),)))


def clip(x: Any, low: builtins.float | None = None, high: builtins.float | None = None) -> Tensor:
    """Values below ``low`` become ``low``, above ``high`` become ``high``; gradient 1 inside, bounds included."""
    if low is None and high is None:
        raise UsageError(fail_line() + "clip", "neither bound", "low, high or both")
    if (low is None or high is None) and as_tensor(x).dtype not in FLOATS:
        return minimum(x, high) if low is None else maximum(x, low)
    low, high = -math.inf if low is None else low, math.inf if high is None else high
    return apply("clip", x, attrs=(builtins.float(low), builtins.float(high)))


def where(condition: Any, a: Any, b: Any) -> Tensor:
    """``a`` where the condition is true, ``b`` elsewhere. Shapes broadcast."""
    number = (builtins.bool, builtins.int, builtins.float)
    if isinstance(a, number) and isinstance(b, number):
        na: Node = const(a, dtypes.scalar_dtype(a, "bool"))
        dtype = dtypes.scalar_dtype(b, na.type.dtype)
        na, nb = const(a, dtype), const(b, dtype)
    else:
        na, nb = operands(a, b)
    return wrap(record("where", (node_of(condition), na, nb)))


def astype(x: Any, dtype: Any) -> Tensor:
    """``x`` in another dtype."""
    x = as_tensor(x)
    name = dtypes.name_of(dtype)
    return x if x.dtype == name else wrap(cast(node_of(x), name))
