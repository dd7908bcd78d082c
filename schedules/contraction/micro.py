"""The micro-kernel: a tile of sums of products in vector registers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tilegrad._base.target import Target
from tilegrad._base.tvm import tirx
from tilegrad.schedules.contraction.tir import Memory, Stmt, bind, ramp, seq
from tilegrad.schedules.stages import Expr

Address = Callable[[int, Expr], tuple[Any, Expr]]
"""(row or vector, k) -> (flat buffer, element)."""

CLOBBER = "llvm.x86.avx.vzeroupper"


class Cells:
    """rows x vectors accumulators of ``lanes`` elements each: local arrays that LLVM keeps in registers."""

    def __init__(self, rows: int, vectors: int, lanes: int, dtype: str, zero: Expr) -> None:
        self.rows, self.vectors, self.lanes, self.dtype = rows, vectors, lanes, dtype
        self._at = ramp(zero, lanes)
        self._buffers = [[tirx.decl_buffer((lanes,), dtype, f"acc{r}_{v}") for v in range(vectors)] for r in range(rows)]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return ((r, v) for r in range(self.rows) for v in range(self.vectors))

    def get(self, r: int, v: int) -> Expr:
        """The vector in an accumulator."""
        return tirx.BufferLoad(self._buffers[r][v], [self._at])

    def put(self, r: int, v: int, value: Expr) -> Stmt:
        """Replace it."""
        return tirx.BufferStore(self._buffers[r][v], value, [self._at])

    def clear(self) -> Stmt:
        """All zero."""
        return seq([self.put(r, v, tirx.Broadcast(tirx.const(0, self.dtype), self.lanes)) for r, v in self])

    def load(self, buffer: Any, place: Callable[[int, int], Expr]) -> Stmt:
        """From memory: the vector that starts at element ``place(r, v)``."""
        return seq([self.put(r, v, tirx.BufferLoad(buffer, [ramp(place(r, v), self.lanes)])) for r, v in self])

    def save(self, buffer: Any, place: Callable[[int, int], Expr]) -> Stmt:
        """To memory."""
        return seq([tirx.BufferStore(buffer, self.get(r, v), [ramp(place(r, v), self.lanes)]) for r, v in self])

    def allocate(self) -> list[Stmt]:
        """Their declarations."""
        return [tirx.AllocBuffer(x) for row in self._buffers for x in row]


def free_registers(target: Target) -> Stmt | None:
    """Lets no value stay in a vector register from before to after it; None where registers are not scarce.

    LLVM hoists the zeros that packing writes out of all loops and may keep them in registers while the micro-kernel runs.
    With 16 registers two of them are two too many: accumulators then go through memory in the innermost loop, three times
    as slow. vzeroupper clobbers all 16, and costs a cycle; what has to survive it is made again or reloaded after it.
    """
    scarce = target.arch == "x86_64" and target.vector_bytes == 32
    return tirx.Evaluate(tirx.call_llvm_intrin("void", CLOBBER)) if scarce else None


def multiply(
    memory: Memory,
    target: Target,
    cells: Cells,
    k_extent: int | Expr,
    a: Address,
    b: Address,
    begin: Callable[[Cells], Stmt],
    end: Callable[[Cells], Stmt],
    product: Callable[[Expr, Expr], Expr] = lambda x, y: x * y,
) -> Stmt:
    """``cells[r, v] += sum over k of product(a(r, k), b(v, k))`` between ``begin``, which fills the cells, and ``end``.

    One load a vector of b, one broadcast a row of a, one multiply-add each.
    """

    def step(k: Expr) -> Stmt:
        out, columns = [], []
        for v in range(cells.vectors):
            buffer, index = b(v, k)
            var, stmt = bind(f"b{v}", tirx.BufferLoad(buffer, [ramp(index, cells.lanes)]))
            columns.append(var)
            out.append(stmt)
        for r in range(cells.rows):
            buffer, index = a(r, k)
            var, stmt = bind(f"a{r}", tirx.Broadcast(tirx.BufferLoad(buffer, [index]), cells.lanes))
            out.append(stmt)
            out += [cells.put(r, v, cells.get(r, v) + product(var, columns[v])) for v in range(cells.vectors)]
        return seq(out)

    return seq(free_registers(target), cells.allocate(), begin(cells), memory.loop(k_extent, step, "k"), end(cells))
