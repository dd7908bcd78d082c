"""Products of 8- and 16-bit integers on x86: two neighbours of K in each 32-bit lane, one multiply-add of pairs (pmaddwd).

The pairs are made by packing; the rest of the nest sees a contraction of half the depth whose operands are int32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tilegrad._base.target import Target
from tilegrad._base.tvm import tirx
from tilegrad.schedules.contraction.canonical import Contraction, Operand
from tilegrad.schedules.stages import Expr, Iter, loads, substitute

NARROW = ("int8", "uint8", "int16")
_INSTRUCTION = {16: "llvm.x86.sse2.pmadd.wd", 32: "llvm.x86.avx2.pmadd.wd", 64: "llvm.x86.avx512.pmaddw.d.512"}


def wants_pairs(dtypes: tuple[str, str], acc: str, target: Target) -> bool:
    """Whether the target multiplies pairs of what such operands hold."""
    return acc == "int32" and all(d in NARROW for d in dtypes) and target.arch == "x86_64"


def paired(c: Contraction, config: Mapping[str, Any], target: Target) -> Contraction:
    """``c`` with K in pairs where both operands are packed; otherwise ``c``."""
    k = [x for x in c.k if x.extent > 1]
    found = [{str(r.source.dtype) for r in loads(op.expr)} for op in (c.a, c.b)]
    plain = all(len(d) == 1 for d in found) and not (c.a.guards or c.b.guards) and len(k) == 1
    if not (plain and config["pack_a"] and config["pack_b"] and config["form"] == "outer"):
        return c
    if not wants_pairs((min(found[0]), min(found[1])), c.acc, target):
        return c
    half = Iter(tirx.Var(f"{k[0].var.name}_pair", k[0].var.ty), -(-k[0].extent // 2))

    def pair(op: Operand) -> Operand:
        low = substitute(op.expr, {k[0].var: half.var * 2})
        high = substitute(op.expr, {k[0].var: half.var * 2 + 1})
        if k[0].extent % 2:
            high = tirx.if_then_else(half.var * 2 + 1 < k[0].extent, high, tirx.const(0, "int32"))
        mask, shift = (tirx.const(x, "int32") for x in (0xFFFF, 16))
        return replace(op, expr=tirx.bitwise_or(tirx.bitwise_and(low, mask), tirx.shift_left(high, shift)))

    ks = tuple(half if x is k[0] else x for x in c.k)
    return replace(c, a=pair(c.a), b=pair(c.b), k=ks, pairs=True)


def product(x: Expr, y: Expr, lanes: int) -> Expr:
    """The sums of the products of the pairs in the lanes of two int32 vectors."""
    a, b = (tirx.reinterpret(f"int16x{2 * lanes}", v) for v in (x, y))
    return tirx.call_llvm_pure_intrin(f"int32x{lanes}", _INSTRUCTION[4 * lanes], a, b)
