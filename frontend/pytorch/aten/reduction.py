"""Reductions over axes, and running ones."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tilegrad.frontend.pytorch.aten.movement import sliced
from tilegrad.frontend.pytorch.lowering import Cannot, Lowering, Number, axes_of, axis_of
from tilegrad.frontend.pytorch.table import aten
from tilegrad.relax_ext.vjp.values import F, Value

Axes = int | Sequence[int] | None


@aten("sum", "sum.dim_IntList")
def sum_(k: Lowering, x: Value, dim: Axes = None, keepdim: bool = False, dtype: str | None = None) -> Value:
    return _reduce(k, F.sum, x, dim, keepdim)


def _accumulating(k: Lowering, x: Value) -> Value:
    """The operand in the dtype that PyTorch adds up in: half floats in float32."""
    dtype = k.out.dtype
    return k.value(k.value(x, dtype), "float32" if dtype in ("float16", "bfloat16") else dtype)


def _reduce(k: Lowering, op: object, x: Value, dim: Axes, keepdim: bool) -> Value:
    wide = _accumulating(k, x)
    axes = axes_of(dim, x.ndim)
    return k.narrow(wide) if not axes else k.narrow(op(wide, list(axes), keepdim))  # type: ignore[operator]


@aten("mean", "mean.dim")
def mean(k: Lowering, x: Value, dim: Axes = None, keepdim: bool = False, dtype: str | None = None) -> Value:
    wide, axes = _accumulating(k, x), axes_of(dim, x.ndim)
    if not axes:
        return k.narrow(wide)
    n = math.prod(x.shape[a] for a in axes)
    return k.narrow(F.sum(wide, list(axes), keepdim) / n if n else k.full(k.out.shape, math.nan, wide.dtype))


@aten("prod", "prod.dim_int")
def prod(k: Lowering, x: Value, dim: Axes = None, keepdim: bool = False, dtype: str | None = None) -> Value:
    return _reduce(k, F.prod, x, dim, keepdim)


def _extreme(k: Lowering, op: str, x: Value, axes: Sequence[int] | None, keepdim: bool) -> Value:
    """max or min over axes, all for None; a NaN among the elements is the result."""
    if x.ndim == 0 or (axes is not None and not axes):
        return x
    over = None if axes is None else list(axes)
    if x.dtype == "bool":
        return k.value(getattr(F, op)(k.value(x, "uint8"), over, keepdim), "bool")
    return getattr(F, op)(x, over, keepdim)


@aten("amax")
def amax(k: Lowering, x: Value, dim: Axes = (), keepdim: bool = False) -> Value:
    return _extreme(k, "max", x, axes_of(dim, x.ndim), keepdim)


@aten("amin")
def amin(k: Lowering, x: Value, dim: Axes = (), keepdim: bool = False) -> Value:
    return _extreme(k, "min", x, axes_of(dim, x.ndim), keepdim)


@aten("max")
def max_(k: Lowering, x: Value) -> Value:
    return _extreme(k, "max", x, None, False)


@aten("min")
def min_(k: Lowering, x: Value) -> Value:
    return _extreme(k, "min", x, None, False)


@aten("aminmax")
def aminmax(k: Lowering, x: Value, dim: int | None = None, keepdim: bool = False) -> list[Value]:
    axes = axes_of(dim, x.ndim)
    return [_extreme(k, op, x, axes, keepdim) for op in ("min", "max")]


def _place(k: Lowering, op: str, x: Value, axis: int, keepdim: bool) -> Value:
    """The first place of the extreme, a NaN's before all."""
    if x.dtype == "bool":
        x = k.value(x, "uint8")
    return getattr(F, op)(x, axis, keepdim).astype("int64")


def _arg(k: Lowering, op: str, x: Value, dim: int | None, keepdim: bool) -> Value:
    if x.ndim == 0:
        return k.zeros((), "int64")
    if dim is None:
        return _place(k, op, x.reshape((math.prod(x.shape),)), 0, False).reshape(k.out.shape)
    return _place(k, op, x, axis_of(dim, x.ndim), keepdim)


@aten("argmax")
def argmax(k: Lowering, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    return _arg(k, "argmax", x, dim, keepdim)


@aten("argmin")
def argmin(k: Lowering, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    return _arg(k, "argmin", x, dim, keepdim)


def _with_place(k: Lowering, op: str, x: Value, dim: int, keepdim: bool) -> list[Value]:
    """Values gathered at the first place, so that the gradient goes there alone, as PyTorch's does."""
    if x.ndim == 0:
        return [x, k.zeros((), "int64")]
    axis = axis_of(dim, x.ndim)
    place = _place(k, op, x, axis, True)
    values = gather(k, x, place, axis)
    if not keepdim:
        shape = x.shape[:axis] + x.shape[axis + 1 :]
        values, place = values.reshape(shape), place.reshape(shape)
    return [values, place]


def gather(k: Lowering, x: Value, index: Value, axis: int) -> Value:
    """``gather_elements`` for any dtype (bool by way of uint8)."""
    if x.dtype == "bool":
        return k.value(F.gather_elements(k.value(x, "uint8"), index, axis), "bool")
    return F.gather_elements(x, index, axis)


@aten("max.dim")
def max_dim(k: Lowering, x: Value, dim: int, keepdim: bool = False) -> list[Value]:
    return _with_place(k, "argmax", x, dim, keepdim)


@aten("min.dim")
def min_dim(k: Lowering, x: Value, dim: int, keepdim: bool = False) -> list[Value]:
    return _with_place(k, "argmin", x, dim, keepdim)


@aten("any", "any.dim", "any.dims")
def any_(k: Lowering, x: Value, dim: Axes = None, keepdim: bool = False) -> Value:
    return _truth(k, "max", x, dim, keepdim)


@aten("all", "all.dim", "all.dims")
def all_(k: Lowering, x: Value, dim: Axes = None, keepdim: bool = False) -> Value:
    return _truth(k, "min", x, dim, keepdim)


def _truth(k: Lowering, op: str, x: Value, dim: Axes, keepdim: bool) -> Value:
    axes = axes_of(dim, x.ndim)
    bits = k.value(k.value(x, "bool"), "int32")
    if 0 in x.shape:
        return k.full(k.out.shape, op == "min", k.out.dtype)
    return k.value(getattr(F, op)(bits, list(axes), keepdim) if axes else bits, k.out.dtype)


def _moments(k: Lowering, x: Value, dim: Axes, correction: Number, keepdim: bool) -> tuple[Value, Value]:
    wide, axes = k.wide(x), list(axes_of(dim, x.ndim))
    n = math.prod(x.shape[a] for a in axes)
    centre = F.sum(wide, axes, True) / n if axes else wide
    deviation = wide - centre
    total = F.sum(deviation * deviation, axes, keepdim) if axes else deviation * deviation
    shape = total.shape
    divisor = max(n - correction, 0.0)
    variance = total / float(divisor) if divisor else total / k.number(0, wide.dtype)
    return variance, centre.reshape(shape)


def _correction(unbiased_or_correction: object) -> Number:
    if unbiased_or_correction is None or unbiased_or_correction is True:
        return 1
    return 0 if unbiased_or_correction is False else unbiased_or_correction  # type: ignore[return-value]


@aten("var.correction")
def var(k: Lowering, x: Value, dim: Axes = None, correction: Number | None = None, keepdim: bool = False) -> Value:
    return k.narrow(_moments(k, x, dim, _correction(correction), keepdim)[0])


@aten("prims::var")
def prims_var(k: Lowering, x: Value, dims: Axes, correction: Number = 1, **ignored: object) -> Value:
    return k.narrow(_moments(k, x, dims, correction, False)[0])


@aten("prims::sum")
def prims_sum(k: Lowering, x: Value, dims: Axes, **ignored: object) -> Value:
    return _reduce(k, F.sum, x, dims, False)


@aten("std.correction")
def std(k: Lowering, x: Value, dim: Axes = None, correction: Number | None = None, keepdim: bool = False) -> Value:
    return k.narrow(F.sqrt(_moments(k, x, dim, _correction(correction), keepdim)[0]))


@aten("var_mean.correction")
def var_mean(k: Lowering, x: Value, dim: Axes = None, correction: Number | None = None, keepdim: bool = False) -> list[Value]:
    return [k.narrow(v) for v in _moments(k, x, dim, _correction(correction), keepdim)]


@aten("std_mean.correction")
def std_mean(k: Lowering, x: Value, dim: Axes = None, correction: Number | None = None, keepdim: bool = False) -> list[Value]:
    variance, centre = _moments(k, x, dim, _correction(correction), keepdim)
    return [k.narrow(F.sqrt(variance)), k.narrow(centre)]


@aten("cumsum")
def cumsum(k: Lowering, x: Value, dim: int, dtype: str | None = None) -> Value:
    wide = _accumulating(k, x)
    return k.narrow(F.cumsum(wide, axis_of(dim, x.ndim))) if x.ndim else k.narrow(wide)


@aten("cumprod")
def cumprod(k: Lowering, x: Value, dim: int, dtype: str | None = None) -> Value:
    wide = _accumulating(k, x)
    return k.narrow(F.cumprod(wide, axis_of(dim, x.ndim))) if x.ndim else k.narrow(wide)


@aten("_softmax", "softmax.int")
def softmax(k: Lowering, x: Value, dim: int, dtype_or_half: object = None) -> Value:
    wide = k.wide(k.value(x, k.out.dtype))
    return k.narrow(F.softmax(wide, axis_of(dim, x.ndim)) if x.ndim else wide * 0.0 + 1.0)


@aten("_log_softmax", "log_softmax.int")
def log_softmax(k: Lowering, x: Value, dim: int, dtype_or_half: object = None) -> Value:
    wide = k.wide(k.value(x, k.out.dtype))
    return k.narrow(F.log_softmax(wide, axis_of(dim, x.ndim)) if x.ndim else wide * 0.0)


@aten("_safe_softmax")
def safe_softmax(k: Lowering, x: Value, dim: int, dtype: str | None = None) -> Value:
    """Rows that are -inf throughout give zeros."""
    wide = k.wide(k.value(x, k.out.dtype))
    if not x.ndim:
        raise Cannot("_safe_softmax of a scalar")
    axis = axis_of(dim, x.ndim)
    masked = F.equal(F.max(wide, [axis], True), -math.inf)
    return k.narrow(F.where(masked, k.number(0, wide.dtype), F.softmax(F.where(masked, k.number(0, wide.dtype), wide), axis)))


@aten("logsumexp")
def logsumexp(k: Lowering, x: Value, dim: Axes, keepdim: bool = False) -> Value:
    from tilegrad.relax_ext import ops

    wide, axes = k.wide(x), list(axes_of(dim, x.ndim))
    if not axes:
        return k.narrow(wide)
    if 0 in x.shape:
        return k.full(k.out.shape, -math.inf, k.out.dtype)
    top = k.call(ops.stop_gradient, F.max(wide, axes, True))
    top = F.where(F.isfinite(top), top, k.number(0, wide.dtype))
    total = F.log(F.sum(F.exp(wide - top), axes, keepdim))
    return k.narrow(total + top.reshape(total.shape))


@aten("linalg_vector_norm")
def vector_norm(
    k: Lowering, x: Value, ord: Number = 2, dim: Axes = None, keepdim: bool = False, dtype: str | None = None
) -> Value:
    wide, axes = k.wide(k.value(x, k.out.dtype)), list(axes_of(dim, x.ndim))

    def total(v: Value) -> Value:
        return F.sum(v, axes, keepdim) if axes else v

    if ord == 2:
        # The gradient at zero is zero, not NaN.
        squares = total(wide * wide)
        zero = F.equal(squares, 0.0)
        root = F.sqrt(F.where(zero, k.number(1, wide.dtype), squares))
        return k.narrow(F.where(zero, k.number(0, wide.dtype), root))
    if ord == 0:
        return k.narrow(total(k.value(F.not_equal(wide, 0.0), wide.dtype)))
    if ord == 1:
        return k.narrow(total(F.abs(wide)))
    if ord in (math.inf, -math.inf):
        return k.narrow(_extreme(k, "max" if ord > 0 else "min", F.abs(wide), axes, keepdim))
    sums = total(F.power(F.abs(wide), float(ord)))
    return k.narrow(F.power(sums, 1.0 / float(ord)))


@aten("count_nonzero", "count_nonzero.dim_IntList")
def count_nonzero(k: Lowering, x: Value, dim: Axes = None) -> Value:
    bits, axes = k.value(k.value(x, "bool"), "int64"), list(axes_of(dim, x.ndim))
    return F.sum(bits, axes, False) if axes else bits


def ones_mask(shape: Sequence[int], keep: object) -> np.ndarray:
    """A boolean array of ``shape`` from an index function (triangles and diagonals)."""
    return np.fromfunction(keep, tuple(shape), dtype=np.int64)  # type: ignore[arg-type]


@aten("logcumsumexp")
def logcumsumexp(k: Lowering, x: Value, dim: int) -> Value:
    """By doubling: after step s, element i is the log of the sum of the exponentials of the 2^s elements up to it."""
    if x.ndim == 0:
        return x
    axis, wide, reach = axis_of(dim, x.ndim), k.wide(x), 1
    n = x.shape[axis]
    while reach < n:
        head, tail = sliced(k, wide, axis, 0, reach), sliced(k, wide, axis, reach, n)
        wide = F.concat([head, _logaddexp(tail, sliced(k, wide, axis, 0, n - reach))], axis)
        reach *= 2
    return k.narrow(wide)


def _logaddexp(a: Value, b: Value) -> Value:
    """log(exp(a) + exp(b)); equal infinities are their own result."""
    same = F.logical_and(F.equal(a, b), F.isinf(a))
    distance = F.where(same, a.zeros_like(), F.abs(a - b))
    return F.maximum(a, b) + F.where(same, a.zeros_like(), F.log(F.exp(-distance) + 1.0))
