"""Arrays one after the other in memory."""

from __future__ import annotations

from tilegrad._base.tvm import te, tirx

JOIN = "join"
"""Attribute of the stage: its inputs fill the result one after the other, so a planner may let them be written there."""


def join(tensors: list[te.Tensor], axis: int) -> te.Tensor:
    """Concatenation along ``axis``, before which all extents are 1."""
    extents = [int(t.shape[axis]) for t in tensors]
    shape = [sum(extents) if d == axis else n for d, n in enumerate(tensors[0].shape)]

    def element(*i: tirx.Var) -> tirx.PrimExpr:
        value, end = None, sum(extents)
        for t, extent in zip(reversed(tensors), reversed(extents), strict=True):
            end -= extent
            here = t(*i[:axis], i[axis] - end, *i[axis + 1 :])
            value = here if value is None else tirx.if_then_else(i[axis] < end + extent, here, value)
        return value

    return te.compute(shape, element, name="concatenate", attrs={JOIN: 1})
