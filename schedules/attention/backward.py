"""Attention backward: weights computed again tile by tile from the scores and each row's log sum of exponentials.

parallel over units (head, part of its panels of queries):
    for panel: queries and cotangents packed [width][query], and once more [query][width]
        for block of keys (only those that the panel sees):
            weights, and slopes of the scores, [key][query]
            dv[key] += weights . cotangents;  dk[key] += slopes . queries;  dq[width][query] += keys^T slopes
        dq turned to [query][width]
    dk and dv of the unit are stored; the parts of a head that is divided are added in order afterwards

Of dq, dk and dv those are computed that the kernel returns.
"""

from __future__ import annotations

from typing import Any

from tilegrad._base.target import Target
from tilegrad._base.tvm import tirx
from tilegrad.schedules.attention.kernel import Kernel, Side
from tilegrad.schedules.attention.read import Attention
from tilegrad.schedules.contraction.micro import Address, Cells
from tilegrad.schedules.contraction.pack_blocks import Block
from tilegrad.schedules.contraction.plan import rows_before
from tilegrad.schedules.contraction.tir import Stmt, ramp, seq
from tilegrad.schedules.stages import Expr
from tilegrad.schedules.template import Config


class Sums:
    """dk or dv: rows are keys, columns the width; summed over panels in scratch."""

    def __init__(self, kernel: Backward, part: str, source: Any) -> None:
        self.source = source
        width = kernel.x.parts[part].shape[-1]
        total = -(-width // kernel.lanes)
        vectors = next(v for v in (kernel.vectors, 2, 1) if total % v == 0 and v <= kernel.vectors)
        self.side = Side(kernel, part, kernel.mr, vectors, a=False, b=False)
        self.part, self.width, self.columns = part, width, total * kernel.lanes
        self.packed = kernel.region(f"{part}_b", kernel.nr * self.columns)
        self.copies = kernel.target.threads if kernel.splits == 1 else kernel.x.heads * kernel.splits
        self.size = kernel.x.keys * self.columns
        self.sums = kernel.region(f"{part}_sum", self.size, self.copies)


class Backward(Kernel):
    """See the module."""

    def __init__(self, attention: Attention, config: Config, target: Target) -> None:
        super().__init__(attention, config, target)
        self.dweights = Side(self, "dweights", self.mr, self.vectors)
        self.dq = Side(self, "dq_t", self.mr, self.vectors, b=False)
        self.weights = self.region("weights", self.block_size)
        self.slopes = self.region("slopes", self.block_size)
        sources = {"dv": self.weights, "dk": self.slopes}
        self.sums = [Sums(self, part, source) for part, source in sources.items() if attention.is_output(part)]
        self.result_size = attention.width * self.nr
        self.result = self.region("dq", self.result_size)

    def _before(self, t: Expr, u: Expr, head: Expr) -> Stmt | None:
        packs = [side.pack_rows(t, head) for side in (self.scores, self.dweights, self.dq)]
        return seq(packs, [self._fill(s.sums, self._copy(t, u) * s.size, s.size) for s in self.sums])

    def _copy(self, t: Expr, u: Expr) -> Expr:
        return t if self.splits == 1 else u

    def _fill(self, buffer: Any, base: Expr, count: int) -> Stmt:
        blank = tirx.Broadcast(tirx.const(0, self.dtype), self.lanes)
        return self.mem.loop(
            count // self.lanes, lambda x: tirx.BufferStore(buffer, blank, [ramp(base + x * self.lanes, self.lanes)]), "x"
        )

    def _panel(self, t: Expr, head: Expr, panel: Expr) -> Stmt:
        m = self.x.queries
        unit, s0 = self.mem.hold("unit", self._copy(t, head * self.splits + tirx.floormod(panel, self.splits)))
        i0, s1 = self.mem.hold("i0", panel * self.nr)
        valid: Any = self.nr
        if m % self.nr:
            valid, s2 = self.mem.hold("valid", tirx.min(self.mem.const(self.nr), m - i0))
            s1 = [*s1, *s2]

        def block(first: Expr, count: Expr, j0: Expr, keys: Expr) -> Stmt:
            return seq(
                self.key_tiles(self.scores, t, head, first, count, j0, self.weights),
                self.key_tiles(self.dweights, t, head, first, count, j0, self.slopes),
                self._slopes(t, head, panel, j0, keys),
                [self._sum(s, t, unit, first, count, j0, valid) for s in self.sums],
                self._dq(t, head, j0, keys) if self.x.is_output("dq") else None,
            )

        return seq(
            s0, s1, self.scores.pack_panel(t, head, panel), self.dweights.pack_panel(t, head, panel),
            [self._pack_columns(s, t, head, i0, valid) for s in self.sums],
            self._fill(self.result, t * self.result_size, self.result_size),
            self.key_blocks(panel, block),
            self._store_dq(t, head, panel) if self.x.is_output("dq") else None,
        )  # fmt: skip

    def _pack_columns(self, s: Sums, t: Expr, head: Expr, i0: Expr, valid: int | Expr) -> Stmt:
        """The panel's queries (or cotangents) as rows."""
        base = t * (self.nr * s.columns)
        at = lambda v, k: base + k * s.columns + v * self.lanes  # noqa: E731
        block = Block(head, i0, valid, self.mem.const(0), s.columns // self.lanes, s.packed, at)
        return s.side.blocks.b_block(block)

    def _slopes(self, t: Expr, head: Expr, panel: Expr, j0: Expr, keys: Expr) -> Stmt:
        """Weights from scores and slopes from the weights' cotangents, both in place."""

        def vector(v: int, row: Expr) -> Stmt:
            at = t * self.block_size + row * self.nr + v * self.lanes

            def lane(x: Expr, names: Any) -> Stmt:
                query, key = self.query(panel, v, x), j0 + row
                given = {"scores": tirx.BufferLoad(self.weights, [at + x])}
                s0, logit = self.element("logits", head, key, query, given, names)
                logit, s1 = names.name(logit)
                s2, weight = self.element("weights", head, key, query, {"logits": logit}, names)
                weight, s3 = names.name(weight)
                given = {"weights": weight, "dweights": tirx.BufferLoad(self.slopes, [at + x])}
                s4, slope = self.element("dscores", head, key, query, given, names)
                return seq(
                    s0, s1, s2, s3, s4, tirx.BufferStore(self.weights, weight, [at + x]),
                    tirx.BufferStore(self.slopes, slope, [at + x]),
                )  # fmt: skip

            return self.vector(lane)

        return self.mem.loop(keys, lambda row: seq([vector(v, row) for v in range(self.vectors)]), "row")

    def _sum(self, s: Sums, t: Expr, unit: Expr, first: Expr, count: Expr, j0: Expr, valid: int | Expr) -> Stmt:
        """sums[key][column] += source[key][query] . packed[query][column] for a block of keys."""
        plan = s.side.plan

        def columns(c: Expr) -> Stmt:
            column, s0 = self.mem.hold("column", c * plan.nr)
            base, s1 = self.mem.hold("base", unit * s.size + column)

            def rows(i: Expr) -> tuple[Address, list[Stmt]]:
                start, stmt = self.mem.hold("pa", t * self.block_size + (rows_before(plan, i) - j0) * self.nr)
                return (lambda r, k: (s.source, start + r * self.nr + k)), [stmt]

            b = lambda v, k: (s.packed, t * (self.nr * s.columns) + k * s.columns + column + v * self.lanes)  # noqa: E731
            place = lambda row: lambda r, v: base + (row + r) * s.columns + v * self.lanes  # noqa: E731
            return seq(s0, s1, self.tiles(
                plan, first, count, valid, plan.vectors, rows, b,
                lambda c, row: c.load(s.sums, place(row)), lambda c, row: c.save(s.sums, place(row)),
            ))  # fmt: skip

        return self.mem.loop(plan.panels, columns, "columns")

    def _dq(self, t: Expr, head: Expr, j0: Expr, keys: Expr) -> Stmt:
        """dq[width][query] += keys^T slopes."""
        place = lambda row: lambda r, v: t * self.result_size + (row + r) * self.nr + v * self.lanes  # noqa: E731
        b = lambda v, k: (self.slopes, t * self.block_size + k * self.nr + v * self.lanes)  # noqa: E731

        def begin(c: Cells, row: Expr) -> Stmt:
            return c.load(self.result, place(row))

        return self.tiles(
            self.dq.plan, self.mem.const(0), self.dq.plan.tiles, keys, self.vectors,
            lambda i: self.dq.rows(t, head, i, j0), b, begin, lambda c, row: c.save(self.result, place(row)),
        )  # fmt: skip

    def _store_dq(self, t: Expr, head: Expr, panel: Expr) -> Stmt:
        return self.store_turned("dq", self.result, t * self.result_size, self.x.width, head, panel)

    def _finish(self, t: Expr, u: Expr, head: Expr) -> Stmt | None:
        if self.splits > 1:
            return None

        def rows(s: Sums) -> Stmt:
            return self.mem.loop(self.x.keys, lambda j: self._store(s, head, j, t), "j")

        return seq([rows(s) for s in self.sums])

    def _after(self) -> Stmt | None:
        if self.splits == 1:
            return None

        def item(t: Expr, index: Expr) -> Stmt:
            head, s0 = self.mem.hold("head", tirx.floordiv(index, self.x.keys))
            j, s1 = self.mem.hold("j", tirx.floormod(index, self.x.keys))
            return seq(s0, s1, [self._store(s, head, j, head * self.splits) for s in self.sums])

        return self.mem.parallel(self.target.threads, self.x.heads * self.x.keys, item)

    def _store(self, s: Sums, head: Expr, j: Expr, copy: Expr) -> Stmt:
        """One key's row of dk or dv: the sum of its parts."""
        out = self.mem.view(self.x.parts[s.part].buffer)
        source, s0 = self.mem.hold("source", copy * s.size + j * s.columns)
        target, s1 = self.mem.hold("target", (head * self.x.keys + j) * s.width)

        def one(x: Expr) -> Stmt:
            value = tirx.BufferLoad(s.sums, [source + x])
            for part in range(1, self.splits):
                value = value + tirx.BufferLoad(s.sums, [source + part * s.size + x])
            return tirx.BufferStore(out, value, [target + x])

        whole = s.width // self.lanes
        vectors = self.mem.loop(whole, lambda n: self.mem.vector(self.lanes, lambda x: one(n * self.lanes + x)), "n")
        return seq(s0, s1, vectors, self.mem.loop(s.width % self.lanes, lambda x: one(whole * self.lanes + x), "x"))
