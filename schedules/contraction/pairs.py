"""Products of 8- and 16-bit integers on x86: two neighbours of K in each 32-bit lane, one multiply-add of pairs (pmaddwd).

The pairs are made by packing; the rest of the nest sees a contraction of half the depth whose operands are int32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tilegrad._base.target import Target
from tilegrad._base.tvm import tirx
from tilegrad.schedules.contraction.canonical import Contraction, Operand
from tilegrad.schedules.contraction.plan import ceildiv
from tilegrad.schedules.stages import Expr, Iter, id_of, substitute, variables

NARROW = ("int8", "uint8", "int16")
_INSTRUCTION = {16: "llvm.x86.sse2.pmadd.wd", 32: "llvm.x86.avx2.pmadd.wd", 64: "llvm.x86.avx512.pmaddw.d.512"}


def narrow(dtypes: Sequence[str], acc: str) -> bool:
    """Whether two such operands fit 16 bits each and are summed in 32."""
    return acc == "int32" and all(d in NARROW for d in dtypes)


def has_pairs(target: Target) -> bool:
    """Whether the target multiplies pairs."""
    return target.arch == "x86_64"


def pair_axis(c: Contraction) -> Iter | None:
    """The K axis of narrow operands whose pairs leave the fewest terms, the outer of two; None where there is none.

    Both terms of a pair meet the same conditions: of a convolution these are on taps and position, its pairs are channels.
    """
    if not narrow([_dtype(op) for op in (c.a, c.b)], c.acc):
        return None
    tied = {id_of(v) for op in (c.a, c.b) for g in op.guards for v in variables(g)}
    free = [x for x in c.k if x.extent > 1 and id_of(x.var) not in tied]
    return min(free, key=lambda x: ceildiv(x.extent, 2) / x.extent, default=None)


def _dtype(op: Operand) -> str:
    """The type of an operand before it is cast to the accumulator's."""
    return str(op.expr.value.ty.dtype) if isinstance(op.expr, tirx.Cast) else str(op.expr.ty.dtype)


def paired(c: Contraction, config: Mapping[str, Any], target: Target) -> Contraction:
    """``c`` with one of its K axes in pairs where both operands are packed; otherwise ``c``."""
    axis = pair_axis(c) if has_pairs(target) else None
    if axis is None or not (config["pack_a"] and config["pack_b"] and config["form"] == "outer"):
        return c
    half = Iter(tirx.Var(f"{axis.var.name}_pair", axis.var.ty), ceildiv(axis.extent, 2))

    def pair(op: Operand) -> Operand:
        low = substitute(op.expr, {axis.var: half.var * 2})
        high = substitute(op.expr, {axis.var: half.var * 2 + 1})
        if axis.extent % 2:
            high = tirx.if_then_else(half.var * 2 + 1 < axis.extent, high, tirx.const(0, "int32"))
        mask, shift = (tirx.const(x, "int32") for x in (0xFFFF, 16))
        return replace(op, expr=tirx.bitwise_or(tirx.bitwise_and(low, mask), tirx.shift_left(high, shift)))

    ks = tuple(half if x is axis else x for x in c.k)
    return replace(c, a=pair(c.a), b=pair(c.b), k=ks, pairs=True)


def product(x: Expr, y: Expr, lanes: int) -> Expr:
    """The sums of the products of the pairs in the lanes of two int32 vectors."""
    a, b = (tirx.reinterpret(f"int16x{2 * lanes}", v) for v in (x, y))
    return tirx.call_llvm_pure_intrin(f"int32x{lanes}", _INSTRUCTION[4 * lanes], a, b)
