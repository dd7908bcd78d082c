"""What both loop nests share: units of work, tiles of rows and vectors of a band, and reads of the strip."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

from tilegrad._base.tvm import ir, tirx, tvm_ffi
from tilegrad.schedules.contraction.affine import decompose
from tilegrad.schedules.contraction.tir import Memory, Stmt, bind, ramp, seq, when
from tilegrad.schedules.stages import Expr, Iter, id_of
from tilegrad.schedules.template import Scheduled
from tilegrad.schedules.window.form import Window
from tilegrad.schedules.window.plan import POINT, Plan
from tilegrad.schedules.window.strip import Strip

Read = tuple[int, int, int, int]
"""An element of the strip that a tile reads: plane, row within the tile's rows of the strip, column place, vector."""
Tile = Callable[[int, Expr, Expr], Stmt]
"""(rows, first row of positions, where the tile's rows of the strip begin) -> a tile."""
Walk = Callable[[Tile], Stmt]


class Tiles:
    """The common part of ``Gather`` and ``Correlate``."""

    def __init__(self, window: Window, plan: Plan) -> None:
        plan.check()
        self.w, self.p = window, plan
        self.mem = Memory(window.c.index_dtype)
        self.strip = Strip(window, plan, self.mem)

    def build(self, func: tirx.PrimFunc) -> Scheduled:
        """The kernel with ``func``'s parameters, and scratch."""
        body = self.mem.parallel(self.p.threads, self.p.units, self.unit)
        body = seq(self.mem.declarations, body)
        scratch = tirx.decl_buffer((max(1, self.mem.scratch_bytes),), "uint8", "scratch", data_alignment=64)
        table = {id_of(self.mem.scratch): scratch}
        body = tvm_ffi.structural_map(body, (ir.Var, lambda v: table.get(id_of(v), v)))
        return Scheduled(tirx.PrimFunc([*func.params, scratch], body, attrs=func.attrs), self.mem.scratch_bytes)

    def unit(self, t: Expr, u: Expr) -> Stmt:
        """One unit of thread ``t``."""
        raise NotImplementedError

    def named(self, axes: Sequence[Iter], index: Expr) -> tuple[dict[Any, Expr], list[Stmt]]:
        """The axes' values at ``index``, held in registers."""
        out, stmts = {}, []
        for v, e in decompose(axes, index).items():
            out[v], held = self.mem.hold(v.name, e)
            stmts += held
        return out, stmts

    def filled(self, base: Expr, env: dict[Any, Expr], planes: list[Expr], b: Expr, each: Callable[[Walk], Stmt]) -> Stmt:
        """Fill the strip for band ``b``; then what ``each`` makes of ``walk``, the loop over the band's tiles."""
        p, mem = self.p, self.mem
        first, s0 = mem.hold("first", b * p.band)
        count: Any = p.band if p.tiles % p.band == 0 else tirx.min(mem.const(p.band), p.tiles - first)
        row0, s1 = mem.hold("row0", self._row(first))
        rows: Any = p.band * p.most_rows
        if not isinstance(count, int) or p.rows[1]:
            rows = self._row(first + count) - row0

        def walk(tile: Tile) -> Stmt:
            def one(i: Expr) -> Stmt:
                row, s2 = mem.hold("row", self._row(first + i))
                at, s3 = mem.hold("at", base + (row - row0) * (p.shape.rows.stride * p.pitch))
                small, large = p.rows
                few = tile(small, row, at)
                return seq(s2, s3, when(first + i < large, tile(small + 1, row, at), few) if large else few)

            return mem.loop(count, one, "tile")

        def channel(n: Expr) -> Stmt:
            to, s4 = mem.hold("channel", base + n * p.channel)
            here, s5 = self.named(self.w.summed if p.shape.channels > 1 else (), n)
            return seq(s4, s5, self.strip.fill(to, env | here, planes, row0, rows))

        return seq(s0, s1, mem.loop(p.shape.channels, channel, "c"), each(walk))

    def _row(self, tile: Expr) -> Expr:
        small, large = self.p.rows
        return tile * small + tirx.min(tile, self.mem.const(large)) if large else tile * small

    def row_env(self, row: Expr) -> dict[Any, Expr]:
        """The value of the rows' position variable."""
        return {} if self.p.shape.rows is POINT else {self.w.sides[-2].position.var: row}

    def reads(self, phase: Sequence[int], row: int, vector: int) -> list[tuple[Read, tuple[int, ...]]]:
        """(what is read, the tap on each side) for each tap of a phase, for a row and a vector of the tile."""
        p, out = self.p, []
        *planes, rows, columns = (
            [s.reads[f] for s, f in zip(self.w.sides, phase, strict=True)]
            if len(phase) > 1
            else [((0, 0),), self.w.sides[0].reads[phase[0]]]
        )
        for taken in product(*planes, rows, columns):
            offsets, taps = [f for f, _ in taken], [t for _, t in taken]
            plane = p.plane_offsets.index(tuple(offsets[:-2]))
            place = row * p.shape.rows.stride + offsets[-2] - p.shape.rows.low
            sides = len(self.w.sides)
            out.append(((plane, place, p.column_place(offsets[-1]), vector), tuple(taps[-sides:])))
        return out

    def load(self, at: Expr, v0: Expr, read: Read) -> tuple[Expr, Stmt]:
        """A vector of the strip."""
        plane, row, column, vector = read
        p = self.p
        place = at + v0 * p.lanes + (plane * p.plane + row * p.pitch + column + vector * p.lanes)
        return bind("x", tirx.BufferLoad(self.strip.target, [ramp(place, p.lanes)]))

    def vector_groups(self, whole: int, body: Callable[[Expr, int, bool], Stmt]) -> Stmt:
        """``body(first vector, vectors, whether all are whole)`` over a row whose first ``whole`` vectors are whole."""
        p, mem = self.p, self.mem
        groups = whole // p.vectors
        rest = p.row_vectors - groups * p.vectors
        start = groups * p.vectors
        loop = mem.loop(groups, lambda g: body(g * p.vectors, p.vectors, True), "g") if groups else None
        return seq(loop, body(mem.const(start), rest, start + rest == whole) if rest else None)

    def cells(self, name: str, count: int) -> tuple[list[Any], list[Stmt]]:
        """Vector accumulators."""
        made = [self.mem.local(name, self.w.c.acc, self.p.lanes) for _ in range(count)]
        return made, [tirx.AllocBuffer(x) for x in made]

    def get(self, cell: Any) -> Expr:
        """An accumulator's value."""
        return tirx.BufferLoad(cell, [ramp(self.mem.const(0), self.p.lanes)])

    def put(self, cell: Any, value: Expr) -> Stmt:
        """Set an accumulator."""
        return tirx.BufferStore(cell, value, [ramp(self.mem.const(0), self.p.lanes)])
