"""Copying operands to where the micro-kernel reads them at unit stride: what both sides share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilegrad._base.tvm import tirx
from tilegrad.schedules.contraction.affine import decompose
from tilegrad.schedules.contraction.canonical import Contraction, Operand
from tilegrad.schedules.contraction.plan import Plan
from tilegrad.schedules.contraction.tir import Memory, Stmt, both, ramp, seq
from tilegrad.schedules.contraction.turn import transposed
from tilegrad.schedules.stages import Expr


class Packer:
    """Reads the operands of one plan."""

    def __init__(self, contraction: Contraction, plan: Plan, memory: Memory) -> None:
        self.p, self.c, self.mem = plan, contraction, memory

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

    def square(self, lanes: int, read: Callable[[int, Expr], Expr], place: Callable[[int], tuple[Any, Expr]]) -> Stmt:
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
