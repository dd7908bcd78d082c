"""Sums of products for the float64 reference: each operand laid out as a matrix, then NumPy's product.

Plain loops need half a minute for what BLAS does in a second, and that counts in a tuning budget. The kernel is cut at such
sums; what lies between them stays plain loops (``reference.py``). Nothing of any template's schedule is used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilegrad._base.tvm import te, tirx, tvm_ffi
from tilegrad.schedules.contraction.affine import Simplifier
from tilegrad.schedules.contraction.canonical import split_phases
from tilegrad.schedules.stages import Iter, Stage, create, id_of, loads, replace_loads, substitute, variables

WORTH = 2**25
"""Multiply-adds from which on a product is quicker than plain loops: its operands' layout is compiled first."""
REUSE = 4
"""Multiply-adds an element laid out, below which laying out costs as much as the sums."""
MOST_BYTES = 2**30
"""Operands that take more than this, laid out, are left to plain loops."""


@dataclass(frozen=True)
class Product:
    """``stage`` as ``C[batch, m, n] = sum over k of A[batch, m, k] * B[batch, k, n]``.

    ``spatial`` are, for every dimension of the result, the variables that it consists of, outermost first; it may be cut.
    """

    stage: Stage
    factors: tuple[Any, Any]
    batch: tuple[Iter, ...]
    m: tuple[Iter, ...]
    n: tuple[Iter, ...]
    k: tuple[Iter, ...]
    spatial: tuple[tuple[Iter, ...], ...]

    @property
    def sides(self) -> tuple[tuple[Iter, ...], tuple[Iter, ...]]:
        """The variables of A and of B, in order."""
        return (*self.batch, *self.m, *self.k), (*self.batch, *self.k, *self.n)

    @property
    def multiply_adds(self) -> int:
        """What the sum takes."""
        return extent((*self.batch, *self.m, *self.n, *self.k))

    @property
    def reads(self) -> tuple[Any, ...]:
        """The buffers that the factors read."""
        return tuple({id_of(r.source): r.source for f in self.factors for r in loads(f)}.values())

    def layout(self) -> tirx.PrimFunc:
        """A kernel from ``reads`` to A and B."""
        tensors = {id_of(b): te.placeholder(b.shape, b.dtype, name=f"read{i}") for i, b in enumerate(self.reads)}

        def laid_out(factor: Any, axes: Sequence[Iter], name: str) -> te.Tensor:
            expr = replace_loads(factor, lambda e: tensors[id_of(e.source)](*e.indices))
            shape = [tirx.const(a.extent, str(a.var.ty.dtype)) for a in axes]
            values = [a.var for a in axes]
            return te.compute(shape, lambda *at: substitute(expr, dict(zip(values, at, strict=True))), name=name)

        operands = [laid_out(f, axes, name) for f, axes, name in zip(self.factors, self.sides, "ab", strict=True)]
        return create([*tensors.values(), *operands])

    def result(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """The stage's buffer from A and B; integers in float64 where that is exact."""
        batch, m, n, k = map(extent, (self.batch, self.m, self.n, self.k))
        x, y = a.reshape(batch, m, k), b.reshape(batch, k, n)
        if a.dtype.kind in "iu" and float(np.abs(x).max()) * float(np.abs(y).max()) * k < 2**53:
            x, y = x.astype(np.float64), y.astype(np.float64)
        axes = [*self.batch, *self.m, *self.n]
        c = np.matmul(x, y).reshape([i.extent for i in axes])
        c = c.transpose([axes.index(v) for dim in self.spatial for v in dim]).reshape(list(map(extent, self.spatial)))
        return np.ascontiguousarray(c[tuple(slice(0, i.extent) for i in self.stage.spatial)].astype(a.dtype))


def product_of(stage: Stage, least: int = WORTH) -> Product | None:
    """The stage as a product of ``least`` multiply-adds or more; None where it is none, or one that plain loops do as quickly."""
    combined = stage.combiner
    if combined is None or combined[0] != "sum" or float(getattr(stage.init, "value", math.nan)) != 0.0:
        return None
    update = combined[1]
    if not isinstance(update, tirx.Mul) or not loads(update.a) or not loads(update.b):
        return None
    axes, values, overhang, _ = split_phases([*stage.spatial, *stage.reduce], update)
    parts = {id_of(i.var): [a for a in axes if id_of(a.var) in _ids(values[i.var])] for i in (*stage.spatial, *stage.reduce)}
    if any(_ids(g) & {id_of(a.var) for i in stage.reduce for a in parts[id_of(i.var)]} for g in overhang):
        return None
    simplify = Simplifier(axes)
    factors = [_guarded(_simplified(substitute(f, values), simplify), overhang) for f in (update.a, update.b)]
    used = [_ids(f) for f in factors]
    spatial = [a for i in stage.spatial for a in parts[id_of(i.var)]]
    batch = [a for a in spatial if all(id_of(a.var) in u for u in used)]
    n = [a for a in spatial if id_of(a.var) in used[1] and a not in batch]
    m = [a for a in spatial if a not in batch and a not in n]
    k = [a for i in stage.reduce for a in parts[id_of(i.var)]]
    dims = tuple(tuple(parts[id_of(i.var)]) for i in stage.spatial)
    found = Product(stage, (factors[0], factors[1]), tuple(batch), tuple(m), tuple(n), tuple(k), dims)
    laid_out = sum(extent(axes) for axes in found.sides)
    worth = found.multiply_adds >= max(least, REUSE * laid_out) and 8 * laid_out <= MOST_BYTES
    return found if worth else None


def extent(axes: Sequence[Iter]) -> int:
    """Number of points."""
    return math.prod(a.extent for a in axes)


def _simplified(expr: Any, simplify: Simplifier) -> Any:
    """``expr`` with its integer divisions carried out where the ranges tell."""
    return tvm_ffi.structural_map(expr, ((tirx.FloorDiv, tirx.FloorMod), simplify))


def _guarded(factor: Any, overhang: Sequence[Any]) -> Any:
    """``factor``, zero where a dimension that was split does not exist."""
    tests = [g for g in overhang if _ids(g) <= _ids(factor)]
    return tirx.if_then_else(tirx.all(*tests), factor, tirx.const(0, factor.ty.dtype)) if tests else factor


def _ids(expr: Any) -> set[int]:
    return {id_of(v) for v in variables(expr)}
