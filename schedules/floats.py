"""Floating-point arithmetic with its NaNs, infinities and roundings, kept from rules that hold for real numbers only.

TVM folds ``x != x`` to false, ``x - x`` and ``x * 0`` to 0 and ``(x + y) - y`` to ``x``, turns ``not x < y`` into
``y <= x``, compiles ``!=`` as "less or greater", and its ``max`` and ``min`` may return either operand when one is NaN.
``strict`` is a finishing step of every kernel: it puts what those rules look for behind a fence that they do not look
through and that compiles to no instruction, and writes maxima as PyTorch has them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilegrad._base.tvm import ir, tirx, tvm_ffi
from tilegrad.schedules.math import letting
from tilegrad.schedules.math_float32 import Expr


def strict(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func`` with every operation on floats that TVM would simplify wrongly in a form that it leaves alone."""
    return func.with_body(tvm_ffi.structural_map(func.body, [(kind, _on_floats(rule)) for kind, rule in _RULES]))


def maximum(a: Expr, b: Expr) -> Expr:
    """The larger of two; NaN when either is (as PyTorch's maximum, relu and max reductions). Name the operands first."""
    return _extreme(a, b, tirx.GT, tirx.Max)


def minimum(a: Expr, b: Expr) -> Expr:
    """The smaller of two; NaN when either is. Name the operands first."""
    return _extreme(a, b, tirx.LT, tirx.Min)


def _extreme(a: Expr, b: Expr, better: Callable[[Expr, Expr], Expr], whole: Callable[[Expr, Expr], Expr]) -> Expr:
    """``b if b better else a`` is one instruction and gives ``a`` when unordered; NaN in ``b`` takes a test of its own."""
    if not _is_float(a):
        return whole(a, b)
    if str(a.ty.dtype) != str(b.ty.dtype):  # 16 bits against a sum kept in 32
        a, b = (tirx.Cast("float32", x) for x in (a, b))
    a, b = (b, a) if isinstance(a, tirx.FloatImm) else (a, b)
    taken = _fence(better(b, a))
    if not isinstance(b, tirx.FloatImm) or b.value != b.value:
        taken = tirx.Or(taken, is_nan(b))
    return tirx.Select(taken, b, a)


def is_nan(x: Expr) -> Expr:
    """Whether a float of any width is NaN."""
    return tirx.Not(_fence(tirx.EQ(x, _fence(x))))


def _fence(x: Expr) -> Expr:
    """``x``, read again as its own type."""
    if str(x.ty.dtype).startswith("bfloat16"):  # TVM computes it in float32, and a reinterpretation would not follow
        wide = str(x.ty.dtype).replace("bfloat16", "float32")
        return tirx.Cast(x.ty.dtype, _fence(tirx.Cast(wide, x)))
    return tirx.call_intrin(x.ty, "tirx.reinterpret", x)


def _on_floats(rule: Callable[[Any], Expr]) -> Callable[[Any], Expr]:
    return lambda e: rule(e) if _is_float(e.a) else e


def _is_float(x: Expr) -> bool:
    return "float" in str(x.ty.dtype)


def _ordered(e: Any) -> Expr:
    return _fence(e)


def _equal(e: Any) -> Expr:
    return _fence(tirx.EQ(e.a, _fence(e.b)))


def _not_equal(e: Any) -> Expr:
    return tirx.Not(_equal(e))


def _difference(e: Any) -> Expr:
    return tirx.Sub(e.a, _fence(e.b))


def _by_zero(e: Any) -> Expr:
    """A product or quotient whose value TVM would take from a constant zero."""
    a, b = (_fence(x) if _is_zero(x) else x for x in (e.a, e.b))
    return type(e)(a, b)


def _is_zero(x: Expr) -> bool:
    while isinstance(x, tirx.Cast):
        x = x.value
    return isinstance(x, tirx.FloatImm | tirx.IntImm) and x.value == 0


def _named(extreme: Callable[[Expr, Expr], Expr]) -> Callable[[Any], Expr]:
    def rule(e: Any) -> Expr:
        if "bfloat16" in str(e.ty.dtype):  # TVM computes it in float32, and names would keep the narrow type
            return extreme(e.a, e.b)
        # Loads need no name, and TVM's elimination of common subexpressions uses those it finds in a name's value too early.
        return letting(lambda bind: extreme(*(x if isinstance(x, ir.TensorLoad) else bind(x) for x in (e.a, e.b))))

    return rule


_RULES: list[tuple[Any, Callable[[Any], Expr]]] = [
    *((kind, _ordered) for kind in (tirx.LT, tirx.LE, tirx.GT, tirx.GE)),
    (tirx.EQ, _equal),
    (tirx.NE, _not_equal),
    (tirx.Sub, _difference),
    *((kind, _by_zero) for kind in (tirx.Mul, tirx.Div)),
    (tirx.Max, _named(maximum)),
    (tirx.Min, _named(minimum)),
]
