"""What the forward and the backward kernel of attention share: units of work, panels of queries, tiles of keys.

A panel is ``vectors`` vectors of queries wide. Keys and values are rows (A) of the products' micro-kernels, read where
they lie, one broadcast an element; queries are their columns (B), packed a panel at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tilegrad._base.target import Target
from tilegrad._base.tvm import ir, tirx, tvm_ffi
from tilegrad.schedules.attention.read import Attention, in_place
from tilegrad.schedules.contraction.affine import decompose
from tilegrad.schedules.contraction.canonical import Contraction
from tilegrad.schedules.contraction.micro import Address, Cells, multiply
from tilegrad.schedules.contraction.pack_blocks import Block, BlockPacker
from tilegrad.schedules.contraction.pack_tiles import TilePacker
from tilegrad.schedules.contraction.parts import Parts, with_named_parts
from tilegrad.schedules.contraction.plan import Plan, ceildiv, element_bytes, rows_before
from tilegrad.schedules.contraction.tir import Memory, Stmt, ramp, seq, when
from tilegrad.schedules.contraction.turn import transposed
from tilegrad.schedules.stages import Expr, id_of, inline
from tilegrad.schedules.template import Config, Scheduled

Place = Callable[[Cells, Expr], Stmt]
"""What to do with a tile's cells, given the tile's first row."""


class Side:
    """One product's operands: A in tiles of rows, B in panels of columns. ``part`` names its stage."""

    def __init__(self, kernel: Kernel, part: str, mr: int, vectors: int, a: bool = True, b: bool = True) -> None:
        self.c: Contraction = kernel.x.product(part)
        self._mem, self._threads = kernel.mem, kernel.target.threads
        size = self.c.size
        config = {"form": "outer", "mr": mr, "nr": vectors * kernel.lanes, "kc": size.k, "nc": 1, "mc": 1, "split": [1, 1, 1]}
        self.plan = Plan(size, config | {"pack_a": False, "pack_b": True}, kernel.target)
        self.tiles, self.blocks = TilePacker(self.c, self.plan, kernel.mem), BlockPacker(self.c, self.plan, kernel.mem)
        self._rows_size = size.k * self.plan.slots
        self._panel_size = size.k * self.plan.nr
        self._rows = self._panel = None
        if a and not in_place(self.c.a, (*self.c.m, *self.c.k)):
            self._rows = kernel.region(f"{part}_a", self.plan.tiles * self._rows_size)
        if b:
            self._panel = kernel.region(f"{part}_b", self._panel_size)

    def pack_rows(self, t: Expr, head: Expr) -> Stmt | None:
        """Copy A where it cannot be read in place."""
        if self._rows is None:
            return None

        def tile(i: Expr) -> Stmt:
            base, s0 = self._mem.hold("base", (t * self.plan.tiles + i) * self._rows_size)
            row, s1 = self._mem.hold("row", rows_before(self.plan, i))
            zero = self._mem.const(0)
            copy = lambda r: self.tiles.a_tiles(self._rows, lambda body: body(base, row, r), head, zero, self.c.size.k)  # noqa: E731
            return seq(s0, s1, by_rows(self.plan, i, copy))

        return self._mem.loop(self.plan.tiles, tile, "i")

    def pack_panel(self, t: Expr, head: Expr, panel: Expr) -> Stmt:
        """Copy one panel of B; columns beyond the last vector keep what they held and are never stored."""
        p = self.plan
        base, s0 = self._mem.hold("base", t * self._panel_size)
        v0, s1 = self._mem.hold("v0", panel * p.vectors)
        count: Any = p.vectors
        if p.total_vectors % p.vectors:
            count = tirx.min(self._mem.const(count), p.total_vectors - v0)
        at = lambda v, k: base + k * p.nr + v * p.lanes  # noqa: E731
        return seq(s0, s1, self.blocks.b_block(Block(head, self._mem.const(0), self.c.size.k, v0, count, self._panel, at)))

    def rows(self, t: Expr, head: Expr, tile: Expr, k0: Expr) -> tuple[Address, list[Stmt]]:
        """Where A's elements lie, counted from a tile's first row and ``k0``."""
        if self._rows is None:
            return self.tiles.a_in_place(head, rows_before(self.plan, tile), k0)
        base, stmt = self._mem.hold("pa", (t * self.plan.tiles + tile) * self._rows_size + k0 * self.plan.slots)
        return (lambda r, k: (self._rows, base + k * self.plan.slots + r)), [stmt]

    def panel(self, t: Expr) -> Address:
        """Where the panel's elements lie."""
        base = t * self._panel_size
        return lambda v, k: (self._panel, base + k * self.plan.nr + v * self.plan.lanes)


class Kernel:
    """Builds a kernel: ``_unit`` (of the subclass) does panels ``part``, ``part + splits``, ... of one head."""

    def __init__(self, attention: Attention, config: Config, target: Target) -> None:
        self.x, self.target = attention, target
        self.dtype = attention.dtype
        self.lanes = max(1, target.vector_bytes // element_bytes(self.dtype))
        scores = attention.parts["scores"]
        self.mem = Memory(str(scores.spatial[0].var.ty.dtype))
        self.mr, self.vectors = int(config["mr"]), min(int(config["nr"]) // self.lanes, ceildiv(attention.queries, self.lanes))
        self.nr = self.vectors * self.lanes
        self.panels = ceildiv(attention.queries, self.nr)
        self.splits = splits(attention.heads, self.panels, target.threads)
        self.scores = Side(self, "scores", self.mr, self.vectors)
        self.tile_rows = self.scores.plan
        self.block_tiles = max(1, min(int(config["kc"]) // self.tile_rows.slots, self.tile_rows.tiles))
        self.blocks = ceildiv(self.tile_rows.tiles, self.block_tiles)
        self.block_size = self.block_tiles * self.tile_rows.slots * self.nr

    def build(self, func: tirx.PrimFunc) -> Scheduled:
        """The kernel with ``func``'s parameters, and scratch."""
        units = self.mem.parallel(self.target.threads, self.x.heads * self.splits, self._unit_at)
        body = seq(units, self._after())
        body = seq(self.mem.declarations, body)
        scratch = tirx.decl_buffer((max(1, self.mem.scratch_bytes),), "uint8", "scratch", data_alignment=64)
        table = {id_of(self.mem.scratch): scratch}
        body = tvm_ffi.structural_map(body, (ir.Var, lambda v: table.get(id_of(v), v)))
        return Scheduled(tirx.PrimFunc([*func.params, scratch], body, attrs=func.attrs), self.mem.scratch_bytes)

    def region(self, name: str, count: int, copies: int | None = None) -> Any:
        """Scratch of ``count`` elements for each thread (or ``copies`` times)."""
        return self.mem.region(name, self.dtype, count * (self.target.threads if copies is None else copies))

    def _unit_at(self, t: Expr, u: Expr) -> Stmt:
        head, s0 = self.mem.hold("head", tirx.floordiv(u, self.splits))
        part, s1 = self.mem.hold("part", tirx.floormod(u, self.splits))
        count = self.panels // self.splits if self.panels % self.splits == 0 else ceil_expr(self.panels - part, self.splits)

        def panel(n: Expr) -> Stmt:
            p, s2 = self.mem.hold("panel", part + n * self.splits)
            return seq(s2, self._panel(t, head, p))

        return seq(s0, s1, self._before(t, u, head), self.mem.loop(count, panel, "n"), self._finish(t, u, head))

    def _before(self, t: Expr, u: Expr, head: Expr) -> Stmt | None:
        raise NotImplementedError

    def _panel(self, t: Expr, head: Expr, panel: Expr) -> Stmt:
        raise NotImplementedError

    def _finish(self, t: Expr, u: Expr, head: Expr) -> Stmt | None:
        return None

    def _after(self) -> Stmt | None:
        return None

    # --- keys ------------------------------------------------------------------------------------------------

    def key_blocks(self, panel: Expr, body: Callable[[Expr, Expr, Expr, Expr], Stmt]) -> Stmt:
        """``body(first tile, tiles, first key, keys)`` for the blocks of keys that a panel of queries sees any of."""
        p = self.tile_rows
        tiles: Any = p.tiles
        stmts: list[Stmt] = []
        if self.x.diagonal is not None:
            seen = tirx.max(tirx.min(panel * self.nr + (self.nr + self.x.diagonal), self.mem.const(p.size.m)), self.mem.const(0))
            seen, s0 = self.mem.hold("seen", seen)
            tiles, s1 = self.mem.hold("tiles", tiles_that_hold(p, seen))
            stmts = [*s0, *s1]

        def block(b: Expr) -> Stmt:
            first, s2 = self.mem.hold("tile0", b * self.block_tiles)
            count, s3 = self.mem.hold("count", tirx.min(self.mem.const(self.block_tiles), tiles - first))
            j0, s4 = self.mem.hold("j0", rows_before(p, first))
            keys, s5 = self.mem.hold("keys", rows_before(p, first + count) - j0)
            return seq(s2, s3, s4, s5, body(first, count, j0, keys))

        if self.blocks == 1:
            return seq(stmts, block(self.mem.const(0)))
        count = self.blocks if isinstance(tiles, int) else ceil_expr(tiles, self.block_tiles)
        return seq(stmts, self.mem.loop(count, block, "block"))

    def tiles(
        self, plan: Plan, first: Expr, count: int | Expr, k_extent: int | Expr, vectors: int,
        a: Callable[[Expr], tuple[Address, list[Stmt]]], b: Address, begin: Place, end: Place,
    ) -> Stmt:  # fmt: skip
        """The micro-kernel on ``count`` row tiles from ``first``."""

        def tile(x: Expr) -> Stmt:
            i, s0 = self.mem.hold("i", first + x)
            row, s1 = self.mem.hold("row", rows_before(plan, i))
            address, s2 = a(i)

            def kernel(rows: int) -> Stmt:
                cells = Cells(rows, vectors, self.lanes, self.dtype, self.mem.const(0))
                return multiply(
                    self.mem, plan.target, cells, k_extent, address, b, lambda c: begin(c, row), lambda c: end(c, row)
                )

            return seq(s0, s1, s2, by_rows(plan, i, kernel))

        return self.mem.loop(count, tile, "tile")

    def key_tiles(self, side: Side, t: Expr, head: Expr, first: Expr, count: Expr, j0: Expr, target: Any) -> Stmt:
        """target[key - j0][query] = the product of a block of keys (or values) with the panel."""
        base = t * self.block_size
        place = lambda row: lambda r, v: base + (row - j0 + r) * self.nr + v * self.lanes  # noqa: E731
        zero = self.mem.const(0)
        return self.tiles(
            side.plan, first, count, side.c.size.k, self.vectors, lambda i: side.rows(t, head, i, zero), side.panel(t),
            lambda c, row: c.clear(), lambda c, row: c.save(target, place(row)),
        )  # fmt: skip

    # --- elements --------------------------------------------------------------------------------------------

    def element(self, part: str, head: Expr, key: Expr, query: Expr, values: dict[str, Expr], parts: Parts) -> list[Any]:
        """[statements, value] of an elementwise stage at (head, key, query); ``values`` are other parts' results there."""
        stage = self.x.parts[part]
        table = {id_of(self.x.parts[name].buffer): value for name, value in values.items()}
        batch = [i.var for i in stage.spatial[:-2]]
        where = decompose(stage.spatial[:-2], head)
        body = stage.at([*(where[v] for v in batch), key, query])
        body = inline(body, self.x.inlined)
        body = tvm_ffi.structural_map(body, (ir.TensorLoad, lambda e: table.get(id_of(e.source), e)))
        stores: list[Stmt] = []
        value = with_named_parts(self.mem.flatten(body, {}), parts, stores)
        return [stores, value]

    def vector(self, body: Callable[[Expr, Parts], Stmt]) -> Stmt:
        """``body(lane, names)`` for all lanes of a vector."""
        names: list[Stmt] = []
        loop = self.mem.vector(self.lanes, lambda x: body(x, Parts(self.mem, x, self.lanes, names)))
        return seq(names, loop)

    def query(self, panel: Expr, v: int, lane: Expr) -> Expr:
        """The query in a lane; beyond the last one, the last."""
        q = panel * self.nr + (v * self.lanes + lane)
        return tirx.min(q, self.mem.const(self.x.queries - 1)) if self.x.queries % self.nr else q

    def store_turned(
        self, part: str, source: Any, base: Expr, width: int, head: Expr, panel: Expr, factors: list[Any] | None = None
    ) -> Stmt:
        """[..., query, width] = source[width][query], times a factor a query."""
        out = self.mem.view(self.x.parts[part].buffer)
        lanes, m = self.lanes, self.x.queries
        zero = self.mem.const(0)

        def fetch(d: Expr, v: int) -> Expr:
            value = tirx.BufferLoad(source, [ramp(base + d * self.nr + v * lanes, lanes)])
            return value * tirx.BufferLoad(factors[v], [ramp(zero, lanes)]) if factors else value

        def vector(v: int) -> Stmt:
            i, s0 = self.mem.hold("i", panel * self.nr + v * lanes)
            at, s1 = self.mem.hold("at", (head * m + i) * width)

            def square(db: Expr) -> Stmt:
                turned, columns = transposed([fetch(db * lanes + r, v) for r in range(lanes)])
                stores = [tirx.BufferStore(out, x, [ramp(at + db * lanes + n * width, lanes)]) for n, x in enumerate(columns)]
                if m % self.nr:
                    guarded = [when(i + n < m, s) for n, s in enumerate(stores)]
                    return seq(turned, when(i + lanes <= m, seq(stores), seq(guarded)))
                return seq(turned, stores)

            def rest(d: Expr) -> Stmt:
                column = width // lanes * lanes + d

                def one(n: Expr) -> Stmt:
                    value = tirx.BufferLoad(source, [base + column * self.nr + v * lanes + n])
                    value = value * tirx.BufferLoad(factors[v], [n]) if factors else value
                    return tirx.BufferStore(out, value, [at + n * width + column])

                return self.mem.loop(self.mem.const(0) + tirx.min(lanes, m - i) if m % self.nr else lanes, one, "n")

            return seq(s0, s1, self.mem.loop(width // lanes, square, "db"), self.mem.loop(width % lanes, rest, "d"))

        return seq([vector(v) for v in range(self.vectors)])


def splits(heads: int, panels: int, threads: int) -> int:
    """Into how many parts the panels of a head are dealt so that the threads have equal work."""
    return 1 if heads >= 4 * threads else min(panels, threads // math.gcd(threads, heads))


def by_rows(plan: Plan, tile: Expr, body: Callable[[int], Stmt]) -> Stmt:
    """``body(rows)`` for the number of rows that the tile has (at most two kinds)."""
    small, large = plan.rows
    return when(tile < large, body(small + 1), body(small)) if large else body(small)


def tiles_that_hold(plan: Plan, rows: Expr) -> Expr:
    """How many of the first tiles hold that many rows."""
    small, large = plan.rows
    if not large:
        return ceil_expr(rows, small)
    tall = large * (small + 1)
    return tirx.Select(rows <= tall, ceil_expr(rows, small + 1), ceil_expr(rows - tall, small) + large)


def ceil_expr(value: Expr, divisor: int) -> Expr:
    """The quotient rounded up."""
    return tirx.floordiv(value + (divisor - 1), divisor)
