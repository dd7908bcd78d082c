"""A square of vectors turned in registers: its columns, by shuffles of two vectors."""

from __future__ import annotations

from collections.abc import Sequence

from tilegrad._base.tvm import tirx
from tilegrad.schedules.contraction.tir import Stmt, bind
from tilegrad.schedules.stages import Expr


def transposed(rows: Sequence[Expr]) -> tuple[list[Stmt], list[Expr]]:
    """Statements and the columns of a square of vectors, by log2(lanes) rounds of two-vector shuffles."""
    lanes = len(rows)
    out: list[Stmt] = []

    def shuffle(a: Expr, b: Expr, picks: Sequence[int]) -> Expr:
        value = tirx.Shuffle([a, b], [tirx.const(p, "int32") for p in picks])
        var, stmt = bind("t", value)
        out.append(stmt)
        return var

    current = []
    for r in rows:
        var, stmt = bind("t", r)
        out.append(stmt)
        current.append(var)
    if lanes == 8:  # the sequence that AVX has single instructions for: unpack, unpack pairs, swap halves
        lo, hi = [0, 8, 1, 9, 4, 12, 5, 13], [2, 10, 3, 11, 6, 14, 7, 15]
        pair = [shuffle(current[i], current[i + 1], p) for i in range(0, 8, 2) for p in (lo, hi)]
        even, odd = [0, 1, 8, 9, 4, 5, 12, 13], [2, 3, 10, 11, 6, 7, 14, 15]
        quad = [shuffle(pair[i + j], pair[i + j + 2], p) for i in (0, 4) for j in (0, 1) for p in (even, odd)]
        low, high = [0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]
        return out, [shuffle(quad[i], quad[i + 4], p) for p in (low, high) for i in range(4)]
    step = 1
    while step < lanes:
        nxt = list(current)
        for i in range(lanes):
            if not i & step:
                a, b = current[i], current[i | step]
                nxt[i] = shuffle(a, b, [x if not x & step else lanes + (x ^ step) for x in range(lanes)])
                nxt[i | step] = shuffle(a, b, [x | step if not x & step else lanes + x for x in range(lanes)])
        current, step = nxt, step * 2
    return out, current
