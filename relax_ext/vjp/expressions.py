"""Reading Relax expressions: names, shapes, what they read, and when two compute the same value."""

from __future__ import annotations

from typing import Any

from tilegrad._base.tvm import ir, relax, tirx, tvm_ffi
from tilegrad.relax_ext.ops.register import plain

Number = int | float


def op_name(call: ir.Call) -> str:
    """``relax.add``; for a call of something that is not an operator, a description of it."""
    if isinstance(call.op, ir.Op):
        return str(call.op.name)
    return f"call of {getattr(call.op, 'name_hint', type(call.op).__name__)}"


def permutation(call: ir.Call) -> tuple[int, ...]:
    """The axes of a ``permute_dims`` call; reversed order when it gives none."""
    ndim = len(call.ty.shape)
    axes = plain(call.attrs.axes)
    return tuple(reversed(range(ndim))) if axes is None else tuple(a % ndim for a in axes)


def shape_of(x: Any) -> tuple[int, ...]:
    """Static extents of a Value, an expression or a Python number."""
    x = getattr(x, "expr", x)  # a Value
    return () if isinstance(x, (int, float)) else tuple(int(d) for d in x.ty.shape)


def scalar_constant(x: Any) -> Number | None:
    """The number, if ``x`` is one or is a constant of rank 0."""
    if isinstance(x, (int, float)):
        return x
    expr = getattr(x, "expr", x)  # a Value
    if isinstance(expr, ir.GenericConst) and not shape_of(expr):
        return expr.value.numpy().item()
    return None


def used_vars(expr: relax.Expr) -> list[relax.Var]:
    """The vars that one binding reads."""
    if isinstance(expr, relax.Var):
        return [expr]
    if isinstance(expr, relax.Tuple):
        return [v for f in expr.fields for v in used_vars(f)]
    if isinstance(expr, relax.TupleGetItem):
        return used_vars(expr.tuple_value)
    if isinstance(expr, ir.Call):
        return [v for a in expr.args for v in used_vars(a)]
    return []


def key(expr: relax.Expr) -> tuple[Any, ...]:
    """Equal for expressions that compute the same value: same operator, vars, constants and attributes."""
    if isinstance(expr, relax.Var):
        return ("var", expr)
    if isinstance(expr, relax.Tuple):
        return ("tuple", *(key(f) for f in expr.fields))
    if isinstance(expr, relax.TupleGetItem):
        return ("field", expr.index, key(expr.tuple_value))
    if isinstance(expr, ir.Call):
        attrs = tvm_ffi.structural_hash(expr.attrs) if expr.attrs is not None else 0
        return ("call", expr.op, attrs, *(key(a) for a in expr.args), *(str(t) for t in expr.ty_args))
    if isinstance(expr, ir.GenericConst):
        array = expr.value.numpy()
        return ("const", str(expr.ty), array.tobytes() if array.size <= 16 else expr.__hash__())
    if isinstance(expr, (tirx.IntImm, tirx.FloatImm, relax.ShapeExpr)):
        return (type(expr).__name__, str(expr))
    return ("other", expr.__hash__())
