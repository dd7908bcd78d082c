"""Matrix products. Half floats are multiplied with float32 accumulation, as PyTorch does."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilegrad.frontend.pytorch.lowering import Lowering, Number
from tilegrad.frontend.pytorch.table import aten
from tilegrad.relax_ext.vjp.values import F, Value


def product(k: Lowering, a: Value, b: Value) -> Value:
    """``a @ b`` in the dtype that accumulates: float32 for half floats."""
    if a.dtype in ("float16", "bfloat16"):
        return F.matmul(a, b, out_dtype="float32")
    return F.matmul(a, b)


@aten("mm", "bmm", "matmul", "mv", "dot", "vdot", "inner_product")
def matmul(k: Lowering, a: Value, b: Value) -> Value:
    if 0 in (a.shape[-1:] or (1,)):
        return k.zeros(k.out.shape, k.out.dtype)
    return k.narrow(product(k, a, b).reshape(k.out.shape))


@aten("mm.dtype", "bmm.dtype")
def matmul_to(k: Lowering, a: Value, b: Value, out_dtype: str) -> Value:
    return k.value(product(k, a, b), out_dtype)


def _plus(k: Lowering, x: Value, result: Value, beta: Number, alpha: Number) -> Value:
    """``beta x + alpha result``; a beta of zero drops x, NaNs included."""
    if alpha != 1:
        result = result * k.number(alpha, result.dtype)
    if beta != 0:
        x = k.value(x, result.dtype)
        result = result + (x if beta == 1 else x * k.number(beta, x.dtype))
    return k.narrow(result.broadcast_to(k.out.shape))


def _product_or_zeros(k: Lowering, a: Value, b: Value) -> Value:
    if a.shape[-1] == 0:
        return k.zeros((*a.shape[:-1], *b.shape[-1:]) if b.ndim > 1 else a.shape[:-1], a.dtype)
    return product(k, a, b)


@aten("addmm", "baddbmm", "addmv")
def addmm(k: Lowering, x: Value, a: Value, b: Value, *, beta: Number = 1, alpha: Number = 1) -> Value:
    return _plus(k, x, _product_or_zeros(k, a, b), beta, alpha)


@aten("addbmm")
def addbmm(k: Lowering, x: Value, a: Value, b: Value, *, beta: Number = 1, alpha: Number = 1) -> Value:
    return _plus(k, x, F.sum(product(k, a, b), [0], False), beta, alpha)


@aten("addr")
def addr(k: Lowering, x: Value, a: Value, b: Value, *, beta: Number = 1, alpha: Number = 1) -> Value:
    dtype = k.out.dtype
    if dtype == "bool":
        outer = F.logical_and(k.value(a, "bool").reshape((-1, 1)), k.value(b, "bool").reshape((1, -1)))
        return F.logical_or(x, outer) if beta else outer
    outer = k.value(a, dtype).reshape((a.shape[0], 1)) * k.value(b, dtype).reshape((1, b.shape[0]))
    return _plus(k, x, outer, beta, alpha)


@aten("linear")
def linear(k: Lowering, x: Value, weight: Value, bias: Value | None = None) -> Value:
    result = product(k, x, weight.permute((1, 0)) if weight.ndim == 2 else weight)
    return k.narrow(result if bias is None else result + k.value(bias, result.dtype))


@aten("_trilinear")
def trilinear(
    k: Lowering, a: Value, b: Value, c: Value, expand1: Sequence[int], expand2: Sequence[int], expand3: Sequence[int],
    sumdim: Sequence[int], unroll_dim: int = 1,
) -> Value:  # fmt: skip
    def expanded(x: Value, axes: Sequence[int]) -> Value:
        shape = list(x.shape)
        for axis in sorted(axes):
            shape.insert(axis, 1)
        return x.reshape(shape)

    total = expanded(a, expand1) * expanded(b, expand2) * expanded(c, expand3)
    return F.sum(total, list(sumdim), False)


def squared_distances(k: Lowering, a: Value, b: Value) -> Value:
    """Differences of every pair of rows, squared and summed."""
    d = a.reshape((*a.shape[:-1], 1, a.shape[-1])) - b.reshape((*b.shape[:-2], 1, *b.shape[-2:]))
    return F.sum(d * d, [d.ndim - 1], False)


@aten("_cdist_forward", "cdist")
def cdist(k: Lowering, a: Value, b: Value, p: Number = 2, compute_mode: int | None = None) -> Value:
    """The gradient of a zero distance is zero."""
    if a.shape[-1] == 0:
        return k.zeros(k.out.shape, k.out.dtype)
    d = a.reshape((*a.shape[:-1], 1, a.shape[-1])) - b.reshape((*b.shape[:-2], 1, *b.shape[-2:]))
    return p_norm(k, d, p).broadcast_to(k.out.shape)


def p_norm(k: Lowering, d: Value, p: Number) -> Value:
    """The p-norm over the last axis, with a zero gradient at zero."""
    axis = d.ndim - 1
    if p == 0:
        return F.sum(k.value(F.not_equal(d, 0.0), d.dtype), [axis], False)
    if p == 1:
        return F.sum(F.abs(d), [axis], False)
    if math.isinf(p):
        return F.max(F.abs(d), [axis], False)
    if p == 2:
        total = F.sum(d * d, [axis], False)
    else:
        # |d|^p of a zero difference: a base of one, masked, keeps the gradient finite for p < 1.
        zero = F.equal(d, 0.0)
        total = F.sum(
            F.where(zero, k.number(0, d.dtype), F.power(F.where(zero, k.number(1, d.dtype), F.abs(d)), float(p))), [axis], False
        )
    none = F.equal(total, 0.0)
    safe = F.where(none, k.number(1, d.dtype), total)
    return F.where(none, k.number(0, d.dtype), F.sqrt(safe) if p == 2 else F.power(safe, 1.0 / float(p)))


@aten("_pdist_forward", "pdist")
def pdist(k: Lowering, x: Value, p: Number = 2) -> Value:
    import numpy as np

    rows, columns = np.triu_indices(x.shape[0], 1)
    if rows.size == 0 or x.shape[1] == 0:
        return k.zeros(k.out.shape, k.out.dtype)
    d = F.take(x, k.constant(rows), 0, mode="clip") - F.take(x, k.constant(columns), 0, mode="clip")
    return p_norm(k, d, p)
