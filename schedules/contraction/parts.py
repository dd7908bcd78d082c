"""The epilogue of one element, with names for repeated parts that TVM's simplifier does not look through."""

from __future__ import annotations

from typing import Any

from tilegrad._base.tvm import ir, tirx, tvm_ffi
from tilegrad.schedules import math
from tilegrad.schedules.contraction.canonical import Contraction
from tilegrad.schedules.contraction.tir import Memory, Stmt, seq
from tilegrad.schedules.stages import Expr, id_of, inline


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


def element(c: Contraction, mem: Memory, env: dict[Any, Expr], total: Expr, parts: Parts) -> Stmt:
    """All results of the element at ``env``, whose sum is ``total``: each before the first store (they may be in place)."""
    values: dict[int, Expr] = {}
    binds: list[Stmt | None] = []
    stores: list[Stmt] = []
    for link in c.chain:
        if link.stage.reduce:
            value = total
        else:
            where = {x.var: e for x, e in zip(link.stage.spatial, link.index, strict=True)}
            body = link.stage.at([where[x.var] for x in link.stage.spatial])
            body = inline(body, c.inlined)
            body = tvm_ffi.structural_map(body, (ir.TensorLoad, lambda e: values.get(id_of(e.source), e)))
            value = with_named_parts(mem.flatten(body, env), parts, binds)
        var, stmt = parts.value(value)
        binds.append(stmt)
        values[id_of(link.stage.buffer)] = var
        if link.is_output:
            place = mem.place(link.stage.buffer, link.index, env)
            stores.append(tirx.BufferStore(mem.view(link.stage.buffer), var, [place]))
    return seq(binds, stores)
