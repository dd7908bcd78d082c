"""Loops around straight-line bodies: merging dimensions, splitting ranges, vectors with tails, threads."""

from __future__ import annotations

import math as pymath
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tilegrad._base.tvm import tirx
from tilegrad.schedules.body import Access, Body
from tilegrad.schedules.stages import Expr, Iter, id_of, substitute

PARALLEL_WORK = 1 << 15
"""Elements times weight (1 for plain arithmetic, 8 more a transcendental) below which a kernel runs on one thread."""


@dataclass(frozen=True)
class Dim:
    """Adjacent index variables that run as one loop: ``var`` takes the loop's value and ``zeros`` are 0."""

    var: Any
    extent: int
    zeros: tuple[Any, ...] = ()


def collapse(iters: Sequence[Iter], accesses: Sequence[Access], free: set[int], keep: Sequence[Any] = ()) -> list[Dim]:
    """Merge neighbours wherever every access moves through both as through one; drop extents of 1.

    ``keep`` are variables that start a new dimension (they are not merged into the one before).
    """
    dims: list[Dim] = []
    fixed = {id_of(v) for v in keep}
    ones: tuple[Any, ...] = ()
    for it in iters:
        if it.extent == 1:
            ones = (*ones, it.var)
            continue
        last = dims[-1] if dims else None
        if (
            last is not None
            and id_of(it.var) not in fixed
            and id_of(it.var) not in free
            and id_of(last.var) not in free
            and all(a.coef(last.var) == a.coef(it.var) * it.extent for a in accesses)
        ):
            dims[-1] = Dim(it.var, last.extent * it.extent, (*last.zeros, last.var))
        else:
            dims.append(Dim(it.var, it.extent))
    if not dims:
        return [Dim(ones[-1], 1, ones[:-1])] if ones else []
    dims[-1] = Dim(dims[-1].var, dims[-1].extent, (*dims[-1].zeros, *ones))
    return dims


class Emit:
    """Writes a body's code at given values of its index variables, each named value at most once.

    A named value is a local array of one element a lane, which LLVM keeps in registers. (TVM's ``Bind`` would do, but
    its analyzer substitutes bound values into each other: exponential time on chains.)
    """

    def __init__(self, body: Body) -> None:
        self.body = body
        self.lane: Expr = tirx.const(0, "int32")
        self._width = 1
        self._depends = body.depends()
        self._map: dict[Any, Expr] = {}
        self._set: set[int] = set()
        self._done: set[int] = set()

    def copy(self) -> Emit:
        """An independent continuation from here."""
        new = Emit.__new__(Emit)
        new.body, new._depends = self.body, self._depends
        new._map, new._set, new._done = dict(self._map), set(self._set), set(self._done)
        new.lane, new._width = self.lane, self._width
        return new

    def lanes(self, lane: Expr, width: int) -> Emit:
        """A copy whose further values are vectors of ``width`` lanes."""
        new = self.copy()
        new.lane, new._width = lane, width
        return new

    def enter(self, dim: Dim, value: Expr) -> list[tirx.Stmt]:
        """Fix a dimension, and return the named values that need no further one."""
        self._map[dim.var] = value
        self._set.add(id_of(dim.var))
        for v in dim.zeros:
            self._map[v] = tirx.const(0, v.ty.dtype)
            self._set.add(id_of(v))
        return self.ready()

    def ready(self) -> list[tirx.Stmt]:
        """The named values whose variables are all fixed and that are not written yet."""
        out: list[tirx.Stmt] = []
        for var, value in self.body.binds:
            if id_of(var) in self._done or not self._depends[id_of(var)] <= self._set:
                continue
            stored, self._map[var] = self.name(substitute(value, self._map), var.name)
            out += stored
            self._done.add(id_of(var))
        return out

    def name(self, value: Expr, name: str = "r") -> tuple[list[tirx.Stmt], Expr]:
        """Statements that store ``value`` in a local, and the expression that reads it back (booleans as bytes)."""
        if str(value.ty.dtype) == "bool":
            stored, read = self.name(tirx.Select(value, tirx.const(1, "int8"), tirx.const(0, "int8")), name)
            return stored, read != tirx.const(0, "int8")
        local = tirx.decl_buffer((self._width,), value.ty.dtype, name=name)
        return [tirx.AllocBuffer(local), tirx.BufferStore(local, value, [self.lane])], local[self.lane]

    def at(self, expr: Expr) -> Expr:
        """``expr`` (a result, an offset) here."""
        return substitute(expr, self._map)


def seq(statements: Sequence[tirx.Stmt]) -> tirx.Stmt:
    """One statement."""
    if not statements:  # a loop over no elements
        return tirx.Evaluate(0)
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(list(statements))


def loop(
    var: Any, extent: Expr | int, body: tirx.Stmt, kind: tirx.ForKind = tirx.ForKind.SERIAL, start: Expr | int = 0
) -> tirx.Stmt:
    """``for var in range(start, start + extent)``."""
    as_expr = lambda v: tirx.const(v, var.ty.dtype) if isinstance(v, int) else v  # noqa: E731
    return tirx.For(var, as_expr(start), as_expr(extent), kind, body)


def lane_loop(lanes: int, dtype: str, body: Callable[[Expr], Sequence[tirx.Stmt]], vector: bool = True) -> tirx.Stmt:
    """``body`` for each lane as one vector operation (or, where that is impossible, one after the other)."""
    lane = tirx.const(0, dtype) if lanes == 1 else tirx.Var("lane", dtype)
    statements = body(lane)
    locals_ = [s for s in statements if isinstance(s, tirx.AllocBuffer)]
    work = [s for s in statements if not isinstance(s, tirx.AllocBuffer)]
    if lanes > 1:
        work = [loop(lane, lanes, seq(work), tirx.ForKind.VECTORIZED if vector else tirx.ForKind.SERIAL)]
    return seq([*locals_, *work])


def spans(extent: int, lanes: int, native: int) -> list[tuple[int, int, int]]:
    """(start, count, width): ``count`` vectors of ``width`` lanes from ``start``; together they cover ``extent`` exactly.

    The remainder is one vector of whole registers and one of the last few lanes, so that no lane needs a predicate.
    """
    lanes = min(lanes, max(native, extent // native * native))
    out = [(0, extent // lanes, lanes)] if extent >= lanes else []
    start = extent // lanes * lanes
    rest = extent - start
    if rest >= native:
        out.append((start, 1, rest // native * native))
        start += rest // native * native
    if start < extent:
        out.append((start, 1, extent - start))
    return out


def segments(extent: int, cuts: set[int], limit: int = 9) -> list[tuple[int, int]]:
    """[low, high) ranges between cuts; the whole range when there would be more than ``limit``."""
    inner = sorted(c for c in cuts if 0 < c < extent)
    if len(inner) + 1 > limit:
        return [(0, extent)]
    ends = [0, *inner, extent]
    return list(zip(ends[:-1], ends[1:], strict=True))


def split_threads(extents: Sequence[int], threads: int) -> int:
    """How many leading loops to fuse into the parallel one: as few as give 8 iterations a thread, or all."""
    total = 1
    for k, n in enumerate(extents):
        total *= n
        if total >= 8 * threads:
            return k + 1
    return len(extents)


def fused(var: Any, extents: Sequence[int]) -> list[Expr]:
    """The index of each loop from the index of their fusion."""
    out: list[Expr] = []
    stride = pymath.prod(extents)
    for k, n in enumerate(extents):
        stride //= n
        value = var if stride == 1 else tirx.floordiv(var, stride)
        out.append(value if k == 0 else tirx.floormod(value, n))
    return out
