"""Squares turned in registers: arrays that lie across the direction in which a kernel writes.

``turned`` replaces the reads of such arrays by reads of a small square; ``Turned.fill`` reads the square from memory by
whole vectors and exchanges its rows with its columns by shuffles of two registers, in log2 steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilegrad._base.tvm import ir, tirx, tvm, tvm_ffi
from tilegrad.schedules.body import Body
from tilegrad.schedules.loops import Dim, Emit
from tilegrad.schedules.stages import Expr, substitute


@dataclass(frozen=True)
class Turned:
    """A body whose crosswise reads are served from squares, each ``(read, stride along the lanes, its square)``.

    ``origin`` are the places along both dimensions at which the squares start.
    """

    body: Body
    squares: tuple[tuple[Any, int, Any], ...]
    dims: tuple[Dim, Dim]
    origin: tuple[Dim, Dim]
    side: int

    def fill(self, emit: Emit) -> list[tirx.Stmt]:
        """Statements that read and turn the squares at ``emit``'s origin."""
        out: list[tirx.Stmt] = []
        start = {d.var: o.var for d, o in zip(self.dims, self.origin, strict=True)}
        for load, stride, square in self.squares:
            first = emit.at(substitute(load.indices[0], start))
            one = tirx.const(1, first.ty.dtype)
            rows = [_named(out, load.source.vload([tirx.Ramp(first + k * stride, one, self.side)])) for k in range(self.side)]
            for k, row in enumerate(_turn(out, rows)):
                out.append(square.vstore([k * self.side], row))
        return out


def turned(body: Body, across: Dim, lane: Dim, side: int) -> Turned | None:
    """``body`` with its reads that are contiguous along ``across`` from squares; None when there is none, or a branch."""
    if body.scalar or body.cuts or side < 2 or side & (side - 1):
        return None
    analyzer = tvm.sym.Analyzer()
    a0, l0 = (Dim(tirx.Var(n, d.var.ty.dtype), 1, d.zeros) for n, d in (("a0", across), ("l0", lane)))
    squares: list[tuple[Any, int, Any]] = []

    def stride(index: Expr, dim: Dim) -> int:
        step = analyzer.simplify(substitute(index, {dim.var: dim.var + tirx.const(1, dim.var.ty.dtype)}) - index)
        return int(step.value) if isinstance(step, tirx.IntImm) else 0

    def serve(load: Any) -> Any:
        by = stride(load.indices[0], lane)
        if str(load.source.dtype) == "bool" or stride(load.indices[0], across) != 1 or abs(by) <= 8:
            return load
        known = next((s for r, _, s in squares if tvm_ffi.structural_equal(r, load, map_free_vars=False)), None)
        if known is None:
            known = tirx.decl_buffer((side * side,), load.source.dtype, name="square")
            squares.append((load, by, known))
        return known[(across.var - a0.var) * side + (lane.var - l0.var)]

    change = lambda e: tvm_ffi.structural_map(e, (ir.TensorLoad, serve))  # noqa: E731
    new = replace(body, binds=[(v, change(e)) for v, e in body.binds], results=[change(e) for e in body.results])
    return Turned(new, tuple(squares), (across, lane), (a0, l0), side) if squares else None


def _turn(out: list[tirx.Stmt], rows: Sequence[Expr]) -> Sequence[Expr]:
    """The columns of ``rows``: blocks of 1, 2, 4, ... elements change places between rows as far apart."""
    side, step = len(rows), 1
    while step < side:
        low = [k if not k & step else side + k - step for k in range(side)]
        high = [k + step if not k & step else side + k for k in range(side)]
        new = list(rows)
        for k in range(side):
            if not k & step:
                new[k] = _named(out, tirx.Shuffle([rows[k], rows[k + step]], low))
                new[k + step] = _named(out, tirx.Shuffle([rows[k], rows[k + step]], high))
        rows, step = new, 2 * step
    return rows


def _named(out: list[tirx.Stmt], value: Expr) -> Expr:
    """``value`` stored whole in a local array, and read back."""
    dtype, _, width = str(value.ty.dtype).partition("x")
    local = tirx.decl_buffer((int(width),), dtype, name="row")
    out += [tirx.AllocBuffer(local), local.vstore([0], value)]
    return local.vload([0], str(value.ty.dtype))
