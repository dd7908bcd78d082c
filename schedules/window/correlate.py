"""Positions are summed: an accumulator a tap, kept over the whole image, its lanes added at the end.

parallel over threads, each a run of units (outer axes, parts of the gradient's own axes):
    for the summed axes and planes, for band: fill the strip
        for the gradient's own axes, for a group of taps that fits the registers:
            for tile (rows x vectors): a load a vector of the gradient and of the strip, a multiply-add a tap
    add the lanes; epilogue and stores
"""

from __future__ import annotations

from itertools import product
from typing import Any

from tilegrad._base.tvm import tirx
from tilegrad.schedules.contraction.affine import decompose
from tilegrad.schedules.contraction.parts import Parts, element
from tilegrad.schedules.contraction.plan import ceildiv
from tilegrad.schedules.contraction.tir import Stmt, bind, part, ramp, seq
from tilegrad.schedules.stages import Expr
from tilegrad.schedules.window.form import Window, inner
from tilegrad.schedules.window.plan import Plan
from tilegrad.schedules.window.strip import pieces
from tilegrad.schedules.window.tiles import Read, Tiles, Walk

Tap = tuple[int, ...]


class Correlate(Tiles):
    """Builds the scheduled kernel of one plan."""

    def __init__(self, window: Window, plan: Plan) -> None:
        super().__init__(window, plan)
        self.taps: list[Tap] = list(product(*(range(s.tap.extent if s.tap else 1) for s in window.sides)))
        self.most = ceildiv(plan.shape.inner, plan.parts)
        self.size = len(self.taps) * plan.lanes
        self.sums = self.mem.region("sums", window.c.acc, plan.threads * self.most * self.size)

    def unit(self, t: Expr, u: Expr) -> Stmt:
        """All taps of one part of one result."""
        p, mem, w = self.p, self.mem, self.w
        env, s0 = self.named(w.outer, tirx.floordiv(u, p.parts))
        base, s1 = mem.hold("base", t * p.strip)
        first, own = part(p.shape.inner, p.parts, tirx.floormod(u, p.parts))
        m0, s2 = mem.hold("m0", mem.const(0) + first)
        to, s3 = mem.hold("to", t * (self.most * self.size))
        blank = tirx.Broadcast(tirx.const(0, w.c.acc), p.lanes)
        clear = mem.loop(
            own * len(self.taps), lambda x: tirx.BufferStore(self.sums, blank, [ramp(to + x * p.lanes, p.lanes)]), "z"
        )
        planes = [s.position for s in w.sides[:-2]]

        def image(n: Expr) -> Stmt:
            here, s4 = self.named((*w.summed, *planes), n)
            at = [here[a.var] for a in planes]
            return seq(s4, mem.loop(p.bands, lambda b: self._band(base, to, env | here, at, b, m0, own), "band"))

        count = p.shape.summed
        for a in planes:
            count *= a.extent
        total = mem.loop(own, lambda m: self._result(to + m * self.size, m0 + m, env), "m")
        return seq(s0, s1, s2, s3, clear, mem.loop(count, image, "n"), total)

    def _band(self, base: Expr, to: Expr, env: dict[Any, Expr], planes: list[Expr], b: Expr, m0: Expr, own: Any) -> Stmt:
        p, mem = self.p, self.mem
        room = p.target.vector_registers - p.most_rows * p.vectors - 2
        groups = ceildiv(len(self.taps), max(1, room))
        size = ceildiv(len(self.taps), groups)
        chunks = [self.taps[i : i + size] for i in range(0, len(self.taps), size)]

        def sweep(m: Expr, chunk: list[Tap], walk: Walk) -> Stmt:
            here, s0 = self.named(inner(self.w), m0 + m)
            made, allocs = self.cells("acc", len(chunk))
            cell = dict(zip(chunk, made, strict=True))
            place = {x: ramp(to + m * self.size + self.taps.index(x) * p.lanes, p.lanes) for x in chunk}
            start = [self.put(cell[x], tirx.BufferLoad(self.sums, [place[x]])) for x in chunk]
            end = [tirx.BufferStore(self.sums, self.get(cell[x]), [place[x]]) for x in chunk]
            return seq(s0, allocs, start, walk(lambda n, row, at: self._tile(n, row, at, env | here, cell)), end)

        def each(walk: Walk) -> Stmt:
            return mem.loop(own, lambda m: seq([sweep(m, c, walk) for c in chunks]), "m")

        return self.filled(base, env, planes, b, each)

    def _tile(self, rows: int, row: Expr, at: Expr, env: dict[Any, Expr], cell: dict[Tap, Any]) -> Stmt:
        whole = self.w.sides[-1].position.extent // self.p.lanes
        return self.vector_groups(whole, lambda v0, vectors, full: self._micro(rows, vectors, row, at, v0, full, env, cell))

    def _micro(
        self, rows: int, vectors: int, row: Expr, at: Expr, v0: Expr, full: bool, env: dict[Any, Expr], cell: dict[Tap, Any]
    ) -> Stmt:
        out: list[Any] = []
        gradient: dict[tuple[int, int], Expr] = {}
        uses: dict[Read, list[tuple[Tap, tuple[int, int]]]] = {}
        for r in range(rows):
            for v in range(vectors):
                gradient[r, v], stmts = self._gradient(row + r, v0 + v, full or v < vectors - 1, env)
                out += stmts
                for read, taps in self.reads((0,) * len(self.w.sides), r, v):
                    if taps in cell:
                        uses.setdefault(read, []).append((taps, (r, v)))
        for read in sorted(uses):
            x, stmt = self.load(at, v0, read)
            out.append(stmt)
            out += [self.put(cell[taps], self.get(cell[taps]) + x * gradient[key]) for taps, key in uses[read]]
        return seq(out)

    def _gradient(self, row: Expr, vector: Expr, full: bool, env: dict[Any, Expr]) -> tuple[Expr, list[Stmt]]:
        """One vector of the other operand, zeros beyond the row's end."""
        p, mem, w = self.p, self.mem, self.w
        last = w.sides[-1].position
        count = p.lanes if full else last.extent - (p.row_vectors - 1) * p.lanes
        local = mem.local("g", w.c.acc, p.lanes)
        where = env | self.row_env(row)
        out: list[Stmt] = [tirx.AllocBuffer(local)]
        if count < p.lanes:
            out.append(self.put(local, tirx.Broadcast(tirx.const(0, w.c.acc), p.lanes)))
        for first, _, width in pieces(0, count, p.lanes):

            def lane(x: Expr, first: int = first) -> Stmt:
                value = mem.flatten(w.c.a.expr, where | {last.var: vector * p.lanes + first + x})
                return tirx.BufferStore(local, value, [x + first])

            out.append(mem.vector(width, lane) if width > 1 else lane(mem.const(0)))
        var, stmt = bind("d", self.get(local))
        return var, [*out, stmt]

    def _result(self, at: Expr, m: Expr, env: dict[Any, Expr]) -> Stmt:
        """Add each tap's lanes, in halves; then the epilogue and the stores."""
        p, mem, w = self.p, self.mem, self.w
        here, s0 = self.named(inner(w), m)
        taps = [s.tap for s in w.sides if s.tap]
        totals = mem.local("total", w.c.acc, len(self.taps))
        out: list[Any] = [s0, tirx.AllocBuffer(totals)]
        for n in range(len(self.taps)):
            value: Expr = tirx.BufferLoad(self.sums, [ramp(at + n * p.lanes, p.lanes)])
            width = p.lanes
            while width > 1:
                var, stmt = bind("s", value)
                out.append(stmt)
                width //= 2
                low, high = ([tirx.const(i + h, "int32") for i in range(width)] for h in (0, width))
                value = tirx.Shuffle([var], low) + tirx.Shuffle([var], high)
            out.append(tirx.BufferStore(totals, value, [mem.const(n)]))

        def store(x: Expr) -> Stmt:
            made: list[Stmt] = []
            total = tirx.BufferLoad(totals, [x])
            done = element(w.c, mem, env | here | decompose(taps, x), total, Parts(mem, mem.const(0), 1, made))
            return seq(made, done)

        return seq(out, mem.loop(len(self.taps), store, "tap"))
