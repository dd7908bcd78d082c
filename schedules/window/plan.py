"""The numbers of a window sum under a config: tiles of rows and vectors, and the strip of the image that they read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

from tilegrad._base.errors import ScheduleError
from tilegrad._base.target import Target
from tilegrad.schedules.contraction.plan import ceildiv, element_bytes
from tilegrad.schedules.template import Config

MOST_UNROLLED = 640
"""Multiply-adds of one tile, all written out."""


@dataclass(frozen=True)
class Line:
    """One side of the window: positions, the image's extent, the result's, and per phase the offsets that it reads."""

    positions: int
    image: int
    limit: int
    stride: int
    offsets: tuple[tuple[int, ...], ...]

    @property
    def low(self) -> int:
        """Least offset."""
        return min(f for live in self.offsets for f in live)

    @property
    def span(self) -> int:
        """Largest offset minus the least."""
        return max(f for live in self.offsets for f in live) - self.low

    @property
    def residues(self) -> tuple[int, ...]:
        """Residues by the stride of the distance from the least offset: what is read at all."""
        return tuple(sorted({(f - self.low) % self.stride for live in self.offsets for f in live}))


POINT = Line(1, 1, 1, 1, ((0,),))
"""The rows of a one-dimensional image."""


@dataclass(frozen=True)
class Shape:
    """What a workload's fields say: ``outer`` results' other axes, ``inner`` those of the weights alone, ``summed`` channels
    (gather) or images (correlate)."""

    form: str
    outer: int
    inner: int
    summed: int
    lines: tuple[Line, ...]
    acc: str

    @property
    def planes(self) -> tuple[Line, ...]:
        """All sides but the last two."""
        return self.lines[:-2]

    @property
    def rows(self) -> Line:
        """The last side but one."""
        return self.lines[-2] if len(self.lines) > 1 else POINT

    @property
    def columns(self) -> Line:
        """The last side."""
        return self.lines[-1]

    @property
    def channels(self) -> int:
        """Channels of the image that a result sums over."""
        return self.summed if self.form == "gather" else 1

    @property
    def taps(self) -> int:
        """Taps of all phases."""
        return math.prod(sum(map(len, x.offsets)) for x in self.lines)


FEW_RESULTS = 4
"""Results of a position that are computed at once where they sum over channels."""
KNOBS = ("rows", "vectors", "band")


@dataclass(frozen=True)
class Plan:
    """Tiles of ``rows`` rows by ``vectors`` vectors of positions; ``band`` rows of tiles share one strip of the image."""

    shape: Shape
    config: Config
    target: Target

    @cached_property
    def lanes(self) -> int:
        """Elements of a vector register."""
        return max(1, self.target.vector_bytes // element_bytes(self.shape.acc))

    @property
    def vectors(self) -> int:
        """Vectors across a tile."""
        return min(int(self.config["vectors"]), self.row_vectors)

    @cached_property
    def row_vectors(self) -> int:
        """Vectors that cover a row of positions."""
        return ceildiv(self.shape.columns.positions, self.lanes)

    @cached_property
    def tiles(self) -> int:
        """Tiles below each other; as many for every thread where channels are summed in fewer images than threads."""
        n = self.shape.rows.positions
        share = ceildiv(self.target.threads, self.shape.outer) if self.shape.channels > 1 else 1
        return min(n, ceildiv(ceildiv(n, int(self.config["rows"])), share) * share)

    @property
    def rows(self) -> tuple[int, int]:
        """(rows of a small tile, how many tiles have one row more; those come first)."""
        n = self.shape.rows.positions
        return n // self.tiles, n % self.tiles

    @property
    def most_rows(self) -> int:
        """Rows of a large tile."""
        return self.rows[0] + (1 if self.rows[1] else 0)

    @property
    def band(self) -> int:
        """Tiles of a band."""
        return min(int(self.config["band"]), self.tiles)

    @property
    def bands(self) -> int:
        """Bands of an image."""
        return ceildiv(self.tiles, self.band)

    @property
    def results(self) -> int:
        """Results of a position that a tile computes: several where they sum over channels."""
        if self.shape.channels == 1:
            return 1
        return self.shape.inner if self.shape.inner <= FEW_RESULTS else 4 if self.target.vector_registers >= 32 else 2

    @property
    def pieces(self) -> int:
        """What is independent apart from ``inner``: other axes of the result and, in a gather, bands of its image."""
        if self.shape.form == "correlate":
            return self.shape.outer
        return self.shape.outer * math.prod(x.positions for x in self.shape.planes) * self.bands

    @property
    def parts(self) -> int:
        """Into how many parts ``inner`` is cut so that every thread has work."""
        if self.shape.form == "gather" and self.shape.channels == 1:
            return 1
        return min(self.shape.inner // self.results, ceildiv(self.target.threads, self.pieces))

    @property
    def units(self) -> int:
        """Independent pieces of work."""
        return self.pieces * self.parts

    @property
    def threads(self) -> int:
        """Threads that get a unit."""
        return max(1, min(self.target.threads, self.units))

    # --- the strip: [channel][plane][row][residue of the column][position] ----------------------------------

    @cached_property
    def plane_offsets(self) -> tuple[tuple[int, ...], ...]:
        """The planes of a strip, by their offsets."""
        sides = [sorted({f for live in x.offsets for f in live}) for x in self.shape.planes]
        return tuple(product(*sides))

    @cached_property
    def run(self) -> int:
        """Elements of one residue's columns in a row of the strip, in whole vectors."""
        columns = self.shape.columns
        return ceildiv(self.row_vectors * self.lanes + columns.span // columns.stride, self.lanes) * self.lanes

    @property
    def pitch(self) -> int:
        """Elements between rows of the strip."""
        return self.run * len(self.shape.columns.residues)

    def strip_rows(self, rows: Any) -> Any:
        """Rows of a strip for that many rows of positions."""
        return (rows - 1) * self.shape.rows.stride + (self.shape.rows.span + 1)

    @property
    def plane(self) -> int:
        """Elements of a plane of the strip."""
        return self.strip_rows(self.band * self.most_rows) * self.pitch

    @property
    def channel(self) -> int:
        """Elements of a channel of the strip."""
        return self.plane * len(self.plane_offsets)

    @property
    def strip(self) -> int:
        """Elements of a strip."""
        return self.channel * self.shape.channels

    def column_place(self, offset: int) -> int:
        """Where, within a row of the strip, the column of ``offset`` lies for position 0."""
        columns = self.shape.columns
        shift, residue = divmod(offset - columns.low, columns.stride)
        return columns.residues.index(residue) * self.run + shift

    @property
    def unrolled(self) -> int:
        """Multiply-adds of a tile."""
        return self.most_rows * self.vectors * self.shape.taps * self.results

    def check(self) -> None:
        """Raise ScheduleError for a config that is not legal."""
        bad = [k for k in KNOBS if not isinstance(self.config.get(k), int) or self.config[k] < 1]
        if bad:
            raise ScheduleError("window config", repr(self.config), f"the knobs {', '.join(KNOBS)}, numbers of at least 1")
        least = self.most_rows == self.vectors == 1
        if self.unrolled > MOST_UNROLLED and not least:
            raise ScheduleError(
                "window config", f"{self.unrolled} multiply-adds a tile: {self.config}", f"at most {MOST_UNROLLED}"
            )


def fields_of(shape: Shape) -> dict[str, Any]:
    """``shape`` as a workload's fields (without the element type)."""
    names = ("positions", "image", "limit", "stride", "offsets")
    return {
        **{k: getattr(shape, k) for k in ("form", "outer", "inner", "summed")},
        **{k: [_plain(getattr(x, k)) for x in shape.lines] for k in names},
    }


def shape_of(fields: Mapping[str, Any], acc: str) -> Shape:
    """The inverse of ``fields_of``."""
    lines = [
        Line(p, i, e, s, tuple(map(tuple, o)))
        for p, i, e, s, o in zip(*(fields[k] for k in ("positions", "image", "limit", "stride", "offsets")), strict=True)
    ]
    outer, inner, summed = (int(fields[k]) for k in ("outer", "inner", "summed"))
    return Shape(fields["form"], outer, inner, summed, tuple(lines), acc)


def _plain(value: int | Sequence[Sequence[int]]) -> Any:
    return value if isinstance(value, int) else [list(x) for x in value]
