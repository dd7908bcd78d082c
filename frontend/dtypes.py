"""Element types: names, NumPy's equivalents and PyTorch's promotion rules."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilegrad._base.errors import DTypeError, ShapeError
from tilegrad.frontend.recording import FLOATS, Type

BOOL = "bool"
INTS = ("uint8", "int8", "int16", "int32", "int64")
UNSIGNED = frozenset({"uint8", "uint16", "uint32", "uint64"})
NAMES = frozenset({BOOL, *INTS, *UNSIGNED, *FLOATS})

_ALIASES = {"float": "float32", "double": "float64", "half": "float16", "int": "int64", "long": "int64"}
_WIDTH = {"float16": 16, "bfloat16": 16, "float32": 32, "float64": 64}


def name_of(dtype: Any) -> str:
    """tilegrad's name of a dtype given as a string, a Python type, NumPy's or PyTorch's. Raises DTypeError."""
    if isinstance(dtype, str):
        name = _ALIASES.get(dtype, dtype)
    elif dtype is float:
        name = "float32"
    elif dtype is int:
        name = "int64"
    elif dtype is bool:
        name = BOOL
    elif str(dtype).startswith("torch."):
        name = str(dtype)[6:]
    else:
        try:
            name = np.dtype(dtype).name
        except (TypeError, ValueError):
            name = str(dtype)
    if name not in NAMES:
        raise DTypeError("dtype", " ".join(repr(dtype).split())[:80], "one of " + ", ".join(sorted(NAMES)))
    return name


def category(dtype: str) -> int:
    """0 bool, 1 whole numbers, 2 floats."""
    return 2 if dtype in FLOATS else 0 if dtype == BOOL else 1


def scalar_dtype(value: bool | int | float, other: str) -> str:
    """The dtype a Python number takes beside an array: the array's unless the number is of a higher kind."""
    kind = 2 if isinstance(value, float) else 0 if isinstance(value, bool) else 1
    if kind <= category(other):
        return other
    return "float32" if kind == 2 else "int64"


def fits(value: bool | int | float, dtype: str) -> bool:
    """Whether a number is among the values of ``dtype``, precision aside."""
    if dtype not in INTS:
        return True
    info = np.iinfo(dtype)
    return info.min <= value <= info.max


def promote(a: Type, b: Type) -> str:
    """PyTorch's result dtype: the higher kind wins; within a kind an array beats a rank-0 value, then the wider wins."""
    ca, cb = category(a.dtype), category(b.dtype)
    if ca != cb:
        return a.dtype if ca > cb else b.dtype
    if bool(a.shape) != bool(b.shape):
        return a.dtype if a.shape else b.dtype
    return wider(a.dtype, b.dtype)


def wider(a: str, b: str) -> str:
    """The smallest dtype of their kind that holds both."""
    if a == b:
        return a
    if category(a) == 2:
        return "float32" if _WIDTH[a] == _WIDTH[b] else max(a, b, key=_WIDTH.__getitem__)
    return np.promote_types(a, b).name


def from_data(data: Any, dtype: str | None) -> tuple[np.ndarray, str]:
    """A new C-contiguous array and its dtype. Python floats become float32, whole numbers int64, as PyTorch's do."""
    try:
        array = np.asarray(data)
    except ValueError as e:
        raise ShapeError("tensor", "nested sequences of different lengths", "a rectangular one") from e
    if dtype is None and not isinstance(data, (np.ndarray, np.generic)):
        if array.dtype == np.float64:
            dtype = "float32"
        elif array.dtype.kind == "i":
            dtype = "int64"
    if array.dtype.kind not in "biuf":
        raise DTypeError("tensor", f"data of dtype {array.dtype}", "numbers or booleans")
    dtype = dtype or name_of(array.dtype)
    return to_storage(array, dtype), dtype


def numpy_name(dtype: str) -> str:
    """NumPy's dtype for tilegrad's; bfloat16 values are kept as their bits in uint16."""
    return "uint16" if dtype == "bfloat16" else dtype


def to_numpy(value: np.ndarray, dtype: str) -> np.ndarray:
    """A copy for the user; bfloat16 is widened to float32."""
    if dtype == "bfloat16":
        return (value.astype(np.uint32) << 16).view(np.float32)
    return value.copy()


def to_storage(value: np.ndarray, dtype: str) -> np.ndarray:
    """A new C-contiguous array in the representation that programs take; bfloat16 is rounded to nearest even."""
    if dtype == "bfloat16":
        bits = np.asarray(value, np.float32, order="C").view(np.uint32)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return np.asarray(np.where(np.isnan(value), 0x7FC0, rounded), np.uint16)
    return np.array(value, dtype=dtype, order="C")
