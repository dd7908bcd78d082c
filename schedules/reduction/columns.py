"""Groups whose rows are contiguous: a block of neighbouring rows by vectors across them, columns one after the other."""

from __future__ import annotations

import math as pymath
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilegrad._base.target import Target
from tilegrad._base.tvm import tirx
from tilegrad.schedules.body import Views, combine
from tilegrad.schedules.finish import element_bytes
from tilegrad.schedules.loops import Dim, Emit, collapse, fused, lane_loop, loop, seq, spans
from tilegrad.schedules.reduction.accumulate import BLOCK, Accumulator
from tilegrad.schedules.reduction.common import kept_stores, live, parts_in_order, retire, spots, updates
from tilegrad.schedules.reduction.passes import (
    STASH_BYTES,
    PassEvaluator,
    Point,
    Stash,
    Store,
    end_value,
    start_value,
    stash_bytes,
)
from tilegrad.schedules.reduction.plan import Group, Pass, Plan, Step
from tilegrad.schedules.stages import Expr, Stage, id_of
from tilegrad.schedules.template import Config

UNROLL = 4
"""Columns added to one another before they are added to the accumulators."""
MAX_BLOCK = 512
"""Rows of a block: accumulators of 2 KiB each leave the first-level cache to the data."""


class ColumnGroup:
    """Emits a group by blocks of its last row variable."""

    def __init__(
        self,
        plan: Plan,
        group: Group,
        views: Views,
        keep: set[int],
        config: Config,
        target: Target,
        threads: int,
        stashes: Mapping[int, Stage],
    ) -> None:
        self._kept = stashes
        self._plan, self._group, self._views, self._keep, self._threads = plan, group, views, keep, threads
        self._width = max(element_bytes(s.stage.dtype) for p in group.passes for s in p.steps)
        self.native = max(1, target.vector_bytes // self._width)
        self.lanes = self.native * int(config["vector"])
        self.dtype = str(group.rows[-1].var.ty.dtype)
        self.lane = Dim(group.rows[-1].var, group.rows[-1].extent)
        self.outer = [Dim(i.var, i.extent) for i in group.rows[:-1]]
        self._others = pymath.prod(d.extent for d in self.outer)

    @property
    def splits(self) -> bool:
        """Whether there are too few rows for blocks on every thread; then all results live in memory."""
        return self._threads > 1 and self._others < self._threads and self.lane.extent < self._threads * 4 * self.native

    def build(self) -> list[tirx.Stmt]:
        """Parallel over blocks; where there are too few of them, over columns."""
        if self.splits:
            return self._split()
        share = self.lane.extent if self._others >= 4 * self._threads else -(-self.lane.extent // self._threads)
        block = min(MAX_BLOCK, -(-share // self.lanes) * self.lanes)
        if len(self._group.passes) > 1:  # later passes find the block's columns in the cache
            near = STASH_BYTES // (self._group.col_count * self._width)
            block = max(self.lanes, min(block, near // self.lanes * self.lanes))
        blocks = -(-self.lane.extent // block)
        p = tirx.Var("p", self.dtype)
        first = tirx.floormod(p, blocks) * block
        rows = list(zip(self.outer, fused(tirx.floordiv(p, blocks), [d.extent for d in self.outer]), strict=True))
        store = Store(width=block, base=tirx.const(0, self.dtype) - first)
        evaluator = PassEvaluator(self._plan, self._group, self._views, store)

        def body(width: int) -> tirx.Stmt:
            store.locals.clear()
            store.stashes = self._stashes(block)
            work: list[tirx.Stmt] = [tirx.AllocBuffer(s.local) for s in store.stashes.values() if s.local is not None]
            for current in self._group.passes:
                work += self._pass(evaluator, current, rows, first, width)
            return seq(work)

        full, rest = divmod(self.lane.extent, block)
        cases = [body(w) for w in ([block] if full else []) + ([rest] if rest else [])]
        work = cases[0] if len(cases) == 1 else tirx.IfThenElse(tirx.floormod(p, blocks) < full, *cases)
        retire(self._plan, self._group, store)
        kind = tirx.ForKind.PARALLEL if self._threads > 1 else tirx.ForKind.SERIAL
        return [loop(p, self._others * blocks, work, kind)]

    def _stashes(self, block: int) -> dict[int, Stash]:
        found = {k: Stash(s) for k, s in self._kept.items()}
        for key, stash in list(found.items()):
            if key in self._plan.outputs:
                continue
            size = stash_bytes(stash, self._group, block)
            if size > STASH_BYTES:
                del found[key]
                continue
            stash.local = tirx.decl_buffer((size // element_bytes(stash.stage.dtype),), stash.stage.dtype, name="stash")
        return found

    def _pass(
        self, evaluator: PassEvaluator, current: Pass, rows: Sequence[tuple[Dim, Expr]], first: Expr, width: int
    ) -> list[tirx.Stmt]:
        """All columns of one block of ``width`` rows, and its results."""
        current = live(current, evaluator.store)
        if not current.steps:
            return []
        point = evaluator.point(current)
        emit = Emit(point.body)
        out = emit.ready()
        for dim, value in rows:
            out += emit.enter(dim, value)
        block = _Block(self, self._views, evaluator, current, point, first, width)
        accs = [Accumulator.of(s, width) for s in current.steps] if current.reduces else []
        for a in accs:
            out += block.clear(a)
        out += block.run(emit, collapse(current.cols, point.body.accesses, point.body.free), accs)
        for stash, _, _ in point.kept:
            stash.written = True
        for step, acc in zip(current.steps, accs, strict=False):
            out += self._finish(block, step, acc, emit)
        return out

    def _finish(self, block: _Block, step: Step, acc: Accumulator, emit: Emit) -> list[tirx.Stmt]:
        """A reduction's values from the accumulators: locals for later passes, memory for later phases."""
        key = id_of(step.stage.buffer)
        local = tirx.decl_buffer((block.width,), step.stage.dtype, name="value")
        block.evaluator.store.locals[key] = local

        def body(at: Expr) -> list[tirx.Stmt]:
            out: list[tirx.Stmt] = [tirx.BufferStore(local, end_value(step, acc.array[at]), [at])]
            if key in self._keep:
                out.append(self._store(block.evaluator, step, emit, block.first + at, local[at]))
            return out

        return [tirx.AllocBuffer(local), *block.each(body)]

    def _store(self, evaluator: PassEvaluator, step: Step, emit: Emit, row: Expr, value: Expr) -> tirx.Stmt:
        e = emit.copy()
        e.enter(self.lane, row)
        index = e.at(evaluator.offset(step.stage.buffer, spots(step)))
        return tirx.BufferStore(self._views.declare(step.stage.buffer), value, [index])

    def _split(self) -> list[tirx.Stmt]:
        """Too few rows for blocks: each pass on its own, its columns divided among the threads, parts summed in order."""
        store = Store()
        evaluator = PassEvaluator(self._plan, self._group, self._views, store)
        store.stashes = {k: Stash(s) for k, s in self._kept.items() if k in self._plan.outputs}
        out: list[tirx.Stmt] = []
        for current in self._group.passes:
            current = live(current, store)
            if current.steps:
                out += self._split_pass(evaluator, current)
        retire(self._plan, self._group, store)
        return out

    def _split_pass(self, evaluator: PassEvaluator, current: Pass) -> list[tirx.Stmt]:
        point = evaluator.point(current)
        dims = collapse(current.cols, point.body.accesses, point.body.free)
        # without columns there is nothing to divide: on every thread, an update in place would run twice
        n, threads = self.lane.extent, self._threads if dims else 1
        p, q = tirx.Var("p", self.dtype), tirx.Var("q", self.dtype)
        extents = [d.extent for d in self.outer]
        emit = Emit(point.body)
        work = emit.ready()
        for dim, value in zip(self.outer, fused(tirx.floordiv(p, threads), extents), strict=True):
            work += emit.enter(dim, value)
        block = _Block(self, self._views, evaluator, current, point, tirx.const(0, self.dtype), n)
        accs = [Accumulator.of(s, n) for s in current.steps] if current.reduces else []
        for a in accs:
            work += block.clear(a)
        work += block.run(emit, dims, accs, (tirx.floormod(p, threads), threads))
        for stash, _, _ in point.kept:
            stash.written = True
        out: list[tirx.Stmt] = []
        tail: list[tirx.Stmt] = []
        at_row = Emit(point.body)
        for dim, value in zip([*self.outer, self.lane], fused(q, [*extents, n]), strict=True):
            at_row.enter(dim, value)
        for step, acc in zip(current.steps, accs, strict=False):
            parts = tirx.decl_buffer((self._others * threads * n,), acc.dtype, name="parts")
            out.append(tirx.AllocBuffer(parts))
            work += block.each(lambda at, acc=acc, parts=parts: [tirx.BufferStore(parts, acc.array[at], [p * n + at])])  # type: ignore[misc]
            index = lambda t: (tirx.floordiv(q, n) * threads + t) * n + tirx.floormod(q, n)  # noqa: E731
            view, at = self._views.declare(step.stage.buffer), at_row.at(evaluator.offset(step.stage.buffer, spots(step)))
            tail += parts_in_order(step, parts, index, threads, lambda v, view=view, at=at: tirx.BufferStore(view, v, [at]))
        out.append(loop(p, self._others * threads, seq(work), tirx.ForKind.PARALLEL))
        return [*out, loop(q, self._others * n, seq(tail))] if tail else out


@dataclass
class _Block:
    """One pass over a block of ``width`` neighbouring rows that starts at row ``first``."""

    owner: ColumnGroup
    views: Views
    evaluator: PassEvaluator
    current: Pass
    point: Point
    first: Expr
    width: int

    @property
    def dtype(self) -> str:
        """The type of loop variables over columns."""
        return str(self.current.cols[-1].var.ty.dtype) if self.current.cols else "int32"

    def each(self, body: Callable[[Expr], list[tirx.Stmt]], vector: bool = True) -> list[tirx.Stmt]:
        """``body(position)`` for each row of the block, by vectors."""
        return self._each(lambda at, _lane, _lanes: body(at), vector)

    def _each(self, body: Callable[[Expr, Expr, int], list[tirx.Stmt]], vector: bool) -> list[tirx.Stmt]:
        out = []
        for start, count, lanes in spans(self.width, self.owner.lanes, self.owner.native):
            var = tirx.Var("j", self.owner.dtype)
            base = tirx.const(start, self.owner.dtype) if count == 1 else var * lanes + start
            one = lambda lane, base=base, lanes=lanes: body(base + lane, lane, lanes)  # noqa: E731
            work = lane_loop(lanes, self.owner.dtype, one, vector)
            out.append(work if count == 1 else loop(var, count, work))
        return out

    def clear(self, acc: Accumulator) -> list[tirx.Stmt]:
        """Declare an accumulator of the block, with its start."""
        start = start_value(acc.step)
        return [tirx.AllocBuffer(acc.array), *self.each(lambda at: [tirx.BufferStore(acc.array, start, [at])])]

    def run(
        self, emit: Emit, dims: Sequence[Dim], accs: Sequence[Accumulator], part: tuple[Expr, int] | None = None
    ) -> list[tirx.Stmt]:
        """Loops over the columns, or over one of ``part[1]`` shares of them."""
        if not dims:
            return self._rows(emit, [], accs)
        if len(dims) == 1:
            return self._columns(emit, dims[0], accs, part)
        var = tirx.Var("c", self.dtype)
        e = emit.copy()
        body = e.enter(dims[0], var)
        return [_share(var, dims[0].extent, seq([*body, *self.run(e, dims[1:], accs)]), part)]

    def _columns(self, emit: Emit, dim: Dim, accs: Sequence[Accumulator], part: tuple[Expr, int] | None) -> list[tirx.Stmt]:
        """The innermost loop over columns, some at a time; long sums in blocks of blocks."""
        unroll = UNROLL if accs else 1
        count = dim.extent // unroll

        def at(group: Expr, n: int, into: Sequence[Accumulator]) -> list[tirx.Stmt]:
            return self._rows(emit, [(dim, group * unroll + u) for u in range(n)], into)

        out: list[tirx.Stmt] = []
        size, begin = 8 * BLOCK // unroll, 0
        if count >= 2 * size * (part[1] if part else 1) and any(a.kind == "sum" for a in accs):
            b, c = tirx.Var("b", self.dtype), tirx.Var("c", self.dtype)
            level = [a.fresh() for a in accs]
            body = [s for a in level for s in self.clear(a)]
            body.append(loop(c, size, seq(at(b * size + c, unroll, level))))
            for a, inner in zip(accs, level, strict=True):
                body += self.each(lambda i, a=a, inner=inner: [a.add(i, inner.array[i])])  # type: ignore[misc]
            out.append(_share(b, count // size, seq(body), part))
            begin = count // size * size
        last: list[tirx.Stmt] = []
        if count > begin:
            c = tirx.Var("c", self.dtype)
            work = seq(at(c + begin, unroll, accs))
            if part is None or not begin:
                out.append(_share(c, count - begin, work, part))
            else:
                last.append(loop(c, count - begin, work))
        if rest := dim.extent % unroll:
            last += at(tirx.const(count, self.dtype), rest, accs)
        if last:
            out.append(seq(last) if part is None else tirx.IfThenElse(part[0] >= part[1] - 1, seq(last), None))
        return out

    def _rows(self, emit: Emit, columns: Sequence[tuple[Dim, Expr]], accs: Sequence[Accumulator]) -> list[tirx.Stmt]:
        """The block's rows at one column, or at several."""
        body = self.point.body
        vector = id_of(self.owner.lane.var) not in body.scalar | set(body.cuts)
        shared = emit.copy()
        out = shared.enter(*columns[0]) if len(columns) == 1 else []

        def one(at: Expr, lane: Expr, lanes: int) -> list[tirx.Stmt]:
            e = shared.lanes(lane, lanes)
            if len(columns) > 1:
                return self._several(e, columns, accs, at)
            entered = e.enter(self.owner.lane, self.first + at)
            return [*entered, *updates(self.views, self.evaluator, self.current, self.point, e, accs, at)]

        return [*out, *self._each(one, vector)]

    def _several(self, emit: Emit, columns: Sequence[tuple[Dim, Expr]], accs: Sequence[Accumulator], at: Expr) -> list[tirx.Stmt]:
        """Several columns of one vector of rows, combined pairwise before they meet the accumulators."""
        out: list[tirx.Stmt] = []
        stores: list[tirx.Stmt] = []
        terms: list[list[Expr]] = [[] for _ in accs]
        for dim, value in columns:
            e = emit.copy()
            out += [*e.enter(dim, value), *e.enter(self.owner.lane, self.first + at)]
            for k, result in enumerate(self.point.body.results):
                named, read = e.name(e.at(result))
                out += named
                terms[k].append(read)
            stores += kept_stores(self.views, self.evaluator, self.point, e)
        for acc, row in zip(accs, terms, strict=True):
            assert acc.kind is not None
            while len(row) > 1:
                pairs = []
                for k in range(0, len(row) - 1, 2):
                    named, read = emit.name(combine(acc.kind, row[k], row[k + 1]))
                    out += named
                    pairs.append(read)
                row = pairs + row[len(row) // 2 * 2 :]
            out.append(acc.add(at, row[0]))
        return out + stores


def _share(var: Any, extent: int, body: tirx.Stmt, part: tuple[Expr, int] | None) -> tirx.Stmt:
    if part is None:
        return loop(var, extent, body)
    index, parts = part
    begin = tirx.floordiv(index * extent, parts)
    return loop(var, tirx.floordiv((index + 1) * extent, parts) - begin, body, start=begin)
