"""A packed: tiles of rows, ``[k][slot]``, or read where it lies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilegrad._base.tvm import tirx
from tilegrad.schedules.contraction.affine import decompose
from tilegrad.schedules.contraction.canonical import Operand, product
from tilegrad.schedules.contraction.lines import interval
from tilegrad.schedules.contraction.micro import Address
from tilegrad.schedules.contraction.pack import Packer
from tilegrad.schedules.contraction.runs import moves_by, runs_along
from tilegrad.schedules.contraction.tir import Stmt, seq
from tilegrad.schedules.stages import Expr, Iter

SHORT_RUN = 8
"""Elements along K that are turned at once; shorter runs are copied one by one."""
Run = Callable[[dict[Any, Expr], Sequence[Iter], Expr, Expr, Expr], Stmt]
Tiles = Callable[[Callable[[Expr, Expr, int], Stmt]], Stmt]
"""Emits what it is given for each of some tiles of A: where the tile's panel begins, its first row, its rows."""


class TilePacker(Packer):
    """Emits the copies of A's tiles."""

    def a_tiles(self, target: Any, tiles: Tiles, batch: Expr, k0: Expr, k_extent: int | Expr) -> Stmt:
        """Pack a K block of ``tiles``: element (k, r) of a tile goes to ``base + k * slots + r``."""
        slots, op, mem = self.p.slots, self.c.a, self.mem

        def element(base: Expr, row: Expr, k: Expr) -> Callable[[Expr], Stmt]:
            def put(r: Expr) -> Stmt:
                value = self.value(op, self.env(batch=batch, m=row + r, k=k0 + k))
                return tirx.BufferStore(target, value, [base + k * slots + r])

            return put

        if moves_by(op, self.c.m, (0, 1)):  # 6 rows are a vector of 4 and one of 2

            def along_m(put: Callable[[Expr], Stmt], rows: int) -> Stmt:
                out, r = [], 0
                while r < rows:
                    width = 1 << ((rows - r).bit_length() - 1)
                    out.append(mem.vector(width, lambda x, r=r: put(x + r)) if width > 1 else put(mem.const(r)))  # type: ignore[misc]
                    r += width
                return seq(out)

            return mem.loop(k_extent, lambda k: tiles(lambda base, row, rows: along_m(element(base, row, k), rows)), "k")
        outer, inner = self._even(op)
        if not runs_along(op, self.c.k[-1]) or (product(inner) < SHORT_RUN and not op.guards):

            def one_by_one(put: Callable[[Expr], Stmt], rows: int) -> Stmt:
                return seq([put(mem.const(r)) for r in range(rows)])

            return mem.loop(k_extent, lambda k: tiles(lambda base, row, rows: one_by_one(element(base, row, k), rows)), "k")
        if not op.guards and moves_by(op, inner, (1,)):
            return self._a_squares(target, tiles, batch, k0, k_extent)

        def by_rows(base: Expr, row: Expr, rows: int) -> Stmt:
            def one_row(r: Expr) -> Stmt:
                env, binds = self.named(self.env(batch=batch, m=row + r))
                return seq(binds, self._k_runs(op, env, k0, k_extent, target, lambda k: base + k * slots + r))

            return mem.loop(rows, one_row, "r")

        return tiles(by_rows)

    def a_rows(self, target: Any, base: Expr, batch: Expr, rows: Sequence[Expr], k0: Expr, k_extent: int | Expr) -> Stmt:
        """Pack one tile of any rows, element by element; element (k, r) goes to ``base + k * slots + r``."""

        def element(r: int, row: Expr, k: Expr) -> Stmt:
            value = self.value(self.c.a, self.env(batch=batch, m=row, k=k0 + k))
            return tirx.BufferStore(target, value, [base + k * self.p.slots + r])

        return self.mem.loop(k_extent, lambda k: seq([element(r, row, k) for r, row in enumerate(rows)]), "k")

    def a_rows_in_place(self, batch: Expr, rows: Sequence[Expr], k0: Expr) -> tuple[Address, list[Stmt]]:
        """As ``a_in_place`` for any rows."""
        found = [self.a_in_place(batch, row, k0) for row in rows]
        return (lambda r, k: found[r][0](0, k)), [s for _, stmts in found for s in stmts]

    def a_in_place(self, batch: Expr, row: Expr, k0: Expr) -> tuple[Address, list[Stmt]]:
        """Where the elements of A lie that count from ``row`` and ``k0``, for an operand that is a plain matrix."""
        place, read = self.c.a.place, self.c.a.read
        assert place is not None and read is not None
        row_step, k_step = place.fused(self.c.m), place.fused(self.c.k)
        assert row_step is not None and k_step is not None
        zero = {x.var: self.mem.const(0) for x in (*self.c.m, *self.c.k)}
        start = self.mem.place(read.source, read.indices, zero | self.env(batch=batch))
        base, stmt = self.mem.hold("pa", start + row * row_step + k0 * k_step)
        return (lambda r, k: (self.mem.view(read.source), base + k * k_step + r * row_step)), [stmt]

    def _a_squares(self, target: Any, tiles: Tiles, batch: Expr, k0: Expr, k_extent: int | Expr) -> Stmt:
        """Rows that are contiguous along K, a run at a time: squares of rows by K, turned in registers."""
        mem, op, slots = self.mem, self.c.a, self.p.slots

        def run(here: dict[Any, Expr], inner: Sequence[Iter], start: Expr, length: Expr, shift: Expr) -> Stmt:
            n, s0 = mem.hold("n", tirx.floordiv(length, SHORT_RUN))

            def tile(base: Expr, row: Expr, rows: int) -> Stmt:
                def at(r: Expr, x: Expr) -> Expr:
                    env = self.env(batch=batch, m=row + r) | here | decompose(inner, start + x)
                    return mem.flatten(op.expr, env)

                def place(r: int, x: Expr) -> Expr:
                    return base + (shift + start + x) * slots + r

                out: list[Any] = []
                r0 = 0
                while r0 < rows:
                    width = min(SHORT_RUN, 1 << ((rows - r0).bit_length() - 1))

                    def squares(x: Expr, r0: int = r0, width: int = width) -> Stmt:
                        return seq(
                            [
                                self.square(
                                    width,
                                    lambda i, lane, x0=x * SHORT_RUN + j: at(mem.const(r0 + i), x0 + lane),  # type: ignore[misc]
                                    lambda i, x0=x * SHORT_RUN + j: (target, place(r0, x0 + i)),  # type: ignore[misc]
                                )
                                for j in range(0, SHORT_RUN, width)
                            ]
                        )

                    out.append(mem.loop(n, squares, "x"))
                    r0 += width

                def rest(x: Expr) -> Stmt:
                    k = n * SHORT_RUN + x
                    return seq([tirx.BufferStore(target, at(mem.const(r), k), [place(r, k)]) for r in range(rows)])

                return seq(out, mem.loop(length - n * SHORT_RUN, rest, "x"))

            return seq(s0, tiles(tile))

        return self._runs(op, {}, k0, k_extent, run)

    def _even(self, op: Operand) -> tuple[tuple[Iter, ...], tuple[Iter, ...]]:
        """The K axes, cut before the longest suffix that ``op`` reads at one stride (the last axis where it has guards)."""
        axes = self.c.k
        cut = len(axes) - 1
        while cut > 0 and not op.guards and moves_by(op, axes[cut - 1 :], None):
            cut -= 1
        return axes[:cut], axes[cut:]

    def _runs(self, op: Operand, env: dict[Any, Expr], k0: Expr, k_extent: int | Expr, body: Run) -> Stmt:
        """``body`` for every run of a K block: the values of the outer axes, the inner ones, the run's part, its distance."""
        mem = self.mem
        outer, inner = self._even(op)
        width = product(inner)
        k1 = k0 + k_extent

        def run(q: Expr) -> Stmt:
            here, binds = self.named(env | decompose(outer, q))
            start, s0 = mem.hold("c0", tirx.max(k0 - q * width, mem.const(0)))
            length, s1 = mem.hold("len", tirx.min(k1 - q * width, mem.const(width)) - start)
            shift, s2 = mem.hold("shift", q * width - k0)
            return seq(binds, s0, s1, s2, body(here, inner, start, length, shift))

        if not outer:
            return run(mem.const(0))
        first, s3 = mem.hold("first", tirx.floordiv(k0, width))
        return seq(s3, mem.loop(tirx.floordiv(k1 + (width - 1), width) - first, lambda q: run(first + q), "run"))

    def _k_runs(
        self, op: Operand, env: dict[Any, Expr], k0: Expr, k_extent: int | Expr, target: Any, at: Callable[[Expr], Expr]
    ) -> Stmt:
        """``target[at(k)] = op`` for one row or column over a K block, run by run; zeros outside the guards."""
        mem = self.mem

        def run(here: dict[Any, Expr], inner: Sequence[Iter], start: Expr, length: Expr, shift: Expr) -> Stmt:
            stop = start + length
            lo_e, hi_e = interval(self.mem, op.guards, self.c.k[-1].var, here, start, stop) if op.guards else (start, stop)
            lo, s0 = mem.hold("lo", lo_e)
            hi, s1 = mem.hold("hi", hi_e)

            def put(x: Expr) -> Stmt:
                return tirx.BufferStore(target, mem.flatten(op.expr, here | decompose(inner, x)), [at(shift + x)])

            def fill(a: Expr, b: Expr) -> Stmt:
                return mem.loop(b - a, lambda x: tirx.BufferStore(target, tirx.const(0, self.c.acc), [at(shift + a + x)]), "z")

            body = mem.loop(hi - lo, lambda x: put(lo + x), "x")
            return seq(s0, s1, [fill(start, lo), body, fill(hi, stop)] if op.guards else body)

        return self._runs(op, env, k0, k_extent, run)
