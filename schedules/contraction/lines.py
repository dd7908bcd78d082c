"""Rows of an image: an operand copied along a group of axes to consecutive places, zeros outside its conditions.

The last axis runs along a row, the one before it counts rows. Where a row begins and ends is the same for all rows that
are neither cut nor outside the image, so that they are copied by a load and a store a vector.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilegrad._base.tvm import tirx
from tilegrad.schedules.contraction.affine import decompose, flat
from tilegrad.schedules.contraction.canonical import Operand
from tilegrad.schedules.contraction.runs import interval_bound, slope
from tilegrad.schedules.contraction.tir import Memory, Stmt, both, ramp, seq, when
from tilegrad.schedules.stages import Expr, Iter, id_of, loads, substitute, variables


class Lines:
    """Emits the copies of one operand along ``axes``; ``slack``: up to a vector past the end may be written, too."""

    def __init__(self, op: Operand, axes: Sequence[Iter], acc: str, lanes: int, memory: Memory, slack: bool = False) -> None:
        self.op, self.acc, self.lanes, self.mem, self.slack = op, acc, lanes, memory, slack
        moving = [a for a in axes if a.extent > 1] or list(axes[-1:])
        self.still = [a for a in axes if a not in moving]
        self.column = moving[-1]
        self.row = moving[-2] if len(moving) > 1 else None
        self.lead = moving[:-2]
        self.width = self.column.extent
        self.plane = self.width * (self.row.extent if self.row else 1)
        steps = [(r, slope(flat(r.source, r.indices, "int64"), self.column.var)) for r in loads(op.expr)]
        self.even = all(step in (0, 1) for _, step in steps)
        self.reads = [r for r, step in steps if step == 1]
        of_row = _on(op.guards, self.row) if self.row else []
        apart = all(g not in _on(op.guards, self.column) and _bounded(g, self.row) for g in of_row)
        self.of_row = of_row
        self.whole = self.row is not None and apart

    def copy(self, target: Any, to: Expr, env: dict[Any, Expr], e0: Expr, e1: Expr) -> Stmt:
        """Elements ``e0`` to ``e1`` of the axes as one index: element e goes to ``target[to + e]``."""
        mem, plane = self.mem, self.plane
        env = env | {a.var: mem.const(0) for a in self.still}
        if not self.lead:
            return self._plane(target, to, env, e0, e1)

        def one(s: Expr) -> Stmt:
            first, s0 = mem.hold("e0", tirx.max(e0 - s * plane, mem.const(0)))
            last, s1 = mem.hold("e1", tirx.min(e1 - s * plane, mem.const(plane)))
            place, s2 = mem.hold("to", to + s * plane)
            here = dict(env)
            binds: list[Any] = []
            for v, e in decompose(self.lead, s).items():
                here[v], held = mem.hold(v.name, e)
                binds += held
            return seq(s0, s1, s2, binds, self._plane(target, place, here, first, last))

        begin, s3 = mem.hold("plane", tirx.floordiv(e0, plane))
        return seq(s3, mem.loop(tirx.floordiv(e1 + (plane - 1), plane) - begin, lambda i: one(begin + i), "s"))

    def _plane(self, target: Any, to: Expr, env: dict[Any, Expr], e0: Expr, e1: Expr) -> Stmt:
        mem, width = self.mem, self.width
        r0, s0 = mem.hold("r0", tirx.floordiv(e0, width))
        count = tirx.floordiv(e1 + (width - 1), width) - r0
        if not self.whole:
            return seq(s0, mem.loop(count, lambda i: self._cut(target, to, env, e0, e1, r0 + i), "row"))
        rows, g0, g1 = self._whole_rows(target, to, env, e0, e1)

        def other(i: Expr) -> Stmt:  # exact, so that nothing that a whole row wrote past its end is left
            r = r0 + i
            return self._cut(target, to, env, e0, e1, r + tirx.Select(r >= g0, g1 - g0, mem.const(0)))

        return seq(s0, rows, mem.loop(count - (g1 - g0), other, "row"))

    def _cut(self, target: Any, to: Expr, env: dict[Any, Expr], e0: Expr, e1: Expr, row: Expr) -> Stmt:
        """What lies between ``e0`` and ``e1`` of one row."""
        mem, width, lanes = self.mem, self.width, self.lanes
        h, s0 = mem.hold("h", row)
        here = env | ({self.row.var: h} if self.row else {})
        c0, s1 = mem.hold("c0", tirx.max(e0 - h * width, mem.const(0)))
        c1, s2 = mem.hold("c1", tirx.min(e1 - h * width, mem.const(width)))
        lo_e, hi_e = interval(mem, self.op.guards, self.column.var, here, c0, c1)
        lo, s3 = mem.hold("lo", lo_e)
        hi, s4 = mem.hold("hi", hi_e)
        start, s5 = mem.hold("start", to + h * width)
        put, blank = self._put(target, start, here), self._blank(target, start)
        if self.even and width >= lanes:
            n_vec, s6 = mem.hold("vecs", tirx.floordiv(hi - lo, lanes))
            done = lo + n_vec * lanes
            vectors = mem.loop(n_vec, lambda x: mem.vector(lanes, lambda i: put(lo + x * lanes + i)), "x")
            body = seq(s6, vectors, mem.loop(hi - done, lambda x: put(done + x), "x"))
        else:
            body = mem.loop(hi - lo, lambda x: put(lo + x), "x")
        edges = [blank(c0, lo), blank(hi, c1)] if self.op.guards else []
        return seq(s0, s1, s2, s3, s4, s5, body, edges)

    def _whole_rows(self, target: Any, to: Expr, env: dict[Any, Expr], e0: Expr, e1: Expr) -> tuple[Stmt, Expr, Expr]:
        """Rows that are neither cut nor outside the image, and which: [first, last).

        Their vectors may run on into the next rows, which are written after; so the last rows before ``e1`` are left out.
        """
        mem, width, lanes, row = self.mem, self.width, self.lanes, self.row
        assert row is not None
        rest = [g for g in self.op.guards if g not in self.of_row]
        lo_e, hi_e = interval(mem, rest, self.column.var, env, mem.const(0), mem.const(width))
        lo, s0 = mem.hold("lo", lo_e)
        hi, s1 = mem.hold("hi", hi_e)
        vectors, s2 = mem.hold("vecs", tirx.floordiv(hi - lo + (lanes - 1), lanes))
        top = tirx.floordiv(e0 + (width - 1), width)
        bottom = tirx.max(top, tirx.floordiv(e1, width) - (-(-lanes // width) if self.even and not self.slack else 0))
        g0_e, g1_e = interval(mem, self.of_row, row.var, env, top, bottom)
        g0, s3 = mem.hold("g0", g0_e)
        most, s4 = mem.hold("g1", g1_e)
        end = env | {row.var: most - 1, self.column.var: lo + vectors * lanes}
        exists = [mem.place(r.source, r.indices, end) <= mem.end(r.source) for r in self.reads] if self.even else []
        g1, s5 = mem.hold("g1", tirx.Select(both(exists), most, g0) if exists else most)

        def one(i: Expr) -> Stmt:
            start, s6 = mem.hold("start", to + (g0 + i) * width)
            put, blank = self._put(target, start, env | {row.var: g0 + i}), self._blank(target, start)
            if not self.even:
                copy = mem.loop(hi - lo, lambda x: put(lo + x), "x")
                return seq(s6, copy, [blank(mem.const(0), lo), blank(hi, mem.const(width))] if rest else None)
            copy = mem.loop(vectors, lambda v: mem.vector(lanes, lambda x: put(lo + v * lanes + x)), "v")
            zeros = tirx.Broadcast(tirx.const(0, self.acc), lanes)

            def edge(a: Expr, b: Expr) -> Stmt:  # a short one is a store; LLVM would make the loop alone a call of memset
                store = tirx.BufferStore(target, zeros, [ramp(start + a, lanes)])
                return when(a < b, seq(store, blank(a + lanes, b)))

            left, right = (edge(mem.const(0), lo), edge(hi, mem.const(width))) if rest else (None, None)
            return seq(s6, left, copy, right)

        return seq(s0, s1, s2, s3, s4, s5, mem.loop(g1 - g0, one, "whole")), g0, g1

    def _put(self, target: Any, start: Expr, env: dict[Any, Expr]) -> Callable[[Expr], Stmt]:
        return lambda x: tirx.BufferStore(target, self.mem.flatten(self.op.expr, env | {self.column.var: x}), [start + x])

    def _blank(self, target: Any, start: Expr) -> Callable[[Expr, Expr], Stmt]:
        zero = tirx.const(0, self.acc)
        return lambda a, b: self.mem.loop(b - a, lambda x: tirx.BufferStore(target, zero, [start + a + x]), "z")


def _on(guards: Sequence[Expr], axis: Iter) -> list[Expr]:
    return [g for g in guards if any(id_of(v) == id_of(axis.var) for v in variables(g))]


def _bounded(guard: Expr, axis: Iter | None) -> bool:
    return axis is not None and interval_bound(guard, axis.var) is not None


def interval(mem: Memory, guards: Sequence[Expr], var: Any, env: dict[Any, Expr], c0: Expr, c1: Expr) -> tuple[Expr, Expr]:
    """[lo, hi) of ``var`` within [c0, c1) where every one of ``guards`` holds; each must bound it to an interval."""
    lo, hi, tests = c0, c1, []
    for g in guards:
        kind, bound = interval_bound(g, var)  # type: ignore[misc]
        value = substitute(bound, env)
        if kind == "lo":
            lo = tirx.max(lo, value)
        elif kind == "hi":
            hi = tirx.min(hi, value)
        else:
            tests.append(value)
    lo = tirx.min(lo, c1)
    hi = tirx.max(hi, lo)
    if tests:
        hi = tirx.Select(both(tests), hi, lo)
    return lo, hi
