"""A contraction whose phases meet different taps, as one contraction a phase.

In a strided gradient by data the result's index is ``stride * position + phase``, and a tap meets one phase only. Written
as one contraction every phase sums as many taps as the fullest, most of them products with zero. Each phase by itself is
dense: its taps are a shorter K, its conditions constants.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from tilegrad._base.tvm import tirx
from tilegrad.schedules.contraction.affine import Simplifier
from tilegrad.schedules.contraction.canonical import Contraction, Operand, simplify_loads
from tilegrad.schedules.contraction.runs import interval_bound
from tilegrad.schedules.stages import Expr, Iter, id_of, is_const, substitute, variables


def phases(c: Contraction) -> tuple[Contraction, ...]:
    """``c`` alone, or what each of its phases computes; together they write every element of the result once."""
    chosen = [a for a in c.remainders if any(_ties(g, a, c.k) for op in (c.a, c.b) for g in op.guards)]
    if not chosen:
        return (c,)
    return tuple(_phase(c, chosen, at) for at in product(*(range(a.extent) for a in chosen)))


def _ties(guard: Expr, phase: Iter, k: Sequence[Iter]) -> bool:
    """Whether a guard chooses summed indices by the phase alone."""
    used = {id_of(v) for v in variables(guard)}
    return id_of(phase.var) in used and used <= {id_of(phase.var), *(id_of(a.var) for a in k)}


def _phase(c: Contraction, chosen: Sequence[Iter], at: Sequence[int]) -> Contraction:
    values = {a.var: tirx.const(x, a.var.ty.dtype) for a, x in zip(chosen, at, strict=True)}
    simplify = Simplifier(a for a in c.axes if a not in chosen)

    def left(axes: Sequence[Iter]) -> tuple[Iter, ...]:
        return tuple(a for a in axes if a not in chosen)

    def conditions(guards: Sequence[Expr]) -> list[Expr]:
        return [g for g in (simplify(substitute(g, values)) for g in guards) if not is_const(g, 1)]

    def operand(op: Operand) -> Operand:
        return replace(op, expr=simplify_loads(substitute(op.expr, values), simplify), guards=tuple(conditions(op.guards)))

    a, b, stored = operand(c.a), operand(c.b), conditions(c.guard)
    k, guards_a = _limited(c.k, a.guards)
    k, guards_b = _limited(k, b.guards)
    a, b = replace(a, guards=guards_a), replace(b, guards=guards_b)
    if any(x.extent == 0 for x in k) or any(is_const(g, 0) for g in (*a.guards, *b.guards)):  # no tap: one product of zeros
        k = tuple(Iter(x.var, 1) for x in c.k)
        a, b = (Operand(tirx.const(0, c.acc), (), op.prologue) for op in (a, b))
    m, overhang = _limited(left(c.m), stored)
    n, overhang = _limited(left(c.n), overhang)
    chain = tuple(replace(x, index=tuple(simplify(substitute(i, values)) for i in x.index)) for x in c.chain)
    groups: dict[str, Any] = {"batch": left(c.batch), "m": m, "segments": left(c.segments), "n": n, "k": k}
    return replace(c, **groups, a=a, b=b, chain=chain, guard=overhang, remainders=left(c.remainders))


def _limited(axes: Sequence[Iter], guards: Sequence[Expr]) -> tuple[tuple[Iter, ...], tuple[Expr, ...]]:
    """``axes`` shortened by the guards that bound one of them from above by a constant, and the other guards."""
    out, kept = list(axes), []
    for g in guards:
        used = variables(g)
        n = next((i for i, a in enumerate(out) if len(used) == 1 and a.var.same_as(used[0])), None)
        bound = None if n is None else interval_bound(g, used[0])
        limit = None if bound is None or bound[0] != "hi" else Simplifier()(bound[1])
        if n is not None and isinstance(limit, tirx.IntImm):
            out[n] = Iter(out[n].var, max(0, min(out[n].extent, int(limit.value))))
        else:
            kept.append(g)
    return tuple(out), tuple(kept)
