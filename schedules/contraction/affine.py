"""Index expressions as constant + sum of coefficient * variable, and buffers as flat memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tilegrad._base.tvm import tirx, tvm
from tilegrad.schedules.stages import Iter, id_of, is_const

Expr = Any


@dataclass(frozen=True)
class Affine:
    """``const + sum(coeff[id] * variable)``; variables by identity, absent means 0."""

    coeffs: dict[int, int]
    const: int

    def of(self, axis: Iter) -> int:
        """The coefficient of an axis; 0 for one that never moves."""
        return self.coeffs.get(id_of(axis.var), 0) if axis.extent > 1 else 0

    def fused(self, axes: Sequence[Iter]) -> int | None:
        """The stride of ``axes`` taken as one index, outermost first; None when they do not lie at one stride."""
        moving = [a for a in axes if a.extent > 1]
        if not moving:
            return 0
        stride = step = self.of(moving[-1])
        for inner, outer in zip(moving[::-1], moving[-2::-1], strict=False):
            step *= inner.extent
            if self.of(outer) != step:
                return None
        return stride


def affine(expr: Expr) -> Affine | None:
    """``expr`` as an Affine over all its variables, or None."""
    if isinstance(expr, tirx.IntImm):
        return Affine({}, int(expr.value))
    if isinstance(expr, tirx.Var):
        return Affine({id_of(expr): 1}, 0)
    if isinstance(expr, tirx.Cast):
        return affine(expr.value)
    if isinstance(expr, tirx.Add | tirx.Sub | tirx.Mul):
        a, b = affine(expr.a), affine(expr.b)
        if a is None or b is None:
            return None
        if isinstance(expr, tirx.Mul):
            if a.coeffs and b.coeffs:
                return None
            scale, other = (b.const, a) if not b.coeffs else (a.const, b)
            return Affine({v: c * scale for v, c in other.coeffs.items()}, other.const * scale)
        sign = 1 if isinstance(expr, tirx.Add) else -1
        coeffs = dict(a.coeffs)
        for v, c in b.coeffs.items():
            coeffs[v] = coeffs.get(v, 0) + sign * c
        return Affine({v: c for v, c in coeffs.items() if c}, a.const + sign * b.const)
    return None


def strides(shape: Sequence[Any]) -> list[int]:
    """Row-major element strides."""
    out, step = [], 1
    for d in reversed(shape):
        out.append(step)
        step *= int(d)
    return out[::-1]


def size(buffer: Any) -> int:
    """Number of elements of a static buffer."""
    n = 1
    for d in buffer.shape:
        n *= int(d)
    return n


def flat(buffer: Any, indices: Sequence[Expr], dtype: str) -> Expr:
    """The row-major element number of ``buffer[indices]`` (not simplified)."""
    total: Expr = tirx.const(0, dtype)
    for step, i in zip(strides(buffer.shape), indices, strict=True):
        if not is_const(i, 0):
            total = total + (i if step == 1 else i * step)
    return total


def decompose(axes: Sequence[Iter], index: Expr) -> dict[tirx.Var, Expr]:
    """The value of each axis when ``axes`` count as one index, outermost first."""
    out: dict[tirx.Var, Expr] = {}
    inner = 1
    for n, axis in reversed(list(enumerate(axes))):
        value = index if inner == 1 else tirx.floordiv(index, inner)
        if axis.extent == 1:
            value = tirx.const(0, axis.var.ty.dtype)
        elif any(a.extent > 1 for a in axes[:n]):
            value = tirx.floormod(value, axis.extent)
        out[axis.var] = value
        inner *= axis.extent
    return out


class Simplifier:
    """TVM's arithmetic with the ranges of the variables it is told of."""

    def __init__(self, axes: Iterable[Iter] = ()) -> None:
        self._analyzer = tvm.sym.Analyzer()
        for a in axes:
            self.bind(a.var, a.extent)

    def bind(self, var: tirx.Var, extent: int, start: int = 0) -> None:
        """``start <= var < start + extent``."""
        zero, n = tirx.const(start, var.ty.dtype), tirx.const(extent, var.ty.dtype)
        self._analyzer.bind(var, tvm.ir.Range.from_min_extent(zero, n))

    def __call__(self, expr: Expr) -> Expr:
        return self._analyzer.canonical_simplify(self._analyzer.simplify(expr))
