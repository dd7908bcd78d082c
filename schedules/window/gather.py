"""Taps are summed: each tile of the result is held in registers while the strip's vectors pass once.

parallel over threads, each a run of units (outer axes, planes, bands):
    fill the strip with the image's rows that the band reads, of every channel
    for the weights' own axes, all at once where channels are summed:
        for tile (rows x vectors, of every phase):
            for channel: a load a vector of the strip, a multiply-add a use of it
            interleave the phases, epilogue and stores
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

from tilegrad._base.tvm import tirx
from tilegrad.schedules.contraction.parts import Parts, element
from tilegrad.schedules.contraction.tir import Stmt, part, ramp, seq, when
from tilegrad.schedules.stages import Expr
from tilegrad.schedules.window.form import inner
from tilegrad.schedules.window.strip import pieces
from tilegrad.schedules.window.tiles import Read, Tiles, Walk

Phase = tuple[int, ...]


class Gather(Tiles):
    """Builds the scheduled kernel of one plan."""

    def unit(self, t: Expr, u: Expr) -> Stmt:
        """A band of the result, for all of the weights' own axes."""
        p, mem, w = self.p, self.mem, self.w
        planes = [s.position for s in w.sides[:-2]]
        env, s0 = self.named((*w.outer, *planes), tirx.floordiv(u, p.bands * p.parts))
        base, s1 = mem.hold("base", t * p.strip)
        at = [env[a.var] for a in planes]
        together = p.results
        first, own = part(p.shape.inner // together, p.parts, tirx.floormod(u, p.parts))

        def each(walk: Walk) -> Stmt:
            def some(g: Expr) -> Stmt:
                found = [self.named(inner(w), (first + g) * together + i) for i in range(together)]
                envs = [env | here for here, _ in found]
                weights, s2 = ({}, []) if p.shape.channels > 1 else self._weights(envs)
                return seq([x for _, x in found], s2, walk(lambda n, row, place: self._tile(n, row, place, envs, weights)))

            return mem.loop(own, some, "m")

        band = tirx.floormod(tirx.floordiv(u, p.parts), p.bands)
        return seq(s0, s1, self.filled(base, env, at, band, each))

    def _phases(self) -> list[Phase]:
        return list(product(*(range(len(s.reads)) for s in self.w.sides)))

    def _fixed(self, phase: Phase, taps: tuple[int, ...] = ()) -> dict[Any, Expr]:
        """The phases' and taps' variables."""
        out = {s.phase.var: self.mem.const(f) for s, f in zip(self.w.sides, phase, strict=True) if s.phase}
        return out | {s.tap.var: self.mem.const(x) for s, x in zip(self.w.sides, taps, strict=False) if s.tap}

    def _weights(self, envs: Sequence[dict[Any, Expr]]) -> tuple[dict[Any, Expr], list[Stmt]]:
        """The weight of every result, phase and tap."""
        out: dict[Any, Expr] = {}
        stmts: list[Stmt] = []
        for phase in self._phases():
            for _, taps in self.reads(phase, 0, 0):
                for x, env in enumerate(envs):
                    value = self.mem.flatten(self.w.c.a.expr, env | self._fixed(phase, taps))
                    out[x, phase, taps], held = self.mem.hold("w", value)
                    stmts += held
        return out, stmts

    def _tile(self, rows: int, row: Expr, at: Expr, envs: Sequence[dict[Any, Expr]], weights: dict[Any, Expr]) -> Stmt:
        last = self.w.sides[-1]
        whole = last.limit // (self.p.lanes * len(last.reads))

        def group(v0: Expr, vectors: int, full: bool) -> Stmt:
            return self._micro(rows, vectors, row, at, v0, full, envs, weights)

        return self.vector_groups(min(whole, self.p.row_vectors), group)

    def _micro(
        self,
        rows: int,
        vectors: int,
        row: Expr,
        at: Expr,
        v0: Expr,
        full: bool,
        envs: Sequence[dict[Any, Expr]],
        weights: dict[Any, Expr],
    ) -> Stmt:
        p, mem = self.p, self.mem
        phases = self._phases()
        keys = [(x, f, r, v) for x in range(len(envs)) for f in phases for r in range(rows) for v in range(vectors)]
        made, allocs = self.cells("acc", len(keys))
        cell = dict(zip(keys, made, strict=True))
        zero = tirx.Broadcast(tirx.const(0, self.w.c.acc), p.lanes)
        clear = [self.put(c, zero) for c in made]

        def channel(n: Expr) -> Stmt:
            if p.shape.channels == 1:
                return self._multiply(cell, at, v0, weights)
            here, s0 = self.named(self.w.summed, n)
            start, s1 = mem.hold("at", at + n * p.channel)
            read, s2 = self._weights([env | here for env in envs])
            return seq(s0, s1, s2, self._multiply(cell, start, v0, read))

        out = [allocs, clear, mem.loop(p.shape.channels, channel, "c")]
        for x, env in enumerate(envs):
            for *lead, _ in dict.fromkeys((*f[:-1], 0) for f in phases):
                for r in range(rows):
                    for v in range(vectors):
                        turn = [cell[(x, (*lead, f), r, v)] for f in range(len(self.w.sides[-1].reads))]
                        out.append(self._store(turn, tuple(lead), row + r, v0 + v, full or v < vectors - 1, env))
        return seq(out)

    def _multiply(self, cell: dict[Any, Any], at: Expr, v0: Expr, weights: dict[Any, Expr]) -> Stmt:
        """Add to every accumulator its taps of one channel of the strip, column by column and there weight by weight."""
        terms = sorted(
            (read[0], read[2], (x, f, taps), read, (x, f, r, v)) for x, f, r, v in cell for read, taps in self.reads(f, r, v)
        )
        out: list[Any] = []
        loaded: dict[Read, Expr] = {}
        for *_, weight, read, key in terms:
            if read not in loaded:
                loaded[read], stmt = self.load(at, v0, read)
                out.append(stmt)
            term = loaded[read] * tirx.Broadcast(weights[weight], self.p.lanes)
            out.append(self.put(cell[key], self.get(cell[key]) + term))
        return seq(out)

    def _store(self, turn: list[Any], lead: Phase, row: Expr, vector: Expr, full: bool, env: dict[Any, Expr]) -> Stmt:
        """The epilogue and the stores of one vector of positions, its phases interleaved."""
        p, mem, w, last = self.p, self.mem, self.w, self.w.sides[-1]
        period, width = len(turn), len(turn) * p.lanes
        start = vector * width
        count = width if full else last.limit - (p.row_vectors - 1) * width
        sums, value = turn[0], None
        if period > 1:
            sums = mem.local("sums", w.c.acc, width)
            order = [tirx.const(f * p.lanes + x, "int32") for x in range(p.lanes) for f in range(period)]
            value = tirx.Shuffle([self.get(x) for x in turn], order)
        where = env | self._fixed((*lead, 0)) | self.row_env(row)

        def piece(first: int, size: int) -> Stmt:
            made: list[Stmt] = []

            def lane(x: Expr) -> Stmt:
                column = start + first + x
                here = {last.position.var: tirx.floordiv(column, period) if period > 1 else column}
                if last.phase:
                    here[last.phase.var] = tirx.floormod(column, period)
                total = tirx.BufferLoad(sums, [x + first])
                return element(w.c, mem, where | here, total, Parts(mem, x, size, made))

            body = mem.vector(size, lane) if size > 1 else lane(mem.const(0))
            return seq(made, body)

        stores = [piece(a + i * n, n) for a, whole, n in pieces(0, count, width) for i in range(whole)]
        mix = [] if value is None else [tirx.AllocBuffer(sums), tirx.BufferStore(sums, value, [ramp(mem.const(0), width)])]
        tests = [
            env_row * len(s.reads) + f < s.limit
            for s, f, env_row in zip(w.sides[:-1], lead, [where[s.position.var] for s in w.sides[:-1]], strict=True)
            if s.position.extent * len(s.reads) > s.limit
        ]
        done = seq(mix, stores)
        return when(tirx.all(*tests), done) if tests else done
