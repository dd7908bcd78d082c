"""B packed: blocks of vectors along N, copied, gathered or turned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tilegrad._base.tvm import tirx
from tilegrad.schedules.contraction.canonical import Contraction
from tilegrad.schedules.contraction.lines import Lines
from tilegrad.schedules.contraction.pack import Packer
from tilegrad.schedules.contraction.plan import Plan
from tilegrad.schedules.contraction.runs import moves_by, runs_along
from tilegrad.schedules.contraction.tir import Memory, Stmt, bind, seq, when
from tilegrad.schedules.stages import Expr

STRIP = 256
"""Elements along K that are gathered before they are turned."""


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


class BlockPacker(Packer):
    """Emits the copies of B's blocks."""

    def __init__(self, contraction: Contraction, plan: Plan, memory: Memory) -> None:
        super().__init__(contraction, plan, memory)
        self.style = style_of(contraction)

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
                return self.square(lanes, lambda i, lane: read(i, x + lane), lambda i: (q.target, q.at(v, k + x + i)))

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
            return self.square(lanes, lambda i, x: element(v, self.mem.const(i), k + x), lambda i: (q.target, q.at(v, k + i)))

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
