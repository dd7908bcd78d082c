"""Copying operands to where the micro-kernel reads them at unit stride: panels of A and B, gathers, transposes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tilegrad._base.tvm import tirx
from tilegrad.schedules.contraction.affine import decompose
from tilegrad.schedules.contraction.canonical import Contraction, Operand, product
from tilegrad.schedules.contraction.lines import Lines, interval
from tilegrad.schedules.contraction.micro import Address
from tilegrad.schedules.contraction.plan import Plan
from tilegrad.schedules.contraction.runs import moves_by, runs_along
from tilegrad.schedules.contraction.tir import Memory, Stmt, bind, both, ramp, seq, when
from tilegrad.schedules.contraction.turn import transposed
from tilegrad.schedules.stages import Expr, Iter


@dataclass(frozen=True)
class Block:
    """The piece of B that is packed at once: K from ``k0``, ``vectors`` vectors from ``v0``; ``at(v, k)`` is its place."""

    batch: Expr
    k0: Expr
    k_extent: int | Expr
    v0: Expr
    vectors: int | Expr
    target: Any
    at: Callable[[Expr, Expr], Expr]
    slack: bool = False
    """Whether a vector past the last row's end may be written."""


SHORT_RUN = 8
"""Elements along K that are turned at once; shorter runs are copied one by one."""
STRIP = 256
"""Elements along K that are gathered before they are turned."""
Run = Callable[[dict[Any, Expr], Sequence[Iter], Expr, Expr, Expr], Stmt]
Tiles = Callable[[Callable[[Expr, Expr, int], Stmt]], Stmt]
"""Emits what it is given for each of some tiles of A: where the tile's panel begins, its first row, its rows."""


def style_of(c: Contraction) -> str:
    """How B is packed.

    copy: along N; transpose: vectors along K, turned in registers; rows: runs of the innermost N axis (a row of the
    image), zeros outside the guards; columns: the same along the innermost K axis; scalar: element by element.
    """
    if moves_by(c.b, c.n, (0, 1)):
        return "copy"
    if moves_by(c.b, c.k, (0, 1)) and not c.b.guards:
        return "transpose"
    along_n = bool(c.n) and runs_along(c.b, c.n[-1])
    along_k = bool(c.k) and runs_along(c.b, c.k[-1])
    if along_n and (not along_k or c.n[-1].extent >= min(8, c.k[-1].extent)):
        return "rows"
    return "columns" if along_k else "scalar"


class Packer:
    """Emits the copies for one plan."""

    def __init__(self, contraction: Contraction, plan: Plan, memory: Memory) -> None:
        self.p, self.c, self.mem = plan, contraction, memory
        self.style = style_of(contraction)

    def value(self, op: Operand, env: dict[Any, Expr], extra: Sequence[Expr] = ()) -> Expr:
        """``op`` at ``env``, zero outside its guards and ``extra``."""
        value = self.mem.flatten(op.expr, env)
        tests = [*extra, *(self.mem.flatten(g, env) for g in op.guards)]
        return tirx.if_then_else(both(tests), value, tirx.const(0, value.ty.dtype)) if tests else value

    def lane_env(self, vector: Expr) -> tuple[Expr, Expr]:
        """(segment, first element within it) of a vector."""
        per = self.p.segment_vectors
        if self.p.size.segments == 1:
            return self.mem.const(0), vector * self.p.lanes
        return tirx.floordiv(vector, per), tirx.floormod(vector, per) * self.p.lanes

    def env(self, **index: Expr) -> dict[Any, Expr]:
        """The canonical variables from indices of the groups ``batch, m, segments, n, k``."""
        out: dict[Any, Expr] = {}
        for group, value in index.items():
            out |= decompose(getattr(self.c, group), value)
        return out

    # --- A: tiles of rows, [k][slot] --------------------------------------------------------------------------

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
                                self._square(
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

    def _square(self, lanes: int, read: Callable[[int, Expr], Expr], place: Callable[[int], tuple[Any, Expr]]) -> Stmt:
        """``lanes`` vectors turned: lane j of vector i, ``read(i, j)``, goes to lane i of ``place(j)``."""
        if lanes == 1:
            target, index = place(0)
            return tirx.BufferStore(target, read(0, self.mem.const(0)), [index])
        tile = tirx.decl_buffer((lanes * lanes,), self.c.acc, "square")

        def fetch(i: int) -> Stmt:
            return self.mem.vector(lanes, lambda x: tirx.BufferStore(tile, read(i, x), [x + i * lanes]))

        rows = [tirx.BufferLoad(tile, [ramp(self.mem.const(i * lanes), lanes)]) for i in range(lanes)]
        turned, columns = transposed(rows)
        stores = [tirx.BufferStore(place(i)[0], x, [ramp(place(i)[1], lanes)]) for i, x in enumerate(columns)]
        return seq(tirx.AllocBuffer(tile), [fetch(i) for i in range(lanes)], turned, stores)

    def named(self, env: dict[Any, Expr]) -> tuple[dict[Any, Expr], list[Stmt]]:
        """``env`` with every compound value held in a register."""
        out, held = {}, []
        for v, e in env.items():
            if isinstance(e, tirx.IntImm | tirx.Var):
                out[v] = e
            else:
                out[v], stmts = self.mem.hold(v.name, e)
                held += stmts
        return out, held

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

    # --- B: vectors ------------------------------------------------------------------------------------------

    def b_block(self, block: Block) -> Stmt:
        """Pack a block of B."""
        return getattr(self, f"_{self.style}")(block)

    def _copy(self, q: Block) -> Stmt:
        def one(k: Expr, v: Expr) -> Stmt:
            seg, e = self.lane_env(q.v0 + v)
            e0, bound = bind("e", e)
            at, bound_at = bind("at", q.at(v, k))

            def lane(i: Expr, tests: Sequence[Expr] = ()) -> Stmt:
                env = self.env(batch=q.batch, segments=seg, n=e0 + i, k=q.k0 + k)
                return tirx.BufferStore(q.target, self.value(self.c.b, env, tests), [at + i])

            full = self.mem.vector(self.p.lanes, lane)
            if self.p.tail:
                rest = self.mem.loop(self.p.lanes, lambda i: lane(i, [e0 + i < self.p.size.n]), "l")
                full = when(e0 + self.p.lanes <= self.p.size.n, full, rest)
            return seq(bound, bound_at, full)

        return self.mem.loop(q.k_extent, lambda k: self.mem.loop(q.vectors, lambda v: one(k, v), "v"), "k")

    def _scalar(self, q: Block) -> Stmt:
        def one(v: Expr, k: Expr) -> Stmt:
            seg, e = self.lane_env(q.v0 + v)

            def lane(i: Expr) -> Stmt:
                env = self.env(batch=q.batch, segments=seg, n=e + i, k=q.k0 + k)
                tests = [e + i < self.p.size.n] if self.p.tail else []
                return tirx.BufferStore(q.target, self.value(self.c.b, env, tests), [q.at(v, k) + i])

            return self.mem.loop(self.p.lanes, lane, "l")

        return self.mem.loop(q.vectors, lambda v: self.mem.loop(q.k_extent, lambda k: one(v, k), "k"), "v")

    def _columns(self, q: Block) -> Stmt:
        """Rows of the image along K, as many as a vector has lanes; then squares of them are turned in registers."""
        mem, lanes = self.mem, self.p.lanes
        lines = Lines(self.c.b, self.c.k, self.c.acc, lanes, mem, slack=True)
        strip = tirx.decl_buffer((lanes * STRIP + lanes,), self.c.acc, "strip")

        def one(v: Expr, k: Expr) -> Stmt:
            length, s0 = mem.hold("len", tirx.min(mem.const(STRIP), mem.const(0) + q.k_extent - k))
            e0, s1 = mem.hold("e0", q.k0 + k)
            seg, e = self.lane_env(q.v0 + v)

            def line(i: Expr) -> Stmt:
                n = tirx.min(e + i, mem.const(self.p.size.n - 1)) if self.p.tail else e + i
                env, binds = self.named(self.env(batch=q.batch, segments=seg, n=n))
                return seq(binds, lines.copy(strip, i * STRIP - e0, env, e0, e0 + length))

            def read(i: Expr | int, x: Expr) -> Expr:
                return tirx.BufferLoad(strip, [x + i * STRIP])

            def square(b: Expr) -> Stmt:
                x = b * lanes
                return self._square(lanes, lambda i, lane: read(i, x + lane), lambda i: (q.target, q.at(v, k + x + i)))

            whole, s2 = mem.hold("whole", tirx.floordiv(length, lanes))

            def rest(x: Expr) -> Stmt:
                at = whole * lanes + x
                return mem.loop(lanes, lambda i: tirx.BufferStore(q.target, read(i, at), [q.at(v, k + at) + i]), "l")

            squares = mem.loop(whole, square, "b")
            return seq(s0, s1, mem.loop(lanes, line, "l"), s2, squares, mem.loop(length - whole * lanes, rest, "x"))

        count = -(-q.k_extent // STRIP) if isinstance(q.k_extent, int) else tirx.floordiv(q.k_extent + (STRIP - 1), STRIP)
        return seq(
            tirx.AllocBuffer(strip), mem.loop(q.vectors, lambda v: mem.loop(count, lambda b: one(v, b * STRIP), "kb"), "v")
        )

    def _transpose(self, q: Block) -> Stmt:
        """Blocks of ``lanes`` x ``lanes``: vectors along K are read, turned in registers, written along N."""
        lanes = self.p.lanes

        def element(v: Expr, i: Expr, k: Expr) -> Expr:
            seg, e = self.lane_env(q.v0 + v)
            n = tirx.min(e + i, self.mem.const(self.p.size.n - 1)) if self.p.tail else e + i
            return self.value(self.c.b, self.env(batch=q.batch, segments=seg, n=n, k=q.k0 + k))

        def square(v: Expr, kb: Expr) -> Stmt:
            k = kb * lanes
            return self._square(lanes, lambda i, x: element(v, self.mem.const(i), k + x), lambda i: (q.target, q.at(v, k + i)))

        def rest(v: Expr, k: Expr) -> Stmt:
            return self.mem.loop(lanes, lambda i: tirx.BufferStore(q.target, element(v, i, k), [q.at(v, k) + i]), "l")

        whole = q.k_extent // lanes if isinstance(q.k_extent, int) else tirx.floordiv(q.k_extent, lanes)
        left = q.k_extent - whole * lanes

        def vector(v: Expr) -> Stmt:
            tail = None
            if not (isinstance(left, int) and left == 0):
                tail = self.mem.loop(left, lambda k: rest(v, k + whole * lanes), "k")
            return seq(self.mem.loop(whole, lambda kb: square(v, kb), "kb"), tail)

        return self.mem.loop(q.vectors, vector, "v")

    def _rows(self, q: Block) -> Stmt:
        """Rows of the image along N."""
        mem, lanes = self.mem, self.p.lanes
        per, size = self.p.segment_vectors * lanes, self.p.size.n
        lines = Lines(self.c.b, self.c.n, self.c.acc, lanes, mem, q.slack)
        first = mem.simplify(q.v0 * lanes)
        last = first + q.vectors * lanes

        def segment(k_env: dict[Any, Expr], at: Expr, seg: Expr) -> Stmt:
            e0, s0 = mem.hold("e0", tirx.max(first - seg * per, mem.const(0)))
            e1, s1 = mem.hold("e1", tirx.min(last - seg * per, mem.const(size)))
            to, s2 = mem.hold("to", at + seg * per - first)
            env, binds = self.named(k_env | self.env(batch=q.batch, segments=seg))
            stop = tirx.min(last - seg * per, mem.const(per))
            pad = mem.loop(stop - size, lambda x: tirx.BufferStore(q.target, tirx.const(0, self.c.acc), [to + size + x]), "z")
            return seq(s0, s1, s2, binds, lines.copy(q.target, to, env, e0, e1), pad if self.p.tail else None)

        def one(k: Expr) -> Stmt:
            at, s0 = mem.hold("at", q.at(mem.const(0), k))
            k_env, binds = self.named(self.env(k=q.k0 + k))
            if self.p.size.segments == 1:
                return seq(s0, binds, segment(k_env, at, mem.const(0)))
            s_first = tirx.floordiv(q.v0, self.p.segment_vectors)
            s_last = tirx.floordiv(q.v0 + q.vectors - 1, self.p.segment_vectors)
            return seq(s0, binds, mem.loop(s_last - s_first + 1, lambda s: segment(k_env, at, s_first + s), "seg"))

        return mem.loop(q.k_extent, one, "k")
