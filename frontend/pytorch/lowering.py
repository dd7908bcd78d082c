"""What a rule works with: the node's types, and helpers that make Values of PyTorch's dtypes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch

from tilegrad._base.tvm import relax
from tilegrad.relax_ext.vjp.values import F, Tape, Value

Number = bool | int | float

_LARGEST_FULL = float(np.finfo(np.float32).max)
_SMALL_FLOATS = ("float16", "bfloat16")


@dataclass(frozen=True)
class Type:
    """Static shape and dtype of one result."""

    shape: tuple[int, ...]
    dtype: str


class Cannot(Exception):
    """A rule's refusal of particular arguments; the importer lists it with the operators that have no rule."""


class RandomState:
    """The state port of random operators: int64[2], the seed and the number of runs so far; added when first used."""

    NAME = "tilegrad.random"

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self.value: Value | None = None
        self._streams = 0

    def draw(self) -> tuple[Value, int]:
        """The state, and the number of a stream that nobody else has."""
        if self.value is None:
            self.value = self._tape.value(self._tape.builder.input(self.NAME, (2,), "int64", "state"))
        self._streams += 1
        return self.value, self._streams - 1

    def advanced(self) -> Value | None:
        """The state after this run; None when nothing random happened."""
        if self.value is None:
            return None
        return self.value + self._tape.value(constant(np.array([0, 1], np.int64)))


class Lowering:
    """One ATen node being written: ``types`` are its results', from PyTorch's own shape inference."""

    def __init__(self, tape: Tape, types: Sequence[Type | None], name: str, random: RandomState) -> None:
        self.tape, self.types, self.name, self.random = tape, list(types), name, random

    @property
    def out(self) -> Type:
        """The first (usually only) result's type."""
        first = self.types[0]
        assert first is not None
        return first

    def number(self, x: Number, dtype: str) -> Value:
        """A rank-0 constant."""
        return self.tape.constant(_fitting(x, dtype), dtype)

    def constant(self, array: np.ndarray) -> Value:
        """A constant array."""
        return self.tape.value(constant(array))

    def value(self, x: Value | Number, dtype: str) -> Value:
        """A tensor or number as a Value of ``dtype``, with PyTorch's conversions (float to int truncates, to bool is != 0)."""
        if not isinstance(x, Value):
            return self.number(x, dtype)
        if x.dtype == dtype:
            return x
        if dtype == "bool":
            return F.not_equal(x, self.number(0, x.dtype))
        if x.dtype == "bool" and dtype in _SMALL_FLOATS:
            return x.astype("float32").astype(dtype)
        return x.astype(dtype)

    def full(self, shape: Sequence[int], x: Number, dtype: str) -> Value:
        """``shape`` filled with ``x``."""
        if abs(x) > _LARGEST_FULL or x != x:  # TVM lowers full by way of a float32 literal
            return self.number(x, dtype).broadcast_to(tuple(shape))
        return self.tape.bind(relax.op.full(tuple(shape), relax.const(_fitting(x, dtype), dtype), dtype))

    def zeros(self, shape: Sequence[int], dtype: str) -> Value:
        """Zeros."""
        return self.full(shape, 0, dtype)

    def arange(self, n: int, dtype: str = "int64") -> Value:
        """0, 1, ..., n - 1."""
        return self.tape.bind(relax.op.arange(0, n, 1, dtype))

    def call(self, make: Callable[..., Any], *args: Value, **attrs: Any) -> Value:
        """A Value of an operator of ``relax_ext.ops``."""
        return self.tape.bind(make(*(a.expr for a in args), **attrs))

    def wide(self, x: Value | Number) -> Value:
        """A float operand in the dtype PyTorch computes in: half floats in float32, whole numbers in the result's float."""
        dtype = x.dtype if isinstance(x, Value) and "float" in x.dtype else self.out.dtype
        return self.value(x, "float32" if dtype in _SMALL_FLOATS or "float" not in dtype else dtype)

    def narrow(self, x: Value) -> Value:
        """A result back in the node's dtype."""
        return self.value(x, self.out.dtype)

    def promoted(self, *operands: Value | Number) -> str:
        """PyTorch's common dtype of tensors and numbers."""
        return common_dtype(*operands)


def constant(array: np.ndarray, dtype: str | None = None) -> relax.Expr:
    """A Relax constant of exactly the array's dtype; bfloat16 comes as its bits in uint16."""
    array = np.asarray(array, order="C")  # ascontiguousarray would make a vector of a scalar
    if dtype == "bfloat16":
        import ml_dtypes

        return relax.const(array.view(ml_dtypes.bfloat16), dtype)
    return relax.const(array, dtype or str(array.dtype))


def _fitting(x: Number, dtype: str) -> Number:
    """A number that ``relax.const`` takes without overflow: PyTorch wraps whole numbers, and saturates floats to inf."""
    if dtype == "bool":
        return bool(x)
    if "int" in dtype:
        info = np.iinfo(dtype)
        x = int(x)
        return x if info.min <= x <= info.max else (x - info.min) % (info.max - info.min + 1) + info.min
    return float(x)


def common_dtype(*operands: Value | Number) -> str:
    """PyTorch's common dtype of tensors and Python numbers (``torch.result_type``)."""
    keys = tuple((v.dtype, v.ndim > 0) if isinstance(v, Value) else type(v) for v in operands)
    return _common_dtype(keys)


@cache
def _common_dtype(keys: tuple[Any, ...]) -> str:
    samples = [
        key(1) if isinstance(key, type) else torch.empty((1,) if key[1] else (), dtype=torch_dtype(key[0]), device="meta")
        for key in keys
    ]
    _, result = torch._prims_common.elementwise_dtypes(
        *samples, type_promotion_kind=torch._prims_common.ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT
    )
    return dtype_name(result)


def dtype_name(dtype: torch.dtype) -> str:
    """``float32`` for ``torch.float32``."""
    return str(dtype)[len("torch.") :]


def torch_dtype(name: str) -> torch.dtype:
    """The inverse of ``dtype_name``."""
    return getattr(torch, name)


def axis_of(axis: int, ndim: int) -> int:
    """A non-negative axis; rank 0 has axis 0, as in PyTorch."""
    return axis % max(ndim, 1)


def axes_of(axes: int | Sequence[int] | None, ndim: int) -> tuple[int, ...]:
    """Sorted non-negative axes; all of them for None or an empty list."""
    if axes is None or (not isinstance(axes, int) and len(axes) == 0):
        return tuple(range(ndim))
    return tuple(sorted(axis_of(a, ndim) for a in ([axes] if isinstance(axes, int) else axes) if ndim))


def pair(values: int | Sequence[int], n: int) -> tuple[int, ...]:
    """A window attribute for ``n`` axes: one number stands for all."""
    values = [values] if isinstance(values, int) else list(values)
    return tuple(int(v) for v in (values * n if len(values) == 1 else values))
