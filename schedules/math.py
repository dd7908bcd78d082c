"""Mathematics in kernels: the replacement of float32 calls by own arithmetic.

``lower`` is a finishing step of every kernel. float64 keeps libm; float16 and bfloat16 compute in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilegrad._base.tvm import ir, tirx, tvm_ffi
from tilegrad.schedules import math_float32 as own
from tilegrad.schedules import math_inverse as inverse
from tilegrad.schedules.math_float32 import Bind, Expr
from tilegrad.schedules.math_remainder import fmod
from tilegrad.schedules.stages import loads

_UNARY: dict[str, Callable[[Expr, Bind], Expr]] = {
    "exp": own.exp, "exp2": own.exp2, "log": own.log, "log2": own.log2, "log10": own.log10, "log1p": own.log1p,
    "tanh": own.tanh, "sigmoid": own.sigmoid, "erf": own.erf, "sin": own.sin, "cos": own.cos, "sinh": own.sinh, "cosh": own.cosh,
    "tan": inverse.tan, "asin": inverse.asin, "acos": inverse.acos, "atan": inverse.atan,
    "asinh": inverse.asinh, "acosh": inverse.acosh, "atanh": inverse.atanh,
}  # fmt: skip
_BINARY: dict[str, Callable[[Expr, Expr, Bind], Expr]] = {"pow": own.pow, "atan2": inverse.atan2, "fmod": fmod}
_EXPENSIVE = {*_UNARY, *_BINARY, "sqrt", "rsqrt"}


def lower(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func`` with every call this module knows replaced by arithmetic, and integer division that cannot trap."""
    body = tvm_ffi.structural_map(func.body, [(ir.Call, expand), (tirx.Mod, _remainder)])
    return func.with_body(tvm_ffi.structural_map(body, [(kind, _safe_division) for kind in _QUOTIENTS + _REMAINDERS]))


def _remainder(e: Any) -> Expr:
    """The truncated remainder of floats, which TVM would make a call of the C library's only behind this step."""
    return expand(tirx.fmod(e.a, e.b)) if "float" in str(e.ty.dtype) else e


_QUOTIENTS, _REMAINDERS = (tirx.FloorDiv, tirx.Div), (tirx.FloorMod, tirx.Mod)


def _safe_division(e: Any) -> Expr:
    """Integer division by data: 0 by zero as NumPy has it, and no trap for the smallest integer by -1."""
    dtype = str(e.ty.dtype)
    if isinstance(e.b, tirx.IntImm) or "int" not in dtype or not loads(e.b):
        return e
    zero, one = tirx.const(0, dtype), tirx.const(1, dtype)
    special = tirx.EQ(e.b, zero)
    if dtype.startswith("int"):
        minus = tirx.EQ(e.b, tirx.const(-1, dtype))
        plain = type(e)(e.a, tirx.Select(tirx.Or(special, minus), one, e.b))
        if isinstance(e, _REMAINDERS):
            return tirx.Select(tirx.Or(special, minus), zero, plain)
        return tirx.Select(special, zero, tirx.Select(minus, zero - e.a, plain))
    return tirx.Select(special, zero, type(e)(e.a, tirx.Select(special, one, e.b)))


def expand(call: Any, bind: Bind | None = None) -> Expr:
    """The arithmetic of one call; the call itself when it is none of ours.

    Subexpressions used twice go through ``bind``; without it they become ``Let`` expressions.
    """
    name = _name(call)
    if name not in _UNARY and name not in _BINARY:
        return call
    dtype = str(call.ty.dtype)
    if name == "pow" and (special := _constant_power(call.args[0], call.args[1], bind)) is not None:
        return special
    if dtype in ("float16", "bfloat16"):
        args = [tirx.Cast("float32", a) for a in call.args]
    elif dtype == "float32":
        args = list(call.args)
    elif name == "sigmoid":  # TVM's own rule, but without its overflow for large negative arguments in any type
        return letting(lambda b: _sigmoid_libm(b(call.args[0]), b), bind)
    elif name in ("sinh", "cosh"):  # no C library call in TVM
        return letting(lambda b: _hyperbolic_libm(name, b(call.args[0]), b), bind)
    elif name == "fmod":  # TVM compiles no such call, but the operator becomes one of the C library
        return tirx.Mod(*call.args)
    else:
        return call
    rule: Callable[..., Expr] = _UNARY[name] if name in _UNARY else _BINARY[name]
    value = letting(lambda b: rule(*map(b, args), b), bind)
    return value if dtype == "float32" else tirx.Cast(dtype, value)


def expm1(x: Expr) -> Expr:
    """e^x - 1 (TIR has no such call); float32 and below by own arithmetic, float64 from exp with Kahan's correction."""
    x = _expr(x)
    dtype = str(x.ty.dtype)
    if dtype != "float64":
        value = letting(lambda b: own.expm1(b(x if dtype == "float32" else tirx.Cast("float32", x)), b), None)
        return value if dtype == "float32" else tirx.Cast(dtype, value)

    def kahan(b: Bind) -> Expr:
        v = b(x)
        u = b(tirx.exp(v))
        one = tirx.const(1.0, "float64")
        core = (u - one) * v / tirx.log(u)
        inside = tirx.And(u > tirx.const(0.0, "float64"), u < tirx.const(float("inf"), "float64"))
        return tirx.Select(tirx.EQ(u, one), v, tirx.Select(tirx.And(inside, tirx.NE(u - one, -one)), core, u - one))

    return letting(kahan, None)


def is_expensive(expr: Expr) -> bool:
    """Whether computing ``expr`` once more costs more than reading it back from a near cache."""
    found: list[Any] = []
    tvm_ffi.structural_walk(expr, (ir.Call, lambda c: found.append(c) if _name(c) in _EXPENSIVE else None))
    return bool(found)


def _name(call: Any) -> str:
    return str(getattr(call.op, "name", "")).rpartition(".")[2]


def _expr(x: Any) -> Expr:
    """A TE tensor's element, or any other operand, as an expression."""
    return x.asobject() if hasattr(x, "asobject") else x


def letting(build: Callable[[Bind], Expr], bind: Bind | None = None) -> Expr:
    """``build`` with the caller's bind, or with one that wraps the result in Let expressions."""
    if bind is not None:
        return build(bind)
    bound: list[tuple[Any, Expr]] = []

    def let(value: Expr) -> Expr:
        if isinstance(value, ir.Var | tirx.IntImm | tirx.FloatImm) or str(value.ty.dtype) == "bool":
            return value  # TVM's analyzer cannot bind a vector of booleans; repeating a comparison is cheap
        var = tirx.Var(f"t{len(bound)}", value.ty.dtype)
        bound.append((var, value))
        return var

    result = build(let)
    for var, value in reversed(bound):
        result = tirx.Let(var, value, result)
    return result


def _sigmoid_libm(x: Expr, bind: Bind) -> Expr:
    zero, one = tirx.const(0, x.ty.dtype), tirx.const(1, x.ty.dtype)
    e = bind(tirx.exp(tirx.Select(x < zero, x, zero - x)))
    return tirx.Select(x < zero, e, one) / (e + one)


def _hyperbolic_libm(name: str, x: Expr, bind: Bind) -> Expr:
    """As in math_float32, on libm's exp."""
    one, half = tirx.const(1, x.ty.dtype), tirx.const(0.5, x.ty.dtype)
    a = bind(tirx.abs(x))
    h = bind(tirx.exp(a * half))
    if name == "cosh":
        return (h * half) * h + half / (h * h)
    t = bind(expm1(bind(tirx.min(a, tirx.const(40, x.ty.dtype)))))
    size = bind(tirx.Select(a < tirx.const(20, x.ty.dtype), (t + t / (t + one)) * half, (h * half) * h))
    return tirx.Select(x < tirx.const(0, x.ty.dtype), -size, size)


def _constant_power(x: Expr, y: Expr, bind: Bind | None) -> Expr | None:
    """Powers that are cheaper by multiplication or square root (PyTorch takes the same ones)."""
    if not isinstance(y, tirx.FloatImm | tirx.IntImm):
        return None
    one = tirx.const(1, x.ty.dtype)
    table: dict[float, Callable[[Expr, Bind], Expr]] = {
        0.5: lambda v, b: tirx.sqrt(v),
        1.0: lambda v, b: v,
        2.0: lambda v, b: v * v,
        3.0: lambda v, b: v * v * v,
        4.0: lambda v, b: (lambda s: s * s)(b(v * v)),
        -0.5: lambda v, b: one / tirx.sqrt(v),
        -1.0: lambda v, b: one / v,
        -2.0: lambda v, b: one / (v * v),
    }
    rule = table.get(float(y.value))
    return None if rule is None else letting(lambda b: rule(b(x), b), bind)
