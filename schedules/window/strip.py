"""The strip of the image that the tiles of a band read: rows of columns by residue of the stride, zeros outside the image."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tilegrad._base.tvm import ir, tirx, tvm_ffi
from tilegrad.schedules.contraction.tir import Memory, Stmt, both, ramp, seq, when
from tilegrad.schedules.stages import Expr
from tilegrad.schedules.window.form import Window
from tilegrad.schedules.window.plan import POINT, Plan


def pieces(start: int, stop: int, lanes: int) -> Iterator[tuple[int, int, int]]:
    """(first, vectors, width) that cover ``start`` to ``stop``: whole vectors, then one of each smaller power of two needed."""
    whole = (stop - start) // lanes
    if whole > 0:
        yield start, whole, lanes
    start += max(0, whole) * lanes
    width = lanes
    while start < stop:
        width //= 2
        if width <= stop - start:
            yield start, 1, width
            start += width


class Strip:
    """Emits the copies for one plan."""

    def __init__(self, window: Window, plan: Plan, memory: Memory) -> None:
        self.w, self.p, self.mem = window, plan, memory
        self.target = memory.region("strip", window.c.acc, plan.threads * plan.strip)
        coordinates = [tirx.Var(f"x{s.dim}", memory.dtype) for s in window.sides]
        by_dim = {s.dim: v for s, v in zip(window.sides, coordinates, strict=True)}
        moved = [by_dim.get(d, i) for d, i in enumerate(window.read.indices)]
        self.coordinates = coordinates
        same = window.read.source
        self.expr = tvm_ffi.structural_map(
            window.c.b.expr, (ir.TensorLoad, lambda e: tirx.BufferLoad(same, moved) if e.source.same_as(same) else e)
        )

    def fill(self, base: Expr, env: dict[Any, Expr], planes: list[Expr], row0: Expr, rows: int | Expr) -> Stmt:
        """Copy what ``rows`` rows of positions from ``row0`` read, for the positions ``planes`` of the other sides."""
        p, mem = self.p, self.mem
        side = p.shape.rows
        count = p.strip_rows(rows)
        out: list[Any] = []
        for n, offsets in enumerate(p.plane_offsets):
            at = [x * s.stride + f for x, s, f in zip(planes, p.shape.planes, offsets, strict=True)]
            inside = [_within(i, s.image) for i, s in zip(at, p.shape.planes, strict=True)]
            for q in side.residues:

                def one(i: Expr, q: int = q, n: int = n, at: list[Expr] = at, inside: list[Expr] = inside) -> Stmt:
                    r = i * side.stride + q
                    h, s0 = mem.hold("h", row0 * side.stride + r + side.low)
                    to, s1 = mem.hold("to", base + n * p.plane + r * p.pitch)
                    where = env | dict(zip(self.coordinates, [*at, *([h] if side is not POINT else [])], strict=False))
                    tests = [*inside, *([_within(h, side.image)] if side is not POINT else [])]
                    copy = self._row(to, where)
                    return seq(s0, s1, when(both(tests), copy, self._zeros(to, 0, p.pitch)) if tests else copy)

                extent = (
                    -(-(count - q) // side.stride)
                    if isinstance(count, int)
                    else tirx.floordiv(count + (side.stride - 1 - q), side.stride)
                )
                out.append(mem.loop(extent, one, "i"))
        return seq(out)

    def _zeros(self, to: Expr, start: int, stop: int) -> Stmt:
        zero = tirx.const(0, self.w.c.acc)

        def put(at: Expr, width: int) -> Stmt:
            value = tirx.Broadcast(zero, width) if width > 1 else zero
            return tirx.BufferStore(self.target, value, [ramp(at, width) if width > 1 else at])

        return self._by_pieces(start, stop, lambda i, width: put(to + i, width))

    def _by_pieces(self, start: int, stop: int, body: Callable[[Expr, int], Stmt]) -> Stmt:
        mem = self.mem
        return seq(
            [
                mem.loop(n, lambda v, a=a, w=w: body(v * w + a, w), "v")  # type: ignore[misc]
                for a, n, w in pieces(start, stop, self.p.lanes)
            ]
        )

    def _row(self, to: Expr, where: dict[Any, Expr]) -> Stmt:
        """One row of the image; which of its elements exist is known."""
        p, mem, side = self.p, self.mem, self.p.shape.columns
        s = side.stride

        def value(column: Expr) -> Expr:
            return mem.flatten(self.expr, where | {self.coordinates[-1]: column})

        def copy(slot: int, residue: int) -> Callable[[Expr, int], Stmt]:
            def body(i: Expr, width: int) -> Stmt:
                def lane(x: Expr) -> Stmt:
                    return tirx.BufferStore(self.target, value((i + x) * s + (residue + side.low)), [to + slot * p.run + i + x])

                return mem.vector(width, lane) if width > 1 else lane(mem.const(0))

            return body

        # between ``begin`` and ``end`` the columns of every residue exist: they are read in order and parted in registers
        begin = max(0, -(side.low // s))
        end = begin + max(0, min(p.run, (side.image - side.low) // s) - begin) // 4 * 4 if s > 1 else begin
        out: list[Any] = [self._by_pieces(begin, end, lambda i, width: self._parted(to, i, width, value))]
        for slot, q in enumerate(side.residues):
            lo = max(0, -((q + side.low) // s))
            hi = max(lo, min(p.run, (side.image - 1 - q - side.low) // s + 1))
            edges = [(lo, hi)] if begin == end else [(lo, min(begin, hi)), (end, hi)]
            out += [self._by_pieces(x, y, copy(slot, q)) for x, y in edges]
            out += [self._zeros(to + slot * p.run, 0, lo), self._zeros(to + slot * p.run, hi, p.run)]
        return seq(out)

    def _parted(self, to: Expr, i: Expr, width: int, value: Callable[[Expr], Expr]) -> Stmt:
        p, side = self.p, self.p.shape.columns
        s, zero = side.stride, self.mem.const(0)
        read = [self.mem.local("part", self.w.c.acc, width) for _ in range(s)]
        out: list[Any] = [tirx.AllocBuffer(x) for x in read]
        for n, local in enumerate(read):
            start = i * s + (n * width + side.low)
            out.append(self.mem.vector(width, lambda x, a=start, b=local: tirx.BufferStore(b, value(a + x), [x])))  # type: ignore[misc]
        vectors = [tirx.BufferLoad(x, [ramp(zero, width)]) for x in read]
        for slot, q in enumerate(side.residues):
            picked = tirx.Shuffle(vectors, [tirx.const(x * s + q, "int32") for x in range(width)])
            out.append(tirx.BufferStore(self.target, picked, [ramp(to + slot * p.run + i, width)]))
        return seq(out)


def _within(index: Expr, extent: int) -> Expr:
    return tirx.all(index >= 0, index < extent)
