"""How an operand moves along its axes: its stride, and the interval in which its conditions hold."""

from __future__ import annotations

from collections.abc import Sequence

from tilegrad._base.tvm import tirx
from tilegrad.schedules.contraction.affine import affine, flat
from tilegrad.schedules.contraction.canonical import Operand
from tilegrad.schedules.stages import Expr, Iter, id_of, loads, substitute, variables


def slope(expr: Expr, var: tirx.Var) -> int | None:
    """How much ``expr`` grows with ``var``, whatever else is in it; None when it is not linear in it."""
    if not any(v.same_as(var) for v in variables(expr)):
        return 0
    if isinstance(expr, tirx.Var):
        return 1
    if isinstance(expr, tirx.Cast):
        return slope(expr.value, var)
    if isinstance(expr, tirx.Add | tirx.Sub):
        a, b = slope(expr.a, var), slope(expr.b, var)
        return None if a is None or b is None else a + b if isinstance(expr, tirx.Add) else a - b
    if isinstance(expr, tirx.Mul):
        for x, y in ((expr.a, expr.b), (expr.b, expr.a)):
            if isinstance(y, tirx.IntImm):
                s = slope(x, var)
                return None if s is None else s * int(y.value)
    return None


def moves_by(op: Operand, axes: Sequence[Iter], allowed: tuple[int, ...] | None) -> bool:
    """Whether every read of ``op`` advances by an ``allowed`` stride (None: any) along ``axes`` as one index, unguarded."""
    names = {id_of(a.var) for a in axes if a.extent > 1}
    if any(id_of(v) in names for g in op.guards for v in variables(g)):
        return False
    for read in loads(op.expr):
        place = affine(flat(read.source, read.indices, "int64"))
        step = None if place is None else place.fused(axes)
        if step is None or (allowed is not None and step not in allowed):
            return False
    return True


def runs_along(op: Operand, axis: Iter) -> bool:
    """Whether every read advances evenly along ``axis`` and every guard bounds it to an interval."""
    steps = [slope(flat(r.source, r.indices, "int64"), axis.var) for r in loads(op.expr)]
    return None not in steps and all(interval_bound(g, axis.var) is not None for g in op.guards)


def interval_bound(guard: Expr, var: tirx.Var) -> tuple[str, Expr] | None:
    """``("lo", e)`` for guard = (var >= e), ``("hi", e)`` for (var < e), ``("test", guard)`` without ``var``; else None."""
    if not any(v.same_as(var) for v in variables(guard)):
        return "test", guard
    flipped = {tirx.GE: tirx.LE, tirx.GT: tirx.LT}
    if type(guard) in flipped:
        left, right, strict = guard.b, guard.a, isinstance(guard, tirx.GT)
    elif isinstance(guard, tirx.LE | tirx.LT):
        left, right, strict = guard.a, guard.b, isinstance(guard, tirx.LT)
    else:
        return None
    a, b = slope(left, var), slope(right, var)
    if a is None or b is None or a == b:
        return None
    zero = {var: tirx.const(0, var.ty.dtype)}
    rest = substitute(left - right, zero)  # rest + (a - b) * var < 0 (or <= 0)
    s = a - b
    if s > 0:
        return "hi", tirx.floordiv(s - 1 - rest, s) if strict else tirx.floordiv(-rest, s) + 1
    return "lo", tirx.floordiv(rest, -s) + 1 if strict else tirx.floordiv(rest + (-s - 1), -s)
