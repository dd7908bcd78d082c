"""Names for the repeated parts of an epilogue's arithmetic, in a form that TVM's simplifier does not look through."""

from __future__ import annotations

from typing import Any

from tilegrad._base.tvm import ir, tirx, tvm_ffi
from tilegrad.schedules import math
from tilegrad.schedules.contraction.tir import Memory, Stmt
from tilegrad.schedules.stages import Expr


class Parts:
    """Names for repeated parts of an element's arithmetic: local arrays of a lane each, which LLVM keeps in registers.

    (A ``Let`` that TVM's simplifier meets twice is refused, and chains of ``Bind`` take it exponential time.)
    """

    def __init__(self, memory: Memory, lane: Expr, lanes: int, allocations: list[Stmt]) -> None:
        self._memory, self._lane, self._lanes, self._allocations = memory, lane, lanes, allocations

    def name(self, value: Expr) -> tuple[Expr, Stmt]:
        """The expression that reads ``value`` back, and the statement that stores it."""
        local = self._memory.local("t", value.ty.dtype, self._lanes)
        self._allocations.append(tirx.AllocBuffer(local))
        return tirx.BufferLoad(local, [self._lane]), tirx.BufferStore(local, value, [self._lane])

    def value(self, value: Expr) -> tuple[Expr, Stmt | None]:
        """As ``name``; TVM lowers no vector of booleans and no bfloat16: for those the float32 before rounding."""
        if str(value.ty.dtype) not in ("bool", "bfloat16"):
            return self.name(value)
        if not isinstance(value, tirx.Cast):
            return value, None
        read, store = self.name(value.value)
        return tirx.Cast("bfloat16", read), store


def with_named_parts(value: Expr, parts: Parts, stores: list[Stmt]) -> Expr:
    """``value`` with our own mathematics, its repeated parts stored ahead of it by ``stores``.

    What only some elements may evaluate stays inside its condition.
    """

    def name(part_: Expr) -> Expr:
        if isinstance(part_, ir.Var | tirx.IntImm | tirx.FloatImm) or str(part_.ty.dtype) == "bool":
            return part_
        read, store = parts.name(part_)
        stores.append(store)
        return read

    def call(c: Any, mutator: Any) -> Expr:
        lazy = str(getattr(c.op, "name", "")).endswith("if_then_else")
        return c if lazy else math.expand(mutator.default_mutate(c), name)

    return tvm_ffi.structural_mutate(value, [(ir.Call, call)])
