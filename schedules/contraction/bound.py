"""A contraction of which only the first rows of a batch are wanted; how many, a call says.

The kernel's first parameter is then ``int64[1]``, the number of rows, and its loops run over that part of M, of the segments
of N or of batch which belongs to those rows. No element of another row is read or written: operands read in place are read
at the last row again where a tile goes on beyond it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilegrad._base.tvm import tirx
from tilegrad.schedules.contraction.affine import size
from tilegrad.schedules.contraction.canonical import Contraction, canonicalise, product
from tilegrad.schedules.contraction.phases import phases
from tilegrad.schedules.stages import Expr, Iter

ATTRIBUTE = "tilegrad.rows"
GROUPS = ("batch", "m", "segments")


@dataclass(frozen=True)
class Bound:
    """``group``: the axes that count rows from the outside; ``each``: their indices that belong to one row."""

    group: str
    each: int
    param: Any
    rows: int
    """The most there are."""
    batched: tuple[Any, ...]
    """Parameters whose first elements are those of the first rows."""

    def count(self, dtype: str) -> Expr:
        """Indices of the group that are wanted."""
        given = tirx.BufferLoad(self.param, [tirx.const(0, "int32")])
        return tirx.Cast(dtype, given) * tirx.const(self.each, dtype)

    def ends(self, dtype: str) -> dict[Any, Expr]:
        """How many elements of the parameters there are."""
        given = tirx.Cast(dtype, tirx.BufferLoad(self.param, [tirx.const(0, "int32")]))
        return {p: given * tirx.const(size(p) // self.rows, dtype) for p in self.batched}


def bounded(func: tirx.PrimFunc, batch: int, core: Any, dim: int, unit: int, batched: Sequence[int]) -> tirx.PrimFunc | None:
    """The kernel with the number of rows as a further, first parameter; None for one that has to run row by row.

    core, dim, unit: element ``i`` of the sum of products, whose buffer is ``core``, is of row ``i[dim] // unit`` of ``batch``.
    batched: the parameters (by number) whose rows follow one another from the first element on.
    """
    c = canonicalise(func)
    if c is None or not c.chain[0].stage.buffer.same_as(core) or group_of(c, batch, dim, unit) is None:
        return None
    attribute = [batch, dim, unit, *batched]
    rows = tirx.decl_buffer((1,), "int64", "rows")
    return tirx.PrimFunc([rows, *func.params], func.body, attrs=func.attrs).with_attr(ATTRIBUTE, attribute)


def group_of(c: Contraction, batch: int, dim: int, unit: int) -> str | None:
    """The group of axes whose outermost is the one of the rows."""
    axis = c.chain[0].stage.spatial[dim]
    if c.guard or len(phases(c)) > 1 or axis.extent != batch * unit or axis.extent == 1:
        return None
    return next((g for g in GROUPS if (first := _first(getattr(c, g))) is not None and first.var.same_as(axis.var)), None)


def bound_of(func: tirx.PrimFunc, c: Contraction) -> Bound | None:
    """What ``bounded`` said of the kernel."""
    found = func.attrs.get(ATTRIBUTE) if func.attrs is not None else None
    if found is None:
        return None
    batch, dim, unit, *batched = (int(x) for x in found)
    group = group_of(c, batch, dim, unit)
    assert group is not None
    each = product(getattr(c, group)) // batch
    return Bound(group, each, func.params[0], batch, tuple(func.params[i + 1] for i in batched))


def _first(axes: Sequence[Iter]) -> Iter | None:
    return next((a for a in axes if a.extent > 1), None)
