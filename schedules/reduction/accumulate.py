"""Accumulating along a row: vectors of partial results, summed in blocks so that rounding errors stay small."""

from __future__ import annotations

import math as pymath
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tilegrad._base.tvm import tirx
from tilegrad.schedules.body import combine
from tilegrad.schedules.loops import Dim, Emit, lane_loop, loop, seq, spans
from tilegrad.schedules.reduction.passes import accumulator_dtype, start_value
from tilegrad.schedules.reduction.plan import Step
from tilegrad.schedules.stages import Expr

BLOCK = 64
"""Additions into one accumulator before it is added to the next level: the error grows by levels, not by length."""


@dataclass(frozen=True)
class Accumulator:
    """One reduction of a pass and its local array of one element a lane."""

    step: Step
    lanes: int
    array: Any

    @staticmethod
    def of(step: Step, lanes: int) -> Accumulator:
        """A new one."""
        return Accumulator(step, lanes, tirx.decl_buffer((lanes,), accumulator_dtype(step), name="acc"))

    @property
    def kind(self) -> str | None:
        """The combiner."""
        return self.step.kind

    @property
    def dtype(self) -> str:
        """Its element type."""
        return str(self.array.dtype)

    def fresh(self) -> Accumulator:
        """The next level's."""
        return Accumulator.of(self.step, self.lanes)

    def clear(self) -> list[tirx.Stmt]:
        """Declare it, with its start."""
        start = start_value(self.step)
        store = lambda i: [tirx.BufferStore(self.array, start, [i])]  # noqa: E731
        return [tirx.AllocBuffer(self.array), lane_loop(self.lanes, "int32", store)]

    def add(self, lane: Expr, value: Expr) -> tirx.Stmt:
        """Take in one value (the new total, where the reduction is no plain one)."""
        return tirx.BufferStore(self.array, combine(self.kind, self.array[lane], value) if self.kind else value, [lane])

    def take(self, other: Accumulator) -> tirx.Stmt:
        """Combine another level into this one."""
        assert self.kind is not None
        kind = self.kind
        store = lambda i: [tirx.BufferStore(self.array, combine(kind, self.array[i], other.array[i]), [i])]  # noqa: E731
        return lane_loop(self.lanes, "int32", store)

    def across(self) -> tuple[list[tirx.Stmt], Expr]:
        """The lanes combined into one value, pairwise."""
        out: list[tirx.Stmt] = []
        width = self.lanes
        value: Expr = self.array.vload([0], _vector(self.dtype, width))
        while width > 1:
            width //= 2
            if width > 1:
                halves = [tirx.call_intrin(_vector(self.dtype, width), f"tirx.vector{part}", value) for part in ("low", "high")]
            else:
                halves = [tirx.Shuffle([value], [k]) for k in (0, 1)]
            names = [_local(out, half) for half in halves]
            value = _local(out, combine(self.kind, *names)) if self.kind else names[0]
        return out, value


def _vector(dtype: str, width: int) -> str:
    return dtype if width == 1 else f"{dtype}x{width}"


def _local(out: list[tirx.Stmt], value: Expr) -> Expr:
    """``value`` stored whole in a local array, and read back."""
    dtype, _, width = str(value.ty.dtype).partition("x")
    local = tirx.decl_buffer((int(width or 1),), dtype, name="w")
    out += [tirx.AllocBuffer(local), local.vstore([0], value)]
    return local.vload([0], str(value.ty.dtype))


Update = Callable[[Emit, Sequence[Accumulator]], list[tirx.Stmt]]
"""Statements of one vector: combine the body's results into the accumulators."""


class RowRun:
    """Runs ``update`` over the columns ``dims`` (the last one by vectors), or over part ``part`` of ``parts`` of them."""

    def __init__(self, dims: Sequence[Dim], dtype: str, lanes: int, native: int, vector: bool, update: Update) -> None:
        self._dims, self._dtype, self._lanes, self._native = dims, dtype, lanes, native
        self._vector, self._update = vector, update

    def run(self, emit: Emit, accs: Sequence[Accumulator], part: Expr | None = None, parts: int = 1) -> list[tirx.Stmt]:
        """Statements that leave the partial results in ``accs``."""
        if not self._dims:
            return self._update(emit, accs)
        return self._level(0, emit, accs, part, parts)

    def _adds(self, k: int) -> int:
        """Additions into an accumulator by the loops from ``k`` inwards."""
        extent = self._dims[k].extent
        if k == len(self._dims) - 1:
            return min(-(-extent // self._lanes), 2 * BLOCK)
        return extent if self._flushes(k) else extent * self._adds(k + 1)

    def _flushes(self, k: int) -> bool:
        inner = self._adds(k + 1)
        return inner >= 8 and inner * self._dims[k].extent > BLOCK

    def _level(self, k: int, emit: Emit, accs: Sequence[Accumulator], part: Expr | None, parts: int) -> list[tirx.Stmt]:
        dim = self._dims[k]
        if k == len(self._dims) - 1:
            return self._lanes_run(dim, emit, accs, part, parts)
        var = tirx.Var("c", self._dtype)
        e = emit.copy()
        body = e.enter(dim, var)
        blocked = self._flushes(k) and _blocks(accs)
        level = [a.fresh() for a in accs] if blocked else accs
        for a in level if blocked else ():
            body += a.clear()
        share = part is not None and dim.extent >= parts
        body += self._level(k + 1, e, level, None if share else part, 1 if share else parts)
        if blocked:
            body += [a.take(b) for a, b in zip(accs, level, strict=True)]
        if not share or part is None:
            return [loop(var, dim.extent, seq(body))]
        begin = tirx.floordiv(part * dim.extent, parts)
        return [loop(var, tirx.floordiv((part + 1) * dim.extent, parts) - begin, seq(body), start=begin)]

    def _lanes_run(self, dim: Dim, emit: Emit, accs: Sequence[Accumulator], part: Expr | None, parts: int) -> list[tirx.Stmt]:
        out: list[tirx.Stmt] = []
        last: list[tirx.Stmt] = []
        for start, count, width in spans(dim.extent, self._lanes, self._native):
            share = count // parts
            if part is None:
                out += self._vectors(dim, emit, accs, start, count, width)
                continue
            if share:
                out += self._vectors(dim, emit, accs, part * (share * width) + start, share, width)
            if count > share * parts:
                last += self._vectors(dim, emit, accs, start + share * parts * width, count - share * parts, width)
        if last and part is not None:
            out.append(tirx.IfThenElse(part >= parts - 1, seq(last), None))
        return out

    def _vectors(self, dim: Dim, emit: Emit, accs: Sequence[Accumulator], start: Any, count: int, width: int) -> list[tirx.Stmt]:
        """``count`` vectors from ``start``, in blocks of blocks when there are many."""
        if count <= 2 * BLOCK or not _blocks(accs):
            var = tirx.Var("j", self._dtype)
            base = start if count == 1 else var * width + start
            e = emit.copy()

            def body(lane: Expr) -> list[tirx.Stmt]:
                at = e.lanes(lane, width)
                return [*at.enter(dim, base + lane), *self._update(at, accs)]

            work = lane_loop(width, self._dtype, body, self._vector)
            return [work if count == 1 else loop(var, count, work)]
        size = BLOCK ** pymath.floor(pymath.log(count - 1, BLOCK) + 1e-9)
        var = tirx.Var("b", self._dtype)
        level = [a.fresh() for a in accs]
        body_: list[tirx.Stmt] = []
        for a in level:
            body_ += a.clear()
        body_ += self._vectors(dim, emit, level, var * (size * width) + start, size, width)
        body_ += [a.take(b) for a, b in zip(accs, level, strict=True)]
        out: list[tirx.Stmt] = [loop(var, count // size, seq(body_))]
        if rest := count % size:
            out += self._vectors(dim, emit, accs, start + (count - rest) * width, rest, width)
        return out


def _blocks(accs: Sequence[Accumulator]) -> bool:
    """Whether summing in blocks gains anything; a reduction that is no plain one has only one accumulator."""
    return any(a.kind == "sum" for a in accs) and all(a.kind for a in accs)
