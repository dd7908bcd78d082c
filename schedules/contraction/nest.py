"""The loop nest of a contraction: pack, block, micro-kernel, epilogue.

parallel over threads, each a run of units (batch, rows, columns, K part):
    for N block (nc), for K block (kc):         B block packed to the thread's scratch, or read in place
        for M block (mc):                       A read in place, or packed beforehand by all threads
            for panel (nr columns), for tile (mr rows):
                micro-kernel: accumulators in registers over the K block
                after the last K block: epilogue and stores
if K is split: the parts are summed in a fixed order, then epilogue and stores
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tilegrad._base.tvm import tirx
from tilegrad.schedules.contraction import pairs
from tilegrad.schedules.contraction.bound import Bound
from tilegrad.schedules.contraction.canonical import Contraction
from tilegrad.schedules.contraction.dot import multiply_dot
from tilegrad.schedules.contraction.micro import Address, Cells, multiply
from tilegrad.schedules.contraction.pack_blocks import Block, BlockPacker
from tilegrad.schedules.contraction.pack_tiles import TilePacker
from tilegrad.schedules.contraction.parts import Parts, element
from tilegrad.schedules.contraction.plan import Plan, ceildiv
from tilegrad.schedules.contraction.tir import Memory, Stmt, both, part, ramp, seq, when
from tilegrad.schedules.contraction.work import Work, blocks, clip
from tilegrad.schedules.stages import Expr, id_of

PACKED_TOGETHER = 8
"""Tiles of A: 6 or 14 rows each are a few cache lines of a row of K, and as many streams to write."""


class Nest:
    """Builds the scheduled kernel of one plan."""

    def __init__(
        self,
        contraction: Contraction,
        plan: Plan,
        panels: Mapping[str, Any] | None = None,
        bound: Bound | None = None,
        scratch_start: int = 0,
    ) -> None:
        """``panels``: buffers that hold the packed operand ``a`` or ``b`` already (see prepack.py).

        scratch_start: bytes at the beginning of scratch that are another nest's.
        """
        plan.check(contraction.layout_a + contraction.layout_b)
        self.p, self.c, self.bound = plan, contraction, bound
        self.mem = Memory(contraction.index_dtype, scratch_bytes=scratch_start)
        if bound is not None:
            self.mem.ends = {id_of(b): n for b, n in bound.ends(self.mem.dtype).items()}
        self.work = Work(plan, bound, self.mem)
        self.tiles, self.blocks = TilePacker(contraction, plan, self.mem), BlockPacker(contraction, plan, self.mem)
        self.pack_a, self.pack_b = bool(plan.config["pack_a"]), bool(plan.config["pack_b"])
        p = plan
        self.panels = dict(panels or {})
        self.packed_a = self.panels.get("a")
        if self.pack_a and self.packed_a is None:
            self.packed_a = self._region("a", p.size.batch * p.k_blocks * p.tiles * p.kc * p.slots)
        self.row_stride = self._row_stride()
        self.b_size = p.kc * (self.row_stride or p.nc * p.nr) + p.lanes
        self.packed_b = self.panels.get("b")
        if self.pack_b and self.packed_b is None:
            self.packed_b = self._region("b", p.threads * self.b_size)
        self.tile_size = p.slots * p.nr
        self.split_k = p.splits[2] > 1
        if self.split_k:
            count = p.splits[2] * p.size.batch * p.tiles * p.panels
        else:
            count = p.threads * (p.unit_tiles * p.nc if p.k_blocks > 1 else 1)
        self.partial = self._region("c", count * self.tile_size)
        self.sum = self._region("sum", p.target.threads * self.tile_size) if self.split_k else None

    def body(self, a_is_packed: bool = False) -> Stmt:
        """All loops; scratch is ``mem.scratch``. They need ``mem.declarations`` before them."""
        p = self.p
        pack_a = self.pack_a and "a" not in self.panels and not a_is_packed
        steps = [self._pack_all_a() if pack_a else None, self._all_units()]
        if self.split_k:
            self.work.count(hold=False)
            now = self.work.now
            steps.append(self.mem.parallel(p.target.threads, now.batch * now.tiles * now.panels, self._reduce))
        return seq(steps)

    def _all_units(self) -> Stmt:
        p = self.p
        tm, tn, tk = p.splits
        self.work.count(hold=False)
        threads = p.target.threads if isinstance(self.work.now.batch, int) else p.threads
        return self.mem.parallel(threads, self.work.now.batch * (tm * tn * tk), self._unit)

    # --- who does what ---------------------------------------------------------------------------------------

    def _region(self, name: str, count: int) -> Any:
        return self.mem.region(name, self.c.acc, count)

    def _row_stride(self) -> int:
        """Elements between rows of a gathered block, 0 for panels. An odd number of 16-element groups spreads L1's sets."""
        if not self.pack_b or self.blocks.style != "rows":
            return 0
        groups = ceildiv(self.p.nc * self.p.nr, 16)
        return (groups + 1 - groups % 2) * 16

    def _pack_all_a(self) -> Stmt:
        """Every tile of A, by all threads."""
        p = self.p
        group = self.group(p.size.batch * p.k_blocks)
        self.work.count(hold=False)
        count = self.work.now.batch * p.k_blocks * blocks(self.work.now.tiles, group)
        return self.mem.parallel(p.target.threads, count, lambda _, index: self.pack_a_group(index, group))

    def group(self, runs: int) -> int:
        """How many neighbouring tiles of A are packed side by side, in ``runs`` of all tiles.

        Where a row of K holds few elements of one tile (6 floats are a third of a cache line), what its neighbours need lies
        beside them: tile by tile every line would be fetched several times, and every few bytes from another page.
        """
        p = self.p
        most = ceildiv(p.tiles, PACKED_TOGETHER)
        if runs % p.target.threads:  # equal work for all threads
            most = min(p.tiles, ceildiv(most, p.target.threads) * p.target.threads)
        return ceildiv(p.tiles, most)

    def pack_a_group(self, index: Expr, group: int) -> Stmt:
        """The ``index``-th of the groups of tiles of A: groups of a K block follow one another, K blocks of a batch element."""
        p = self.p
        begin = self.work.count()
        groups = blocks(self.work.now.tiles, group)
        first, s0 = self.mem.hold("first", tirx.floormod(index, groups) * group)
        outer, s1 = self.mem.hold("outer", tirx.floordiv(index, groups))
        k0 = tirx.floormod(outer, p.k_blocks) * p.kc
        batch = tirx.floordiv(outer, p.k_blocks)
        count = clip(group, self.work.now.tiles, first)
        extent = self.work.k_extent(k0)

        def place(i: Expr) -> tuple[Expr, Expr, list[Stmt]]:
            base, s3 = self.mem.hold("base", (outer * p.tiles + i) * (p.kc * p.slots))
            row, s4 = self.mem.hold("row", self.work.row(i))
            return base, row, [*s3, *s4]

        def tiles(body: Callable[[Expr, Expr, int], Stmt]) -> Stmt:
            def tile(x: Expr) -> Stmt:
                i, s2 = self.mem.hold("i", first + x)
                base, row, binds = place(i)
                if self.work.bounds("m"):
                    return seq(s2, binds, when(row + p.slots <= self.work.now.m, body(base, row, p.slots)))
                return seq(s2, binds, self.work.by_rows(i, lambda rows: body(base, row, rows)))

            return self.mem.loop(count, tile, "tile")

        copy = self.tiles.a_tiles(self.packed_a, tiles, batch, k0, extent)
        if not self.work.bounds("m"):
            return seq(begin, s0, s1, copy)
        base, row, binds = place(first + (count - 1))
        rest = self.tiles.a_rows(self.packed_a, base, batch, self.work.last_rows(row, p.slots), k0, extent)
        return seq(begin, s0, s1, copy, binds, when(row + p.slots > self.work.now.m, rest))

    # --- one unit --------------------------------------------------------------------------------------------

    def _unit(self, t: Expr, u: Expr) -> Stmt:
        p, begin = self.p, self.work.count()
        tm, tn, tk = p.splits
        mi, ni = tirx.floormod(u, tm), tirx.floormod(tirx.floordiv(u, tm), tn)
        ki = tirx.floormod(tirx.floordiv(u, tm * tn), tk)
        batch, s0 = self.mem.hold("batch", tirx.floordiv(u, tm * tn * tk))
        i_lo, i_n = part(self.work.now.tiles, tm, mi)
        p_lo, p_n = part(self.work.now.panels, tn, ni)
        k_lo, k_n = part(p.k_blocks, tk, ki)

        def n_block(jc: Expr) -> Stmt:
            p0, s1 = self.mem.hold("p0", p_lo + jc * p.nc)
            count = clip(p.nc, p_n, jc * p.nc)

            def k_block(kb: Expr) -> Stmt:
                k0, s2 = self.mem.hold("k0", (k_lo + kb) * p.kc)
                k_extent = self.work.k_extent(k0)
                pack_b = self.pack_b and "b" not in self.panels
                packed = self._pack_b(t, batch, k0, k_extent, p0, count) if pack_b else None
                first = kb.equal(0) if p.k_blocks > 1 else True
                last = kb.equal(k_n - 1) if p.k_blocks > 1 else True

                def m_block(ic: Expr) -> Stmt:
                    i0 = i_lo + ic * p.mc
                    i_count = clip(p.mc, i_n, ic * p.mc)

                    def tile(jr: Expr, ir_: Expr) -> Stmt:
                        i, s3 = self.mem.hold("i", i0 + ir_)
                        panel, s4 = self.mem.hold("p", p0 + jr)
                        at, s5 = self.mem.hold("at", self._tile_at(t, batch, ki, ic * p.mc + ir_, jr, i, panel))
                        body = self._tile(t, batch, k_lo + kb, k0, k_extent, i, panel, jr, at, first)
                        done = None if self.split_k else when(last, self._store(batch, i, panel, self.partial, at))
                        return seq(s3, s4, s5, body, done)

                    return self.mem.loop(count, lambda jr: self.mem.loop(i_count, lambda x: tile(jr, x), "ir"), "jr")

                return seq(s2, packed, self.mem.loop(blocks(i_n, p.mc), m_block, "ic"))

            return seq(s1, self.mem.loop(k_n, k_block, "kb"))

        return seq(begin, s0, self.mem.loop(blocks(p_n, p.nc), n_block, "jc"))

    def _tile_at(self, t: Expr, batch: Expr, ki: Expr, i_local: Expr, jr: Expr, i: Expr, panel: Expr) -> Expr:
        """Where the tile's sums lie between K blocks (and on their way to the epilogue)."""
        p = self.p
        if self.split_k:
            return (((ki * p.size.batch + batch) * p.tiles + i) * p.panels + panel) * self.tile_size
        if p.k_blocks > 1:
            return ((t * p.unit_tiles + i_local) * p.nc + jr) * self.tile_size
        return t * self.tile_size

    def _pack_b(self, t: Expr, batch: Expr, k0: Expr, k_extent: int | Expr, p0: Expr, panels: int | Expr) -> Stmt:
        p = self.p
        vectors = panels * p.vectors
        if self.work.bounds("segments") or p.total_vectors % p.vectors or not isinstance(panels, int):
            vectors = tirx.min(self.mem.const(0) + vectors, self.work.now.vectors - p0 * p.vectors)
        base = t * self.b_size

        def at(v: Expr, k: Expr) -> Expr:
            if self.row_stride:
                return base + k * self.row_stride + v * p.lanes
            return base + (tirx.floordiv(v, p.vectors) * p.kc + k) * p.nr + tirx.floormod(v, p.vectors) * p.lanes

        n_vec, s0 = (vectors, None) if isinstance(vectors, int) else self.mem.hold("vectors", vectors)
        v0, s1 = self.mem.hold("v0", p0 * p.vectors)
        return seq(s0, s1, self.blocks.b_block(Block(batch, k0, k_extent, v0, n_vec, self.packed_b, at, slack=True)))

    # --- the micro-kernel ------------------------------------------------------------------------------------

    def _tile(
        self, t: Expr, batch: Expr, kb: Expr, k0: Expr, k_extent: int | Expr, i: Expr, panel: Expr, jr: Expr, at: Expr, first: Any
    ) -> Stmt:
        """All accumulators of one tile over one K block."""
        p = self.p
        a_addr, a_binds = self._a_address(batch, kb, k0, i)
        b_addr, b_binds = self._b_columns(batch, k0, panel) if p.dot else self._b_address(t, batch, k0, panel, jr)

        def by_vectors(rows: int, a: Address = a_addr) -> Stmt:
            if p.dot:
                return multiply_dot(self.mem, p, self.c.acc, rows, k_extent, a, b_addr, self.partial, at, first)
            left = 0 if self.work.bounds("segments") else p.total_vectors % p.vectors
            whole = self._micro(rows, p.vectors, k_extent, a, b_addr, at, first)
            return when(panel < p.panels - 1, whole, self._micro(rows, left, k_extent, a, b_addr, at, first)) if left else whole

        def last(rows: int) -> Stmt:
            a, binds = self.tiles.a_rows_in_place(batch, self.work.last_rows(self.work.row(i), rows), k0)
            return seq(binds, by_vectors(rows, a))

        return seq(a_binds, b_binds, self.work.by_rows(i, by_vectors, None if self.pack_a else last))

    def _a_address(self, batch: Expr, kb: Expr, k0: Expr, i: Expr) -> tuple[Address, list[Stmt]]:
        p = self.p
        if self.pack_a:
            block = (batch * p.k_blocks + kb) * p.tiles + i
            base, stmt = self.mem.hold("pa", block * (p.kc * p.slots))
            return (lambda r, k: (self.packed_a, base + k * p.slots + r)), [stmt]
        return self.tiles.a_in_place(batch, self.work.row(i), k0)

    def _b_address(self, t: Expr, batch: Expr, k0: Expr, panel: Expr, jr: Expr) -> tuple[Address, list[Stmt]]:
        p = self.p
        if "b" in self.panels:
            base, stmt = self.mem.hold("pb", (batch * (p.k_blocks * p.kc * p.panels) + k0 * p.panels + panel * p.kc) * p.nr)
            return (lambda v, k: (self.packed_b, base + k * p.nr + v * p.lanes)), [stmt]
        if self.pack_b:
            if self.row_stride:
                base, stmt = self.mem.hold("pb", t * self.b_size + jr * p.nr)
                return (lambda v, k: (self.packed_b, base + k * self.row_stride + v * p.lanes)), [stmt]
            base, stmt = self.mem.hold("pb", t * self.b_size + jr * (p.kc * p.nr))
            return (lambda v, k: (self.packed_b, base + k * p.nr + v * p.lanes)), [stmt]
        read, place = self.c.b.read, self.c.b.place
        assert read is not None and place is not None
        k_step = place.fused(self.c.k)
        assert k_step is not None
        zero = {x.var: self.mem.const(0) for x in (*self.c.n, *self.c.k)}
        bases: list[Any] = []
        stmts: list[Any] = []
        for v in range(p.vectors):
            vector = panel * p.vectors + v
            seg, e = self.blocks.lane_env(tirx.min(vector, self.work.now.vectors - 1) if self.work.bounds("segments") else vector)
            start = self.mem.place(read.source, read.indices, zero | self.blocks.env(batch=batch, segments=seg))
            base, stmt = self.mem.hold(f"pb{v}", self.mem.simplify(start + e + k0 * k_step))
            if p.size.segments == 1 and v:
                base = bases[0] + v * p.lanes
            else:
                stmts.append(stmt)
            bases.append(base)
        return (lambda v, k: (self.mem.view(read.source), bases[v] + k * k_step)), stmts

    def _b_columns(self, batch: Expr, k0: Expr, panel: Expr) -> tuple[Address, list[Stmt]]:
        """Where each of a vector's columns starts, for an operand that is contiguous along K."""
        p, read, place = self.p, self.c.b.read, self.c.b.place
        assert read is not None and place is not None
        n_step = place.fused(self.c.n)
        assert n_step is not None
        zero = {x.var: self.mem.const(0) for x in (*self.c.n, *self.c.k)}
        seg, e = self.blocks.lane_env(panel)
        start = self.mem.place(read.source, read.indices, zero | self.blocks.env(batch=batch, segments=seg))
        bases: list[Any] = []
        stmts: list[Any] = []
        for j in range(p.lanes):
            column = tirx.min(e + j, self.mem.const(p.size.n - 1)) if p.tail else e + j
            if j and not p.tail:
                bases.append(bases[0] + j * n_step)
                continue
            base, stmt = self.mem.hold(f"pb{j}", start + column * n_step + k0)
            bases.append(base)
            stmts.append(stmt)
        return (lambda j, k: (self.mem.view(read.source), bases[j] + k)), stmts

    def _micro(self, rows: int, vectors: int, k_extent: int | Expr, a: Address, b: Address, at: Expr, first: Any) -> Stmt:
        """rows x vectors accumulators: one load a vector of B, one broadcast a row of A, one multiply-add each."""
        p = self.p

        def tile(r: int, v: int) -> Expr:
            return at + (r * p.nr + v * p.lanes)

        cells = Cells(rows, vectors, p.lanes, self.c.acc, self.mem.const(0))
        begin = lambda c: when(first, c.clear(), c.load(self.partial, tile))  # noqa: E731
        end = lambda c: c.save(self.partial, tile)  # noqa: E731
        if self.c.pairs:
            return multiply(self.mem, p.target, cells, k_extent, a, b, begin, end, lambda x, y: pairs.product(x, y, p.lanes))
        return multiply(self.mem, p.target, cells, k_extent, a, b, begin, end)

    # --- epilogue --------------------------------------------------------------------------------------------

    def _store(self, batch: Expr, i: Expr, panel: Expr, source: Any, at: Expr) -> Stmt:
        """The chain of elementwise stages on a finished tile, and the stores of its outputs."""
        p = self.p
        row0, s0 = self.mem.hold("row0", self.work.row(i))
        small, large = p.rows
        count: int | Expr = small if not large else small + tirx.Select(i < large, self.mem.const(1), self.mem.const(0))
        if self.work.bounds("m"):
            count = tirx.min(self.mem.const(p.slots), self.work.now.m - row0)
        left = self.work.bounds("segments") or p.total_vectors % p.vectors
        vectors = p.vectors if not left else tirx.min(self.mem.const(p.vectors), self.work.now.vectors - panel * p.vectors)
        contiguous = not self.c.guard and all(x.place is not None and x.place.fused(self.c.n) in (0, 1) for x in self.c.outputs)

        def vector(r: Expr, v: Expr) -> Stmt:
            seg, e = self.blocks.lane_env(panel * p.vectors + v)
            e0, s1 = self.mem.hold("e0", e)
            seg_v, s2 = self.mem.hold("seg", seg)
            row, s3 = self.mem.hold("row", row0 + r)
            src, s4 = self.mem.hold("src", at + r * p.nr + v * p.lanes)

            parts: list[Stmt] = []

            def lane(x: Expr) -> Stmt:
                env = self.blocks.env(batch=batch, m=row, segments=seg_v, n=e0 + x)
                done = element(self.c, self.mem, env, tirx.BufferLoad(source, [src + x]), Parts(self.mem, x, p.lanes, parts))
                return when(both([self.mem.flatten(g, env) for g in self.c.guard]), done) if self.c.guard else done

            full = self.mem.vector(p.lanes, lane) if contiguous else self.mem.loop(p.lanes, lane, "l")
            if p.tail:
                full = when(e0 + p.lanes <= p.size.n, full, self.mem.loop(p.tail, lane, "l"))
            return seq(s1, s2, s3, s4, parts, full)

        return seq(s0, self.mem.loop(count, lambda r: self.mem.loop(vectors, lambda v: vector(r, v), "v"), "r"))

    def _reduce(self, t: Expr, index: Expr) -> Stmt:
        """Sum the K parts of one tile in order, then store it."""
        p, lanes = self.p, self.p.lanes
        assert self.sum is not None
        begin = self.work.count()
        tiles, panels = self.work.now.tiles, self.work.now.panels
        panel = tirx.floormod(index, panels)
        i, s0 = self.mem.hold("i", tirx.floormod(tirx.floordiv(index, panels), tiles))
        batch, s1 = self.mem.hold("batch", tirx.floordiv(index, panels * tiles))
        pv, s2 = self.mem.hold("p", panel)
        at, s3 = self.mem.hold("at", t * self.tile_size)
        if self.bound is not None:
            index, s4 = self.mem.hold("tile", (batch * p.tiles + i) * p.panels + pv)
            s3 = [*s3, *s4]
        step = p.size.batch * p.tiles * p.panels * self.tile_size

        def add(x: Expr) -> Stmt:
            def load(part_: int) -> Expr:
                return tirx.BufferLoad(self.partial, [ramp(index * self.tile_size + part_ * step + x * lanes, lanes)])

            total = load(0)
            for k in range(1, p.splits[2]):
                total = total + load(k)
            return tirx.BufferStore(self.sum, total, [ramp(at + x * lanes, lanes)])

        store = self._store(batch, i, pv, self.sum, at)
        return seq(begin, s0, s1, s2, s3, self.mem.loop(self.tile_size // lanes, add, "x"), store)
