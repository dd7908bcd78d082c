"""Tensors from nothing."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilegrad.frontend.pytorch.lowering import Cannot, Lowering, Number
from tilegrad.frontend.pytorch.table import aten
from tilegrad.relax_ext.vjp.values import Value


@aten("full", "full_like", "fill.Scalar", "new_full")
def full(k: Lowering, like: Any, *args: Any, **kwargs: Any) -> Value:
    return k.full(k.out.shape, kwargs.get("fill_value", args[-1] if args else 0), k.out.dtype)


@aten("fill.Tensor")
def fill(k: Lowering, x: Value, value: Value) -> Value:
    return k.value(value, k.out.dtype).broadcast_to(k.out.shape)


@aten("zeros", "zeros_like", "new_zeros", "empty.memory_format", "empty_like", "new_empty", "empty_strided", "new_empty_strided",
      "empty_permuted")  # fmt: skip
def zeros(k: Lowering, *args: Any, **kwargs: Any) -> Value:
    """Uninitialised memory is zeros here."""
    return k.full(k.out.shape, 0, k.out.dtype)


@aten("ones", "ones_like", "new_ones")
def ones(k: Lowering, *args: Any, **kwargs: Any) -> Value:
    return k.full(k.out.shape, 1, k.out.dtype)


@aten("scalar_tensor")
def scalar_tensor(k: Lowering, value: Number, **kwargs: Any) -> Value:
    return k.full((), value, k.out.dtype)


@aten("arange", "arange.start", "arange.start_step")
def arange(k: Lowering, *bounds: Number, **kwargs: Any) -> Value:
    start: Number = 0
    step: Number = 1
    if len(bounds) > 1:
        start = bounds[0]
    if len(bounds) > 2:
        step = bounds[2]
    return _sequence(k, start, step)


@aten("prims::iota")
def iota(k: Lowering, length: int, *, start: int = 0, step: int = 1, **kwargs: Any) -> Value:
    return _sequence(k, start, step)


def _sequence(k: Lowering, start: Number, step: Number) -> Value:
    n, dtype = k.out.shape[0], k.out.dtype
    if dtype in ("float16", "bfloat16"):
        return k.value(_values(k, np.arange(n) * np.float32(step) + np.float32(start)), dtype)
    return _values(k, (np.arange(n) * step + start).astype(dtype))


def _values(k: Lowering, array: np.ndarray) -> Value:
    return k.constant(array)


@aten("linspace")
def linspace(k: Lowering, start: Number, end: Number, steps: int, **kwargs: Any) -> Value:
    if isinstance(start, Value) or isinstance(end, Value):
        raise Cannot("linspace with tensors as bounds")
    dtype = k.out.dtype
    array = np.linspace(start, end, steps, dtype="float32" if dtype == "bfloat16" else dtype)
    return k.value(_values(k, array), dtype)


@aten("eye", "eye.m")
def eye(k: Lowering, *args: Any, **kwargs: Any) -> Value:
    rows, columns = np.indices(k.out.shape)
    return k.value(k.constant(rows == columns), k.out.dtype)


@aten("tril_indices")
def tril_indices(k: Lowering, row: int, col: int, offset: int = 0, **kwargs: Any) -> Value:
    return k.constant(np.stack(np.tril_indices(row, offset, col)).astype(k.out.dtype))


@aten("triu_indices")
def triu_indices(k: Lowering, row: int, col: int, offset: int = 0, **kwargs: Any) -> Value:
    return k.constant(np.stack(np.triu_indices(row, offset, col)).astype(k.out.dtype))
