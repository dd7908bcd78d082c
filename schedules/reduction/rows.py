"""Groups whose columns are contiguous: each row by vectors along it, all passes of a row while it is in the cache."""

from __future__ import annotations

import math as pymath
from collections.abc import Mapping, Sequence
from typing import Any

from tilegrad._base.target import Target
from tilegrad._base.tvm import tirx
from tilegrad.schedules.body import Body, Views
from tilegrad.schedules.finish import element_bytes
from tilegrad.schedules.loops import Dim, Emit, collapse, fused, loop, seq, split_threads
from tilegrad.schedules.reduction.accumulate import Accumulator, RowRun
from tilegrad.schedules.reduction.common import live, parts_in_order, retire, spots, updates
from tilegrad.schedules.reduction.passes import (
    STASH_BYTES,
    PassEvaluator,
    Point,
    Stash,
    Store,
    end_value,
    stash_bytes,
)
from tilegrad.schedules.reduction.plan import Group, Pass, Plan, Step
from tilegrad.schedules.reduction.sides import Parts
from tilegrad.schedules.stages import Expr, Stage, id_of
from tilegrad.schedules.template import Config


class RowGroup:
    """Emits a group row by row."""

    def __init__(
        self,
        plan: Plan,
        group: Group,
        views: Views,
        keep: set[int],
        config: Config,
        target: Target,
        bodies: Sequence[Body],
        stashes: Mapping[int, Stage],
    ) -> None:
        self._plan, self._group, self._views, self._keep, self._target = plan, group, views, keep, target
        self._bodies, self._stashes = bodies, stashes
        self._config = config
        self.parts: Parts | None = None
        self._row_dtype = str(group.rows[-1].var.ty.dtype) if group.rows else "int32"

    def fused(self, threads: int) -> list[tirx.Stmt]:
        """One parallel loop over rows; every pass of a row in turn."""
        store = Store()
        evaluator = PassEvaluator(self._plan, self._group, self._views, store)
        store.stashes = {k: Stash(s) for k, s in self._stashes.items()}
        rows = self._row_dims(evaluator)
        locals_: list[tirx.Stmt] = []
        for key, stash in list(store.stashes.items()):
            if key in self._plan.outputs:
                continue
            if stash_bytes(stash, self._group, 1) > STASH_BYTES:
                del store.stashes[key]
                continue
            shape = (stash_bytes(stash, self._group, 1) // element_bytes(stash.stage.dtype),)
            stash.local = tirx.decl_buffer(shape, stash.stage.dtype, name="stash")
            locals_.append(tirx.AllocBuffer(stash.local))
        if self._group.sides:
            out = self._blocks(evaluator, rows, locals_, threads)
        else:
            out = self._every(evaluator, rows, locals_, threads)
        retire(self._plan, self._group, store)
        return out

    def _every(
        self, evaluator: PassEvaluator, rows: Sequence[Dim], locals_: Sequence[tirx.Stmt], threads: int
    ) -> list[tirx.Stmt]:
        count = split_threads([d.extent for d in rows], threads) if threads > 1 else 0
        outer = [d.extent for d in rows[:count]]
        p = tirx.Var("p", self._row_dtype)
        values = fused(p, outer) if count else []
        inner = [tirx.Var("i", self._row_dtype) for _ in rows[count:]]
        body = self._passes(evaluator, list(zip(rows, [*values, *inner], strict=True)), locals_)
        for dim, var in reversed(list(zip(rows[count:], inner, strict=True))):
            body = loop(var, dim.extent, body)
        return [loop(p, pymath.prod(outer), body, tirx.ForKind.PARALLEL) if count else body]

    def _blocks(
        self, evaluator: PassEvaluator, rows: Sequence[Dim], locals_: Sequence[tirx.Stmt], threads: int
    ) -> list[tirx.Stmt]:
        """Blocks of rows, each with its own parts of the sides."""
        extents = [d.extent for d in rows]
        count = pymath.prod(extents)
        self.parts = Parts(self._group, self._views, count)
        blocks = self.parts.blocks
        p, r = tirx.Var("p", self._row_dtype), tirx.Var("r", self._row_dtype)
        clear = self.parts.begin(p, evaluator.store, self._target.vector_bytes // 4)
        body = self._passes(evaluator, list(zip(rows, fused(r, extents), strict=True)), locals_)
        begin = tirx.floordiv(p * count, blocks)
        work = loop(r, tirx.floordiv((p + 1) * count, blocks) - begin, body, start=begin)
        kind = tirx.ForKind.PARALLEL if threads > 1 else tirx.ForKind.SERIAL
        return [loop(p, blocks, seq([*clear, work]), kind)]

    def _passes(self, evaluator: PassEvaluator, places: Sequence[tuple[Dim, Expr]], locals_: Sequence[tirx.Stmt]) -> tirx.Stmt:
        """Every pass of one row."""
        work = list(locals_)
        for current in self._group.passes:
            work += self._pass(evaluator, current, places)
        return seq(work)

    def split(self, threads: int) -> list[tirx.Stmt]:
        """Few long rows: each pass on its own, every row's columns divided among the threads."""
        store = Store()
        evaluator = PassEvaluator(self._plan, self._group, self._views, store)
        store.stashes = {k: Stash(s) for k, s in self._stashes.items() if k in self._plan.outputs}
        out: list[tirx.Stmt] = []
        for current in self._group.passes:
            out += self._split_pass(evaluator, current, threads)
        retire(self._plan, self._group, store)
        return out

    def _row_dims(self, evaluator: PassEvaluator) -> list[Dim]:
        """The rows, merged where every pass moves through them as through one."""
        accesses = [a for b in self._bodies for a in b.accesses]
        free = set().union(*(b.free for b in self._bodies))
        accesses += [
            evaluator.access(s.stage.buffer, spots(s))
            for p in self._group.passes
            for s in p.steps
            if id_of(s.stage.buffer) in self._keep
        ]
        return collapse(self._group.rows, accesses, free)

    def _columns(self, point: Point, current: Pass) -> list[Dim]:
        plain = all(s.kind or not s.stage.reduce for s in current.steps)
        order = _by_stride(current.cols, point.body) if plain else current.cols
        return collapse(order, point.body.accesses, point.body.free)

    def _width(self, current: Pass, point: Point, dims: Sequence[Dim]) -> tuple[int, int, bool]:
        """(lanes, lanes of a register, whether vectors are possible) for a pass."""
        sizes = [element_bytes(s.stage.dtype) for s in (*current.steps, *current.sides)]
        native = max(1, self._target.vector_bytes // max(sizes))
        plain = all(s.kind or not s.stage.reduce for s in current.steps)
        vector = plain and bool(dims) and id_of(dims[-1].var) not in point.body.scalar | set(point.body.cuts)
        if not vector:
            return 1, 1, False
        lanes = native * int(self._config["vector"])
        if not current.reduces:
            return lanes, native, True
        extent = dims[-1].extent
        while lanes > 2 and lanes // 2 >= extent:
            lanes //= 2
        return lanes, min(native, lanes), True

    def _pass(self, evaluator: PassEvaluator, current: Pass, rows: Sequence[tuple[Dim, Expr]]) -> list[tirx.Stmt]:
        """All columns of one row, and its results."""
        current = live(current, evaluator.store)
        if not current.steps and not current.sides:
            return []
        if general := [s for s in current.steps if s.stage.reduce and not s.kind]:
            # its body reads its own element: that is the accumulator
            accs = [Accumulator.of(s, 1) for s in general]
            evaluator.store.locals.update({id_of(a.step.stage.buffer): a.array for a in accs})
        point = evaluator.point(current)
        emit = Emit(point.body)
        out = emit.ready()
        for dim, value in rows:
            out += emit.enter(dim, value)
        dims = self._columns(point, current)
        lanes, native, vector = self._width(current, point, dims)
        if not general:
            accs = [Accumulator.of(s, lanes) for s in current.steps] if current.reduces else []
        for a in accs:
            out += a.clear()
        run = self._run(evaluator, current, point, dims, lanes, native, vector)
        out += run.run(emit, accs)
        for stash, _, _ in point.kept:
            stash.written = True
        for step, acc in zip(current.steps, accs, strict=False):
            out += self._finish(evaluator, step, acc, emit)
        return out

    def _run(
        self, evaluator: PassEvaluator, current: Pass, point: Point, dims: Sequence[Dim], lanes: int, native: int, vector: bool
    ) -> RowRun:
        dtype = str(current.cols[-1].var.ty.dtype) if current.cols else "int32"
        update = lambda e, accs: updates(self._views, evaluator, current, point, e, accs, e.lane)  # noqa: E731
        return RowRun(dims, dtype, lanes, native, vector, update)

    def _finish(self, evaluator: PassEvaluator, step: Step, acc: Accumulator, emit: Emit) -> list[tirx.Stmt]:
        """A reduction's value from its lanes: a local for later passes, memory for later phases."""
        out, total = acc.across()
        local = tirx.decl_buffer((1,), step.stage.dtype, name="value")
        out += [tirx.AllocBuffer(local), tirx.BufferStore(local, end_value(step, total), [0])]
        evaluator.store.locals[id_of(step.stage.buffer)] = local
        if id_of(step.stage.buffer) in self._keep:
            at = emit.at(evaluator.offset(step.stage.buffer, spots(step)))
            out.append(tirx.BufferStore(self._views.declare(step.stage.buffer), local[0], [at]))
        return out

    def _split_pass(self, evaluator: PassEvaluator, current: Pass, threads: int) -> list[tirx.Stmt]:
        current = live(current, evaluator.store)
        if not current.steps:
            return []
        point = evaluator.point(current)
        rows = collapse(self._group.rows, [*point.body.accesses, *self._result_accesses(evaluator, current)], point.body.free)
        dims = self._columns(point, current)
        lanes, native, vector = self._width(current, point, dims)
        p = tirx.Var("p", self._row_dtype)
        places = fused(tirx.floordiv(p, threads), [d.extent for d in rows])
        emit = Emit(point.body)
        work = emit.ready()
        for dim, value in zip(rows, places, strict=True):
            work += emit.enter(dim, value)
        accs = [Accumulator.of(s, lanes) for s in current.steps] if current.reduces else []
        for a in accs:
            work += a.clear()
        part = tirx.Cast(dims_dtype(current), tirx.floormod(p, threads))
        work += self._run(evaluator, current, point, dims, lanes, native, vector).run(emit, accs, part, threads)
        count = self._group.row_count * threads
        out: list[tirx.Stmt] = []
        tail: list[tirx.Stmt] = []
        q = tirx.Var("q", self._row_dtype)
        at_row = Emit(point.body)
        for dim, value in zip(rows, fused(q, [d.extent for d in rows]), strict=True):
            at_row.enter(dim, value)
        for step, acc in zip(current.steps, accs, strict=False):
            parts = tirx.decl_buffer((count,), acc.dtype, name="parts")
            out.append(tirx.AllocBuffer(parts))
            across, total = acc.across()
            work += [*across, tirx.BufferStore(parts, total, [p])]
            view, at = self._views.declare(step.stage.buffer), at_row.at(evaluator.offset(step.stage.buffer, spots(step)))
            store = lambda v, view=view, at=at: tirx.BufferStore(view, v, [at])  # noqa: E731
            tail += parts_in_order(step, parts, lambda t: q * threads + t, threads, store)
        out.append(loop(p, count, seq(work), tirx.ForKind.PARALLEL))
        if tail:
            out.append(loop(q, self._group.row_count, seq(tail)))
        for stash, _, _ in point.kept:
            stash.written = True
        return out

    def _result_accesses(self, evaluator: PassEvaluator, current: Pass) -> list[Any]:
        return [evaluator.access(s.stage.buffer, spots(s)) for s in current.steps if s.stage.reduce]


def dims_dtype(current: Pass) -> str:
    """The type of a pass's loop variables."""
    return str(current.cols[-1].var.ty.dtype) if current.cols else "int32"


def _by_stride(cols: Sequence[Any], body: Body) -> list[Any]:
    """Columns in the order in which the largest access lies in memory."""
    sized = sorted(body.accesses, key=lambda a: -a.elements)
    main = next((a for a in sized if any(a.coef(c.var) for c in cols)), None)
    return list(cols) if main is None else sorted(cols, key=lambda c: -abs(main.coef(c.var)) if main.coef(c.var) else -(1 << 62))
