"""Elementwise functions of Tensors, NumPy arrays and Python numbers."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tilegrad._base.errors import UsageError
from tilegrad.frontend import dtypes
from tilegrad.frontend.apply import apply, as_tensor, cast, node_of, operands, wrap
from tilegrad.frontend.recording import FLOATS, Node, const, fail_line, record

if TYPE_CHECKING:
    from tilegrad.frontend.tensor import Tensor


def detach(x: Any) -> Tensor:
    """The same values, through which no gradient flows."""
    return as_tensor(x).detach()


def _binary(op: str, doc: str, floats: bool = False) -> Callable[[Any, Any], Tensor]:
    def f(a: Any, b: Any) -> Tensor:
        return wrap(record(op, operands(a, b, floats)))

    f.__name__ = f.__qualname__ = op
    f.__doc__ = doc + " Shapes broadcast, dtypes promote as PyTorch's do."
    return f


add = _binary("add", "``a + b``.")
subtract = _binary("subtract", "``a - b``.")
multiply = _binary("multiply", "``a * b``.")
divide = _binary("divide", "``a / b``; whole numbers give float32.", floats=True)
floor_divide = _binary("floor_divide", "``floor(a / b)``.")
remainder = _binary("floor_mod", "``a - b * floor(a / b)``, the sign of ``b``.")
maximum = _binary("maximum", "The larger of the two; at ties half the gradient to each.")
minimum = _binary("minimum", "The smaller of the two; at ties half the gradient to each.")
atan2 = _binary("atan2", "The angle of the point ``(b, a)``.", floats=True)
equal = _binary("equal", "``a == b``, boolean.")
not_equal = _binary("not_equal", "``a != b``, boolean.")
less = _binary("less", "``a < b``, boolean.")
less_equal = _binary("less_equal", "``a <= b``, boolean.")
greater = _binary("greater", "``a > b``, boolean.")
greater_equal = _binary("greater_equal", "``a >= b``, boolean.")
logical_and = _binary("logical_and", "Both true.")
logical_or = _binary("logical_or", "Either true.")
logical_xor = _binary("logical_xor", "Exactly one true.")
bitwise_xor = _binary("bitwise_xor", "``a ^ b``.")
right_shift = _binary("right_shift", "``a >> b`` of whole numbers.")
left_shift = _binary("left_shift", "``a << b`` of whole numbers.")


def bitwise_and(a: Any, b: Any) -> Tensor:
    """``a & b``; logical for booleans."""
    na, nb = operands(a, b)
    return wrap(record("logical_and" if na.type.dtype == "bool" else "bitwise_and", (na, nb)))


def bitwise_or(a: Any, b: Any) -> Tensor:
    """``a | b``; logical for booleans."""
    na, nb = operands(a, b)
    return wrap(record("logical_or" if na.type.dtype == "bool" else "bitwise_or", (na, nb)))


def bitwise_not(x: Any) -> Tensor:
    """``~x``; logical for booleans."""
    n = node_of(x)
    return wrap(record("logical_not" if n.type.dtype == "bool" else "bitwise_not", (n,)))


def power(a: Any, b: Any) -> Tensor:
    """``a ** b``. Small whole exponents multiply, 0.5 is a square root, -1 a reciprocal."""
    if isinstance(b, (builtins.int, builtins.float)) and not isinstance(b, builtins.bool) and hasattr(a, "_node"):
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
    return wrap(record("power", operands(a, b)))


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
logical_not = _unary("logical_not", "Not, of booleans.", floats=False)


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
