"""How much there is to do: planned, or counted when the kernel runs where not all rows are wanted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tilegrad._base.tvm import tirx
from tilegrad.schedules.contraction.bound import Bound
from tilegrad.schedules.contraction.plan import Plan, ceildiv, rows_before
from tilegrad.schedules.contraction.tir import Memory, Stmt, when
from tilegrad.schedules.stages import Expr


@dataclass(frozen=True)
class Counts:
    """How much there is to do: batch elements, rows and tiles of them, vectors and panels of them."""

    batch: int | Expr
    m: int | Expr
    tiles: int | Expr
    vectors: int | Expr
    panels: int | Expr


class Work:
    """The counts of one plan, and the rows of its tiles."""

    def __init__(self, plan: Plan, bound: Bound | None, memory: Memory) -> None:
        self.p, self.bound, self.mem = plan, bound, memory
        self.now = Counts(plan.size.batch, plan.size.m, plan.tiles, plan.total_vectors, plan.panels)

    def count(self, hold: bool = True) -> list[Stmt]:
        """Sets ``now`` to what there is to do in the loops that follow; the statements hold it in registers."""
        if self.bound is None:
            return []
        p, mem, group = self.p, self.mem, self.bound.group
        out: list[Stmt] = []

        def keep(name: str, value: Expr) -> Expr:
            if not hold:
                return value
            cell, stmts = mem.hold(name, value)
            out.extend(stmts)
            return cell

        count = keep("count", self.bound.count(mem.dtype))
        if group == "batch":
            self.now = replace(self.now, batch=count)
        elif group == "m":
            self.now = replace(self.now, m=count, tiles=keep("tiles", blocks(count, p.slots)))
        else:
            vectors = keep("all", count * p.segment_vectors)
            self.now = replace(self.now, vectors=vectors, panels=keep("panels", blocks(vectors, p.vectors)))
        return out

    def bounds(self, group: str) -> bool:
        """Whether not all of a group is wanted."""
        return self.bound is not None and self.bound.group == group

    def row(self, tile: Expr) -> Expr:
        """First row of a tile; where M is bounded, all tiles but the last are full."""
        return tile * self.p.slots if self.bounds("m") else rows_before(self.p, tile)

    def last_rows(self, row: Expr, rows: int) -> list[Expr]:
        """The rows of the last tile from ``row``: those that are not wanted are its last one again."""
        return [tirx.min(row + r, self.now.m - 1) for r in range(rows)]

    def by_rows(self, tile: Expr, body: Callable[[int], Stmt], last: Callable[[int], Stmt] | None = None) -> Stmt:
        """``body(rows)`` for the number of rows that the tile has (at most two kinds).

        Where M is bounded tiles are full, but for the last one: for it ``last``, if it is given, of the least of a full tile,
        half of it, a quarter and so on that holds the rows that are left.
        """
        if self.bounds("m"):
            left = self.now.m - self.row(tile)

            def least(rows: int) -> Stmt:
                half = ceildiv(rows, 2)
                return when(left > half, (last or body)(rows), least(half)) if rows > 1 else (last or body)(rows)

            return when(left >= self.p.slots, body(self.p.slots), least(self.p.slots)) if last else least(self.p.slots)
        small, large = self.p.rows
        return when(tile < large, body(small + 1), body(small)) if large else body(small)

    def k_extent(self, k0: Expr) -> int | Expr:
        """Length of the K block from ``k0``."""
        k = self.p.size.k
        return self.p.kc if k % self.p.kc == 0 else tirx.min(self.mem.const(self.p.kc), k - k0)


def blocks(total: int | Expr, block: int) -> int | Expr:
    """Number of blocks that cover ``total``."""
    return ceildiv(total, block) if isinstance(total, int) else tirx.floordiv(total + (block - 1), block)


def clip(block: int, total: int | Expr, start: Expr) -> int | Expr:
    """Length of the block from ``start``, cut at ``total``."""
    if isinstance(total, int):
        if total % block == 0:
            return block
        total = tirx.const(total, start.ty.dtype)
    return tirx.min(tirx.const(block, start.ty.dtype), total - start)
