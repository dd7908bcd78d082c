"""Sides: reductions over a group's rows that are taken along while its rows pass through the cache.

The gradients of a norm's scale and shift, or the mean of a loss, read what the passes over each row read. Every block of
rows adds its values, column by column, to its own part of an array; an ordinary reduction over the parts ends them. The
blocks depend on the number of rows alone, so that the bits do not depend on the number of threads.
"""

from __future__ import annotations

import math as pymath
from typing import Any

from tilegrad._base.tvm import tirx
from tilegrad.schedules.body import Views
from tilegrad.schedules.loops import lane_loop, loop, spans
from tilegrad.schedules.reduction.passes import Store, start_value
from tilegrad.schedules.reduction.plan import Group, Pass, Side, Step
from tilegrad.schedules.stages import Expr, Iter, Stage, id_of

BLOCK_ROWS = 64
"""Rows added up one after the other."""
MIN_BLOCKS = 32
"""Blocks for threads to share out, as long as there are rows for them."""

_COMBINERS = {"sum": tirx.Add, "prod": tirx.Mul, "max": tirx.Max, "min": tirx.Min}


def attach(group: Group) -> None:
    """Give each of the group's sides to a pass over its columns that comes after all it reads."""
    for side in group.sides:
        cols = [i for i in side.stage.spatial if i.extent > 1]
        current = _pass_for(group, side, cols)
        place = side.place | {c.var: own.var for c, own in zip(cols, current.cols, strict=True)}
        current.sides.append(Step(side.stage, place))


def _pass_for(group: Group, side: Side, cols: list[Iter]) -> Pass:
    reading = [n + 1 for n, p in enumerate(group.passes) if any(id_of(s.stage.buffer) in side.needs for s in p.steps)]
    for current in reversed(group.passes[max(reading, default=0) :]):
        same = [c.extent for c in current.cols] == [c.extent for c in cols]
        if same and all(s.kind or not s.stage.reduce for s in current.steps):
            return current
    group.passes.append(Pass(tuple(Iter(tirx.Var(f"side{k}", c.var.ty.dtype), c.extent) for k, c in enumerate(cols))))
    return group.passes[-1]


class Parts:
    """The sides' parts, one a block of ``rows`` rows."""

    def __init__(self, group: Group, views: Views, rows: int) -> None:
        self.blocks = min(rows, max(MIN_BLOCKS, -(-rows // BLOCK_ROWS)))
        self._steps = [s for p in group.passes for s in p.sides]
        self._buffers = [tirx.decl_buffer((self.blocks, *s.stage.shape), s.stage.dtype, name="parts") for s in self._steps]
        self._flat = [views.allocate(b) for b in self._buffers]

    def begin(self, block: Expr, store: Store, lanes: int) -> list[tirx.Stmt]:
        """Clear the parts of ``block`` and make them the store's."""
        out: list[tirx.Stmt] = []
        dtype = str(block.ty.dtype)
        for step, flat in zip(self._steps, self._flat, strict=True):
            size = pymath.prod(step.stage.shape)
            store.parts[id_of(step.stage.buffer)] = flat, block * size
            for start, count, width in spans(size, lanes, lanes):
                out.append(_clear(flat, start_value(step), block * size + start, count, width, dtype))
        return out

    def ends(self) -> list[Stage]:
        """The reductions of the parts to the sides' results."""
        out: list[Stage] = []
        for step, buffer in zip(self._steps, self._buffers, strict=True):
            stage, block = step.stage, Iter(tirx.Var("block", "int32"), self.blocks)
            place = [i.var for i in stage.spatial]
            total = _COMBINERS[step.kind or ""](stage.buffer[tuple(place)], buffer[(block.var, *place)])
            out.append(Stage(stage.name, stage.buffer, stage.spatial, (block,), stage.init, total))
        return out


def _clear(flat: Any, value: Expr, first: Expr, count: int, width: int, dtype: str) -> tirx.Stmt:
    var = tirx.Var("j", dtype)
    base = first if count == 1 else var * width + first
    work = lane_loop(width, dtype, lambda lane: [tirx.BufferStore(flat, value, [base + lane])])
    return work if count == 1 else loop(var, count, work)
