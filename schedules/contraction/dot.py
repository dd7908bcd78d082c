"""The micro-kernel whose vectors lie along K: for few rows against a matrix that is contiguous there."""

from __future__ import annotations

from typing import Any

from tilegrad._base.tvm import tirx
from tilegrad.schedules.contraction.micro import Address
from tilegrad.schedules.contraction.plan import Plan
from tilegrad.schedules.contraction.tir import Memory, Stmt, bind, ramp, seq, when
from tilegrad.schedules.contraction.turn import transposed
from tilegrad.schedules.stages import Expr


def multiply_dot(
    mem: Memory,
    p: Plan,
    acc_t: str,
    rows: int,
    k_extent: int | Expr,
    a: Address,
    b: Address,
    partial: Any,
    at: Expr,
    first: Any,
) -> Stmt:
    """rows x lanes sums of products of vectors along K, for operands that are both contiguous there.

    As many columns at once as give one accumulator a lane; their lanes are added by turning the square of them.
    """
    lanes = p.lanes
    columns = 1 << ((lanes // rows).bit_length() - 1)
    zero = mem.const(0)
    blank = tirx.Broadcast(tirx.const(0, acc_t), lanes)
    whole = k_extent // lanes if isinstance(k_extent, int) else tirx.floordiv(k_extent, lanes)
    left = k_extent - whole * lanes

    def load(address: Address, i: int, k: Expr) -> Expr:
        buffer, index = address(i, k)
        return tirx.BufferLoad(buffer, [ramp(index, lanes)])

    def group(j0: int) -> Stmt:
        cells = [(r, j) for r in range(rows) for j in range(columns)]
        acc = [tirx.decl_buffer((lanes,), acc_t, f"dot{r}_{j}") for r, j in cells]

        def step(x: Expr) -> Stmt:
            k = x * lanes
            row_vars = [bind(f"a{r}", load(a, r, k)) for r in range(rows)]
            out: list[Any] = [s for _, s in row_vars]
            for j in range(columns):
                column, s = bind(f"b{j}", load(b, j0 + j, k))
                out.append(s)
                for r in range(rows):
                    cell = acc[r * columns + j]
                    total = tirx.BufferLoad(cell, [ramp(zero, lanes)]) + row_vars[r][0] * column
                    out.append(tirx.BufferStore(cell, total, [ramp(zero, lanes)]))
            return seq(out)

        clear = [tirx.BufferStore(x, blank, [ramp(zero, lanes)]) for x in acc]
        square = [tirx.BufferLoad(x, [ramp(zero, lanes)]) for x in acc] + [blank] * (lanes - len(acc))
        turned, parts = transposed(square)
        while len(parts) > 1:
            parts = [x + y for x, y in zip(parts[::2], parts[1::2], strict=True)]
        sums = tirx.decl_buffer((lanes,), acc_t, "sums")
        keep = [tirx.BufferStore(sums, parts[0], [ramp(zero, lanes)])]
        for n, (r, j) in enumerate(cells):
            place = at + (r * p.nr + j0 + j)
            value = tirx.BufferLoad(sums, [mem.const(n)])
            fresh = tirx.BufferStore(partial, value, [place])
            more = tirx.BufferStore(partial, tirx.BufferLoad(partial, [place]) + value, [place])
            keep.append(when(first, fresh, more))
        allocs = [tirx.AllocBuffer(x) for x in (*acc, sums)]
        return seq(allocs, clear, mem.loop(whole, step, "k"), turned, keep)

    def rest(k: Expr) -> Stmt:
        out = []
        for r in range(rows):
            for j in range(lanes):
                x, y = (tirx.BufferLoad(buf, [i]) for buf, i in (a(r, whole * lanes + k), b(j, whole * lanes + k)))
                place = at + (r * p.nr + j)
                out.append(tirx.BufferStore(partial, tirx.BufferLoad(partial, [place]) + x * y, [place]))
        return seq(out)

    tail = None if isinstance(left, int) and left == 0 else mem.loop(left, rest, "k")
    return seq([group(j0) for j0 in range(0, lanes, columns)], tail)
