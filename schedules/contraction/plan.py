"""The numbers of a contraction under a config: tiles, panels, blocks, and who computes what."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tilegrad._base.errors import ScheduleError
from tilegrad._base.target import Target
from tilegrad.schedules.template import Config


def ceildiv(a: int, b: int) -> int:
    """The quotient rounded up."""
    return -(-a // b)


def element_bytes(dtype: str) -> int:
    """Bytes of one element as it lies in memory."""
    digits = "".join(c for c in dtype if c.isdigit())
    return max(1, int(digits or "8") // 8)


@dataclass(frozen=True)
class Size:
    """The problem: ``n`` is the length of one segment, the N side is ``segments`` of them; ``acc`` is summed in."""

    batch: int
    m: int
    segments: int
    n: int
    k: int
    acc: str


@dataclass(frozen=True)
class Plan:
    """Tiles of MR rows by ``vectors`` vectors; K in blocks; N in panels of ``vectors`` vectors.

    The N side counts vectors: every segment is rounded up to whole vectors, so that a vector never crosses one.
    M is cut into tiles that differ by at most one row: no tail tile runs far below the micro-kernel's speed.
    """

    size: Size
    config: Config
    target: Target

    @cached_property
    def lanes(self) -> int:
        """Accumulator elements in a vector register."""
        return max(1, self.target.vector_bytes // element_bytes(self.size.acc))

    @cached_property
    def mr(self) -> int:
        """Rows of a full tile."""
        return min(int(self.config["mr"]), self.size.m)

    @cached_property
    def vectors(self) -> int:
        """Vectors across a tile."""
        return max(1, min(int(self.config["nr"]) // self.lanes, self.total_vectors))

    @property
    def nr(self) -> int:
        """Columns of a tile."""
        return self.vectors * self.lanes

    @cached_property
    def segment_vectors(self) -> int:
        """Vectors that cover one segment."""
        return ceildiv(self.size.n, self.lanes)

    @property
    def tail(self) -> int:
        """Elements in the last, partial vector of a segment; 0 when there is none."""
        return self.size.n % self.lanes

    @cached_property
    def total_vectors(self) -> int:
        """Vectors of all segments."""
        return self.size.segments * self.segment_vectors

    @cached_property
    def panels(self) -> int:
        """Column tiles."""
        return ceildiv(self.total_vectors, self.vectors)

    @cached_property
    def tiles(self) -> int:
        """Row tiles."""
        return ceildiv(self.size.m, self.mr)

    @property
    def rows(self) -> tuple[int, int]:
        """(rows of a small tile, how many tiles have one row more; those come first)."""
        return self.size.m // self.tiles, self.size.m % self.tiles

    @property
    def slots(self) -> int:
        """Rows that a tile has room for."""
        return self.rows[0] + (1 if self.rows[1] else 0)

    @cached_property
    def k_blocks(self) -> int:
        """Blocks of K."""
        return ceildiv(self.size.k, min(int(self.config["kc"]), self.size.k))

    @cached_property
    def kc(self) -> int:
        """Length of a block; the last may be shorter."""
        return ceildiv(self.size.k, self.k_blocks)

    @cached_property
    def splits(self) -> tuple[int, int, int]:
        """Parts of the row tiles, of the panels and of the K blocks that are computed apart."""
        tm, tn, tk = (int(v) for v in self.config["split"])
        return min(tm, self.tiles), min(tn, self.panels), min(tk, self.k_blocks)

    @property
    def units(self) -> int:
        """Independent pieces of work, dealt to the threads in equal runs."""
        tm, tn, tk = self.splits
        return self.size.batch * tm * tn * tk

    @property
    def threads(self) -> int:
        """Threads that get a unit."""
        return max(1, min(self.target.threads, self.units))

    @property
    def unit_tiles(self) -> int:
        """Most row tiles of a unit."""
        return ceildiv(self.tiles, self.splits[0])

    @property
    def unit_panels(self) -> int:
        """Most panels of a unit."""
        return ceildiv(self.panels, self.splits[1])

    @property
    def unit_k_blocks(self) -> int:
        """Most K blocks of a unit."""
        return ceildiv(self.k_blocks, self.splits[2])

    @cached_property
    def nc(self) -> int:
        """Panels of an N block."""
        return max(1, min(int(self.config["nc"]) // self.nr, self.unit_panels))

    @cached_property
    def mc(self) -> int:
        """Row tiles of an M block."""
        return max(1, min(int(self.config["mc"]) // self.mr, self.unit_tiles))

    @property
    def dot(self) -> bool:
        """Whether vectors lie along K (both operands contiguous there) instead of along N."""
        return self.config["form"] == "dot"

    def check(self, layout: str) -> None:
        """Raise ScheduleError when the accumulators do not fit the registers or an operand cannot be read as configured."""
        if self.dot:
            fits = (
                layout == "NT"
                and self.vectors == 1
                and 1 <= self.mr <= 4
                and not (self.config["pack_a"] or self.config["pack_b"])
            )
            if not fits:
                raise ScheduleError(
                    "contraction config", f"form dot of {layout}: {self.config}", "NT unpacked, mr 1 to 4, nr one vector"
                )
            return
        need = registers(self.mr, self.vectors)
        if need > self.target.vector_registers or self.mr < 1:
            have = f"at most {self.target.vector_registers}"
            raise ScheduleError("contraction config", f"mr {self.mr}, nr {self.nr}: {need} vector registers", have)
        for name, direct in (("a", layout[0] in "NTS"), ("b", layout[1] == "N" and not self.tail)):
            if not self.config[f"pack_{name}"] and not direct:
                raise ScheduleError("contraction config", f"pack_{name} false", "true for an operand that is not a plain matrix")


def registers(mr: int, vectors: int) -> int:
    """Vector registers of a micro-kernel: accumulators, one row of B, the broadcast of A, and one spare (LLVM needs it)."""
    return mr * vectors + vectors + 1 + (1 if mr > 1 else 0)


def rows_before(plan: Plan, tile: Any) -> Any:
    """First row of a tile (an index expression)."""
    from tilegrad._base.tvm import tirx

    small, large = plan.rows
    return tile * small + tirx.min(tile, tirx.const(large, tile.ty.dtype)) if large else tile * small
