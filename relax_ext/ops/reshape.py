"""``relax.reshape`` to extents taken as they are."""

from __future__ import annotations

from collections.abc import Sequence

from tilegrad._base.tvm import ir, relax


def extents(ty: relax.TensorType) -> tuple[int, ...]:
    """A tensor type's static extents."""
    return tuple(int(d) for d in ty.shape)


def reshape(x: relax.Expr, shape: Sequence[int]) -> ir.Call:
    """The same elements in another shape. Relax's own function takes 0 for "as in x" and -1 for "what is left"."""
    return ir.Call(ir.Op.get("relax.reshape"), [x, relax.ShapeExpr([int(d) for d in shape])])
