"""One loop nest that computes spatial stages of one shape in a single pass."""

from __future__ import annotations

import math as pymath
from collections.abc import Mapping, Sequence
from typing import Any

from tilegrad._base.target import Target
from tilegrad._base.tvm import tirx, tvm_ffi
from tilegrad.schedules.body import Access, Body, Evaluator, Views, elements
from tilegrad.schedules.elementwise.strips import Strips, strips
from tilegrad.schedules.elementwise.turn import Turned, turned
from tilegrad.schedules.finish import element_bytes
from tilegrad.schedules.loops import (
    PARALLEL_WORK,
    Dim,
    Emit,
    collapse,
    fused,
    lane_loop,
    loop,
    segments,
    seq,
    spans,
    split_threads,
)
from tilegrad.schedules.stages import Iter, Stage, id_of, variables
from tilegrad.schedules.template import Config

MAX_SIDE = 16
"""Rows of a square: more would not fit the registers."""
TILE_LANES = 128
"""Width of a transposed tile: as many lines as a way of the second-level cache holds at strides of powers of two."""


def elementwise_nest(
    outputs: Sequence[Stage], inlined: Mapping[int, Stage], views: Views, config: Config, target: Target
) -> list[tirx.Stmt]:
    """Statements that compute ``outputs`` (spatial, of one shape) with everything in ``inlined`` computed on the way."""
    return _Nest(outputs, inlined, views, config, target).build()


class _Nest:
    def __init__(
        self, outputs: Sequence[Stage], inlined: Mapping[int, Stage], views: Views, config: Config, target: Target
    ) -> None:
        self._outputs, self._inlined, self._views, self._target = outputs, inlined, views, target
        self._iters = outputs[0].spatial or (Iter(tirx.Var("u", "int32"), 1),)
        self._dtype = str(self._iters[-1].var.ty.dtype)
        self._strips: Strips | None = None
        self._period = 1
        self._whole = self._evaluate({})
        self._period = self._find_period()
        if self._period > 1:
            last = self._iters[-1]
            self._iters = (*self._iters[:-1], Iter(tirx.Var("q", self._dtype), last.extent // self._period))
            self._whole = self._evaluate({})
        self._dims = collapse(self._iters, self._whole.accesses, self._whole.free)
        width = max(element_bytes(s.dtype) for s in outputs)
        self._native = max(1, target.vector_bytes // width)
        self._lanes = self._native * int(config["vector"])
        self._tile = int(config["tile"])
        work = pymath.prod(d.extent for d in self._dims) * self._whole.weight
        self._threads = target.threads if config["parallel"] and work >= PARALLEL_WORK else 1

    def _evaluate(self, ranges: Mapping[int, tuple[int, int]]) -> Body:
        """The body over the common index variables, stores' accesses included."""
        evaluator = Evaluator(self._iters, self._inlined, self._views, ranges=ranges)
        for stage in self._outputs:
            spot = [it.var for it in self._iters[: len(stage.spatial)]]
            for r in range(self._period):
                evaluator.add_element(stage.buffer, spot if self._period == 1 else [*spot[:-1], spot[-1] * self._period + r])
            stride, coefs = self._period, {}
            for it in reversed(self._iters):
                coefs[id_of(it.var)] = stride
                stride *= it.extent
            view = self._views.declare(stage.buffer)
            evaluator.body.accesses.append(Access(view, coefs, frozenset(), elements(stage.buffer)))
        return evaluator.body

    def _find_period(self) -> int:
        """Along the innermost variable, after how many elements quotients and remainders by small numbers repeat.

        Transposed strided windows and enlarged images have one. Each residue then is a vector of its own, and vectors
        are interleaved when they are stored.
        """
        last, found = self._iters[-1], 1
        divisions: list[Any] = []
        for expr in [*self._whole.results, *(v for _, v in self._whole.binds)]:
            tvm_ffi.structural_walk(expr, ((tirx.FloorDiv, tirx.FloorMod), divisions.append))
        for d in divisions:
            if isinstance(d.b, tirx.IntImm) and any(v.same_as(last.var) for v in variables(d.a)):
                found = pymath.lcm(found, int(d.b.value))
        fits = 1 < found <= 4 and last.extent % found == 0 and last.extent >= 4 * found
        return found if fits and not any(s.dtype == "bool" for s in self._outputs) else 1

    def build(self) -> list[tirx.Stmt]:
        lane = self._dims[-1]
        out: list[tirx.Stmt] = []
        for low, high in segments(lane.extent, self._whole.cuts.get(id_of(lane.var), set())):
            body = self._whole if high - low == lane.extent else self._evaluate({id_of(lane.var): (low, high)})
            out.append(self._segment(body, low, high))
        return out

    def _segment(self, body: Body, low: int, high: int) -> tirx.Stmt:
        """Loops over everything, the innermost dimension within [low, high)."""
        outer, lane = self._dims[:-1], self._dims[-1]
        across = _transposed(body.accesses, outer, lane)
        if across is not None and self._tile > 1:
            return self._tiled(body, outer, across, lane, low, high)
        strided = strips(body, lane, self._lanes)
        self._strips = strided
        emit = Emit(strided.body if strided else body)
        arrays: list[tirx.Stmt] = [tirx.AllocBuffer(a) for _, _, a in strided.reads] if strided else []
        top = emit.ready()
        if self._threads == 1:
            return seq([*top, *arrays, self._serial(emit, outer, lambda e: self._lane_spans(e, lane, low, high))])
        count = split_threads([d.extent for d in outer], self._threads)
        rows = pymath.prod(d.extent for d in outer[:count])
        parts = 1 if rows >= 8 * self._threads else self._threads // pymath.gcd(rows, self._threads)
        p = tirx.Var("p", self._dtype)
        row = p if parts == 1 else tirx.floordiv(p, parts)
        part = tirx.floormod(p, parts)
        binds = arrays
        for dim, value in zip(outer[:count], fused(row, [d.extent for d in outer[:count]]), strict=True):
            binds += emit.enter(dim, value)

        def inner(e: Emit) -> list[tirx.Stmt]:
            return self._lane_spans(e, lane, low, high, (part, parts) if parts > 1 else None)

        work = self._serial(emit, outer[count:], inner)
        return seq([*top, loop(p, rows * parts, seq([*binds, work]), tirx.ForKind.PARALLEL)])

    def _serial(self, emit: Emit, dims: Sequence[Dim], inner: Any) -> tirx.Stmt:
        """Plain loops over ``dims`` around ``inner``."""
        if not dims:
            return seq(inner(emit))
        var = tirx.Var("i", self._dtype)
        binds = emit.enter(dims[0], var)
        return loop(var, dims[0].extent, seq([*binds, self._serial(emit, dims[1:], inner)]))

    def _lane_spans(self, emit: Emit, lane: Dim, low: int, high: int, part: tuple[Any, int] | None = None) -> list[tirx.Stmt]:
        """The innermost dimension by vectors and their tail; with ``part`` only that share of it."""
        out: list[tirx.Stmt] = []
        vector = id_of(lane.var) not in emit.body.scalar
        for start, count, width in spans(high - low, self._lanes, self._native):
            first = low + start
            if part is not None and count > 1:
                index, parts = part
                begin = tirx.floordiv(index * count, parts)
                extent = tirx.floordiv((index + 1) * count, parts) - begin
                out.append(self._vectors(emit, lane, first, begin, extent, width, vector))
            elif part is not None:
                body = self._vectors(emit, lane, first, 0, count, width, vector)
                out.append(tirx.IfThenElse(part[0] >= part[1] - 1, body, None))
            else:
                out.append(self._vectors(emit, lane, first, 0, count, width, vector))
        return out

    def _vectors(self, emit: Emit, lane: Dim, first: int, begin: Any, count: Any, width: int, vector: bool) -> tirx.Stmt:
        var = tirx.Var("j", self._dtype)
        single = isinstance(count, int) and count == 1
        base = tirx.const(first, self._dtype) if single else var * width + first

        work = self._vector(emit, lane, base, width, vector)
        return work if single else loop(var, count, work, start=begin)

    def _vector(self, emit: Emit, lane: Dim, base: Any, width: int, vector: bool) -> tirx.Stmt:
        """One vector of every output from ``base``."""
        before: list[tirx.Stmt] = []
        after: list[tirx.Stmt] = []
        if self._strips is not None and emit.body is self._strips.body:
            emit = emit.copy()
            before = self._strips.fill(emit, base, width)

        def body(index: Any) -> list[tirx.Stmt]:
            e = emit.lanes(index, width)
            entered = e.enter(lane, base + index)
            if self._period == 1:
                return [*entered, *self._stores(e)]
            start = emit.copy()
            start.enter(lane, base)
            named, stores = self._interleaved(e, start, width)
            after.extend(stores)
            return [*entered, *named]

        return seq([*before, lane_loop(width, self._dtype, body, vector), *after])

    def _interleaved(self, emit: Emit, start: Emit, width: int) -> tuple[list[tirx.Stmt], list[tirx.Stmt]]:
        """(each residue's values, named, lane by lane; the stores of whole vectors that alternate between residues)."""
        m, named, stores = self._period, [], []
        for k, stage in enumerate(self._outputs):
            vectors = []
            for result in emit.body.results[k * m : (k + 1) * m]:
                statements, read = emit.name(emit.at(result))
                named += statements
                vectors.append(read.source.vload([0], stage.dtype if width == 1 else f"{stage.dtype}x{width}"))
            order = [r * width + lane for lane in range(width) for r in range(m)]
            value = tirx.Shuffle(vectors, order)
            place = tirx.Ramp(start.at(self._offset()), tirx.const(1, self._dtype), m * width)
            stores.append(tirx.BufferStore(self._views.declare(stage.buffer), value, [place]))
        return named, stores

    def _offset(self) -> Any:
        """The flat index of an output's element (the first of a period)."""
        offset: Any = tirx.const(0, self._dtype)
        stride = self._period
        for it in reversed(self._iters):
            offset = it.var * stride + offset if stride > 1 else it.var + offset
            stride *= it.extent
        return offset

    def _stores(self, emit: Emit) -> list[tirx.Stmt]:
        """All values first, then all stores: an output may lie where an input does."""
        values: list[tirx.Stmt] = []
        stores: list[tirx.Stmt] = []
        place = emit.at(self._offset())
        for stage, result in zip(self._outputs, emit.body.results, strict=True):
            value = emit.at(result)
            if len(self._outputs) > 1 and str(value.ty.dtype) != "bool":
                named, value = emit.name(value)
                values += named
            stores.append(tirx.BufferStore(self._views.declare(stage.buffer), value, [place]))
        return values + stores

    def _tiled(self, body: Body, outer: Sequence[Dim], across: Dim, lane: Dim, low: int, high: int) -> tirx.Stmt:
        """Tiles of ``across`` x ``lane``, so that lines read along ``across`` are used up while they are near."""
        tile = (self._tile, TILE_LANES)
        others = [d for d in outer if d is not across]
        sizes = (across.extent, high - low)
        blocks = [-(-n // t) for n, t in zip(sizes, tile, strict=True)]
        extents = [d.extent for d in others] + blocks
        p = tirx.Var("p", self._dtype)
        *places, a_block, l_block = fused(p, extents)
        squares = turned(body, across, lane, min(self._native, MAX_SIDE)) if self._period == 1 else None
        side = squares.side if squares else 1
        emits = [Emit(b) for b in ([body, squares.body] if squares else [body])]
        top = [s for e in emits for s in e.ready()]
        binds: list[tirx.Stmt] = [tirx.AllocBuffer(square) for _, _, square in squares.squares] if squares else []
        for dim, value in zip(others, places, strict=True):
            binds += [s for e in emits for s in e.enter(dim, value)]
        firsts = a_block * tile[0], l_block * tile[1] + low
        cases = [
            [(block < n // t, t), (None, n % t)] for block, n, t in zip((a_block, l_block), sizes, tile, strict=True)
        ]  # whole tiles, and what is left of them

        def at(rows: int, width: int) -> tirx.Stmt:
            whole_rows, whole = (rows // side * side, width // side * side) if squares else (0, 0)
            work: list[tirx.Stmt] = []
            if squares and whole_rows and whole:
                work.append(self._squares(emits[1], squares, firsts, whole_rows, whole))
            if whole < width and whole_rows:
                work.append(self._patch(emits[0], (across, lane), firsts, (0, whole_rows), (whole, width)))
            if whole_rows < rows:
                work.append(self._patch(emits[0], (across, lane), firsts, (whole_rows, rows), (0, width)))
            return seq(work)

        def lanes_of(rows: int) -> tirx.Stmt:
            return _cases([(c, at(rows, w)) for c, w in cases[1] if w and (c is None or blocks[1] > 1 or sizes[1] == w)])

        work = _cases([(c, lanes_of(r)) for c, r in cases[0] if r and (c is None or blocks[0] > 1 or sizes[0] == r)])
        kind = tirx.ForKind.PARALLEL if self._threads > 1 else tirx.ForKind.SERIAL
        return seq([*top, loop(p, pymath.prod(extents), seq([*binds, work]), kind)])

    def _squares(self, emit: Emit, squares: Turned, firsts: tuple[Any, Any], rows: int, width: int) -> tirx.Stmt:
        """The part of a tile that squares cover."""
        side = squares.side
        a, v, k = (tirx.Var(n, self._dtype) for n in ("a", "l", "k"))
        e = emit.copy()
        work = [*e.enter(squares.origin[0], firsts[0] + a * side), *e.enter(squares.origin[1], firsts[1] + v * side)]
        work += squares.fill(e)
        row = e.copy()
        inside = row.enter(squares.dims[0], firsts[0] + a * side + k)
        work.append(loop(k, side, seq([*inside, self._vector(row, squares.dims[1], firsts[1] + v * side, side, True)])))
        return loop(a, rows // side, loop(v, width // side, seq(work)))

    def _patch(
        self, emit: Emit, dims: tuple[Dim, Dim], firsts: tuple[Any, Any], rows: tuple[int, int], lanes: tuple[int, int]
    ) -> tirx.Stmt:
        """A part of a tile row by row."""
        a = tirx.Var("a", self._dtype)
        e = emit.copy()
        work = e.enter(dims[0], firsts[0] + rows[0] + a)
        vector = id_of(dims[1].var) not in emit.body.scalar
        for start, count, width in spans(lanes[1] - lanes[0], self._lanes, self._native):
            for k in range(count):
                work.append(self._vector(e, dims[1], firsts[1] + (lanes[0] + start + k * width), width, vector))
        return loop(a, rows[1] - rows[0], seq(work))


def _cases(cases: Sequence[tuple[Any, tirx.Stmt]]) -> tirx.Stmt:
    """The first statement whose condition holds; the last one needs none."""
    (condition, first), *rest = cases
    return first if not rest else tirx.IfThenElse(condition, first, _cases(rest))


def _transposed(accesses: Sequence[Access], outer: Sequence[Dim], lane: Dim) -> Dim | None:
    """The dimension along which some read is contiguous while it strides along ``lane``."""
    for access in accesses:
        if abs(access.coef(lane.var)) > 8:
            for dim in outer:
                if access.coef(dim.var) == 1 and dim.extent > 1:
                    return dim
    return None
