"""Reads of every second, third or fourth element, by vectors: whole loads, from which a shuffle picks.

Strided windows and slices read so. Left to itself the compiler loads such a vector element by element.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilegrad._base.tvm import ir, tirx, tvm, tvm_ffi
from tilegrad.schedules.body import Body
from tilegrad.schedules.loops import Dim, Emit
from tilegrad.schedules.stages import Expr, id_of, loads, substitute, variables

MAX_STRIDE = 4


@dataclass(frozen=True)
class Strips:
    """A body whose strided reads along ``dim`` come from local arrays, ``(read, stride, array)``, that start at ``origin``."""

    body: Body
    reads: tuple[tuple[Any, int, Any], ...]
    dim: Dim
    origin: Dim

    def fill(self, emit: Emit, first: Expr, width: int) -> list[tirx.Stmt]:
        """Statements that fill the arrays with ``width`` elements from ``first``, and fix the origin in ``emit``."""
        out = emit.enter(self.origin, first)
        for load, stride, strip in self.reads:
            start = emit.at(substitute(load.indices[0], {self.dim.var: self.origin.var}))
            if width == 1:
                out.append(tirx.BufferStore(strip, load.source[start], [0]))
                continue
            one = tirx.const(1, start.ty.dtype)
            # whole loads that end at the last element needed, and not behind it
            at = [*(k * width for k in range(stride - 1)), stride * (width - 1) + 1 - width]
            parts = [load.source.vload([tirx.Ramp(start + a, one, width)]) for a in at]
            out.append(strip.vstore([0], tirx.Shuffle(parts, [_place(stride * k, at, width) for k in range(width)])))
        return out


def strips(body: Body, lane: Dim, width: int) -> Strips | None:
    """``body`` with its strided reads from local arrays of ``width``; None when it has none."""
    if id_of(lane.var) in body.scalar:
        return None
    analyzer = tvm.sym.Analyzer()
    late = {v for v, of in body.depends().items() if id_of(lane.var) in of and v != id_of(lane.var)}  # known a lane at a time
    origin = Dim(tirx.Var("s0", lane.var.ty.dtype), 1, lane.zeros)
    found: list[tuple[Any, int, Any]] = []

    def serve(load: Any) -> Any:
        index = load.indices[0]
        step = analyzer.simplify(substitute(index, {lane.var: lane.var + tirx.const(1, lane.var.ty.dtype)}) - index)
        if str(load.source.dtype) == "bool" or late & {id_of(v) for v in variables(index)}:
            return load
        if not isinstance(step, tirx.IntImm) or not 2 <= int(step.value) <= MAX_STRIDE:
            return load
        known = next((s for r, _, s in found if tvm_ffi.structural_equal(r, load, map_free_vars=False)), None)
        if known is None:
            known = tirx.decl_buffer((width,), load.source.dtype, name="strip")
            found.append((load, int(step.value), known))
        return known[lane.var - origin.var]

    def change(e: Expr) -> Expr:
        return e if _branches(e) else tvm_ffi.structural_map(e, (ir.TensorLoad, serve))

    new = replace(body, binds=[(v, change(e)) for v, e in body.binds], results=[change(e) for e in body.results])
    return Strips(new, tuple(found), lane, origin) if found else None


def _place(element: int, starts: Sequence[int], width: int) -> int:
    """Where ``element`` lies among loads of ``width`` from ``starts``, one behind the other."""
    part = next(k for k, s in enumerate(starts) if s <= element < s + width)
    return part * width + element - starts[part]


def _branches(expr: Expr) -> bool:
    """Whether parts of ``expr`` are computed only under a condition, so that their reads may not be moved."""
    found: list[Any] = []
    tvm_ffi.structural_walk(expr, (ir.Call, lambda c: found.append(c) if "if_then_else" in str(c.op) else None))
    return bool(found) and bool(loads(expr))
