"""Attention forward: the online softmax of FlashAttention (Dao et al. 2022), transposed so that queries are lanes.

parallel over units (head, part of its panels of queries):
    for panel: its queries packed [width][query]
        for block of keys (only those that the panel sees):
            scores[key][query] by the micro-kernel; logits and their running maximum; exponentials and their sum
            result[value width][query] = result * (correction of the maximum) + values^T exponentials
        result / sum, turned to [query][value width]; maximum + log sum
"""

from __future__ import annotations

from typing import Any

from tilegrad._base.target import Target
from tilegrad._base.tvm import te, tirx
from tilegrad.schedules.attention.kernel import Kernel, Side
from tilegrad.schedules.attention.read import Attention
from tilegrad.schedules.contraction.micro import Cells
from tilegrad.schedules.contraction.parts import with_named_parts
from tilegrad.schedules.contraction.tir import Stmt, ramp, seq, when
from tilegrad.schedules.stages import Expr
from tilegrad.schedules.template import Config


class Forward(Kernel):
    """See the module."""

    def __init__(self, attention: Attention, config: Config, target: Target) -> None:
        super().__init__(attention, config, target)
        self.mix = Side(self, "mix", self.mr, self.vectors, b=False)
        self.tile = self.region("tile", self.block_size)
        self.result_size = attention.value_width * self.nr
        self.result = self.region("result", self.result_size)

    def _before(self, t: Expr, u: Expr, head: Expr) -> Stmt | None:
        return seq(self.scores.pack_rows(t, head), self.mix.pack_rows(t, head))

    def _arrays(self, name: str) -> list[Any]:
        return [self.mem.local(f"{name}{v}", self.dtype, self.lanes) for v in range(self.vectors)]

    def _panel(self, t: Expr, head: Expr, panel: Expr) -> Stmt:
        high, total, scale = (self._arrays(n) for n in ("high", "total", "scale"))
        low, one = te.min_value(self.dtype), tirx.const(1, self.dtype)
        zero = self.mem.const(0)

        def fill(arrays: list[Any], value: Expr) -> list[Stmt]:
            return [tirx.BufferStore(a, tirx.Broadcast(value, self.lanes), [ramp(zero, self.lanes)]) for a in arrays]

        def block(first: Expr, count: Expr, j0: Expr, keys: Expr) -> Stmt:
            scores = self.key_tiles(self.scores, t, head, first, count, j0, self.tile)
            return seq(scores, self._softmax(t, head, panel, j0, keys, high, total, scale), self._mix(t, head, j0, keys, scale))

        start = [tirx.AllocBuffer(x) for x in (*high, *total, *scale)]
        start += [*fill(high, low), *fill(total, tirx.const(0, self.dtype)), *fill(scale, one)]
        if self.blocks > 1:
            base = t * self.result_size
            blank = tirx.Broadcast(tirx.const(0, self.dtype), self.lanes)
            clear = lambda x: tirx.BufferStore(self.result, blank, [ramp(base + x * self.lanes, self.lanes)])  # noqa: E731
            start.append(self.mem.loop(self.result_size // self.lanes, clear, "x"))
        return seq(
            start,
            self.scores.pack_panel(t, head, panel),
            self.key_blocks(panel, block),
            self._end(t, head, panel, high, total, scale),
        )

    def _softmax(
        self, t: Expr, head: Expr, panel: Expr, j0: Expr, keys: Expr, high: list[Any], total: list[Any], scale: list[Any]
    ) -> Stmt:
        """Exponentials of a block's logits in place; ``scale`` becomes what earlier blocks' results are multiplied by."""
        base = t * self.block_size

        def logits(v: int, row: Expr) -> Stmt:
            at = base + row * self.nr + v * self.lanes

            def lane(x: Expr, names: Any) -> Stmt:
                score = tirx.BufferLoad(self.tile, [at + x])
                stmts, value = self.element("logits", head, j0 + row, self.query(panel, v, x), {"scores": score}, names)
                kept, store = names.name(value)
                top = tirx.BufferLoad(high[v], [x])
                return seq(
                    stmts, store, tirx.BufferStore(self.tile, kept, [at + x]),
                    tirx.BufferStore(high[v], tirx.max(top, kept), [x]),
                )  # fmt: skip

            return self.vector(lane)

        def exponentials(v: int, row: Expr) -> Stmt:
            at = base + row * self.nr + v * self.lanes

            def lane(x: Expr, names: Any) -> Stmt:
                stores: list[Stmt] = []
                value = tirx.exp(tirx.BufferLoad(self.tile, [at + x]) - tirx.BufferLoad(high[v], [x]))
                kept, store = names.name(with_named_parts(value, names, stores))
                more = tirx.BufferStore(total[v], tirx.BufferLoad(total[v], [x]) + kept, [x])
                return seq(stores, store, more, tirx.BufferStore(self.tile, kept, [at + x]))

            return self.vector(lane)

        def correct(v: int) -> Stmt:
            """scale held the old maximum."""

            def lane(x: Expr, names: Any) -> Stmt:
                stores: list[Stmt] = []
                value = tirx.exp(tirx.BufferLoad(scale[v], [x]) - tirx.BufferLoad(high[v], [x]))
                kept, store = names.name(with_named_parts(value, names, stores))
                less = tirx.BufferStore(total[v], tirx.BufferLoad(total[v], [x]) * kept, [x])
                return seq(stores, store, less, tirx.BufferStore(scale[v], kept, [x]))

            return self.vector(lane)

        def remember(v: int) -> Stmt:
            return self.vector(lambda x, _: tirx.BufferStore(scale[v], tirx.BufferLoad(high[v], [x]), [x]))

        several = self.blocks > 1
        vs = range(self.vectors)
        return seq(
            [remember(v) for v in vs] if several else None,
            self.mem.loop(keys, lambda row: seq([logits(v, row) for v in vs]), "row"),
            [correct(v) for v in vs] if several else None,
            self.mem.loop(keys, lambda row: seq([exponentials(v, row) for v in vs]), "row"),
        )

    def _mix(self, t: Expr, head: Expr, j0: Expr, keys: Expr, scale: list[Any]) -> Stmt:
        """result[value width][query] += values^T exponentials."""
        base = t * self.result_size
        zero = self.mem.const(0)
        place = lambda row: lambda r, v: base + (row + r) * self.nr + v * self.lanes  # noqa: E731

        def begin(c: Cells, row: Expr) -> Stmt:
            if self.blocks == 1:
                return c.clear()
            factors = [tirx.BufferLoad(s, [ramp(zero, self.lanes)]) for s in scale]
            return seq(c.load(self.result, place(row)), [c.put(r, v, c.get(r, v) * factors[v]) for r, v in c])

        b = lambda v, k: (self.tile, t * self.block_size + k * self.nr + v * self.lanes)  # noqa: E731
        return self.tiles(
            self.mix.plan, zero, self.mix.plan.tiles, keys, self.vectors, lambda i: self.mix.rows(t, head, i, j0), b,
            begin, lambda c, row: c.save(self.result, place(row)),
        )  # fmt: skip

    def _end(self, t: Expr, head: Expr, panel: Expr, high: list[Any], total: list[Any], scale: list[Any]) -> Stmt:
        zero, one, inf = (tirx.const(x, self.dtype) for x in (0, 1, float("inf")))
        m = self.x.queries

        def finish(v: int) -> Stmt:
            def lane(x: Expr, names: Any) -> Stmt:
                stores: list[Stmt] = []
                value = tirx.BufferLoad(total[v], [x])
                blind = tirx.EQ(value, zero)
                safe, s0 = names.name(tirx.Select(blind, one, value))
                log = with_named_parts(tirx.log(safe), names, stores)
                lse = tirx.Select(blind, inf, tirx.BufferLoad(high[v], [x]) + log)
                return seq(
                    s0, stores, tirx.BufferStore(total[v], lse, [x]), tirx.BufferStore(scale[v], one / safe, [x])
                )  # fmt: skip

            return self.vector(lane)

        def keep(v: int) -> Stmt:
            out = self.mem.view(self.x.parts["lse"].buffer)
            i = panel * self.nr + v * self.lanes
            at = head * m + i
            store = lambda x: tirx.BufferStore(out, tirx.BufferLoad(total[v], [x]), [at + x])  # noqa: E731
            full = self.mem.vector(self.lanes, store)
            if m % self.nr == 0:
                return full
            return when(i + self.lanes <= m, full, self.mem.loop(tirx.min(self.mem.const(self.lanes), m - i), store, "n"))

        vs = range(self.vectors)
        return seq(
            [finish(v) for v in vs],
            [keep(v) for v in vs] if self.x.is_output("lse") else None,
            self.store_turned("out", self.result, t * self.result_size, self.x.value_width, head, panel, scale),
        )
