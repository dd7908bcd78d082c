"""Softmax, its logarithm and arg-reductions, in the form in which one kernel computes a row while it is in the cache.

Each exponential is computed once, and a row is divided by one reciprocal. Arg-reductions are two plain reductions (the
extreme, then the least place that holds it), so that they vectorise; a NaN is the extreme of its row, as in PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilegrad._base.tvm import te, tirx, topi
from tilegrad.schedules.floats import is_nan


def softmax(x: te.Tensor, axis: int = -1) -> te.Tensor:
    """y = exp(x - max x) / sum exp(x - max x) over ``axis``."""
    axis %= len(x.shape)
    e, total = _exponentials(x, axis)
    inverse = te.compute(total.shape, lambda *i: tirx.const(1, x.dtype) / total(*i), name="softmax_inverse")
    return te.compute(x.shape, lambda *i: e(*i) * inverse(*_drop(i, axis)), name="softmax")


def log_softmax(x: te.Tensor, axis: int = -1) -> te.Tensor:
    """y = x - max x - log sum exp(x - max x) over ``axis``."""
    axis %= len(x.shape)
    high = _reduce(x, axis, te.max, lambda v: v, "softmax_max")
    k = te.reduce_axis((0, x.shape[axis]), "k")
    total = te.compute(high.shape, lambda *i: te.sum(tirx.exp(x(*_insert(i, axis, k)) - high(*i)), axis=k), name="softmax_sum")
    shift = te.compute(high.shape, lambda *i: tirx.log(total(*i)), name="softmax_log")
    return te.compute(x.shape, lambda *i: (x(*i) - high(*_drop(i, axis))) - shift(*_drop(i, axis)), name="log_softmax")


def argmax(x: te.Tensor, axis: int, dtype: str = "int64") -> te.Tensor:
    """The first place of the maximum along ``axis``; the axis is dropped."""
    return _arg(x, axis, te.max, dtype)


def argmin(x: te.Tensor, axis: int, dtype: str = "int64") -> te.Tensor:
    """The first place of the minimum along ``axis``; the axis is dropped."""
    return _arg(x, axis, te.min, dtype)


def _arg(x: te.Tensor, axis: int, reducer: Callable[..., Any], dtype: str) -> te.Tensor:
    axis %= len(x.shape)
    x = topi.cast(x, "int8") if x.dtype == "bool" else x
    best = _reduce(x, axis, reducer, lambda v: v, "extreme")
    k = te.reduce_axis((0, x.shape[axis]), "k")
    nan = "float" in str(x.dtype)

    def place(*i: Any) -> Any:
        value = x(*_insert(i, axis, k))
        found = value == best(*i)
        found = tirx.Or(found, is_nan(value)) if nan else found
        return te.min(tirx.Select(found, tirx.Cast(dtype, k.var), tirx.const(int(x.shape[axis]), dtype)), axis=k)

    return te.compute(best.shape, place, name="arg")


def _exponentials(x: te.Tensor, axis: int) -> tuple[te.Tensor, te.Tensor]:
    """(exp(x - max), its sum), the axis dropped from the sum."""
    high = _reduce(x, axis, te.max, lambda v: v, "softmax_max")
    e = te.compute(x.shape, lambda *i: tirx.exp(x(*i) - high(*_drop(i, axis))), name="softmax_exp")
    return e, _reduce(e, axis, te.sum, lambda v: v, "softmax_sum")


def _reduce(x: te.Tensor, axis: int, reducer: Callable[..., Any], term: Callable[[Any], Any], name: str) -> te.Tensor:
    k = te.reduce_axis((0, x.shape[axis]), "k")
    shape = [d for a, d in enumerate(x.shape) if a != axis]
    return te.compute(shape, lambda *i: reducer(term(x(*_insert(i, axis, k))), axis=k), name=name)


def _insert(i: Any, axis: int, k: Any) -> list[Any]:
    return [*i[:axis], k, *i[axis:]]


def _drop(i: Any, axis: int) -> list[Any]:
    return [*i[:axis], *i[axis + 1 :]]
