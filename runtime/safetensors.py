"""Arrays on disk in the safetensors format, with NumPy alone: 8 bytes of header length, a JSON header, the arrays."""

from __future__ import annotations

import itertools
import json
import math
import mmap
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tilegrad._base.errors import LibraryError
from tilegrad.runtime.files import write

_TYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "BOOL": "bool",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8",
    "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8",
}  # fmt: skip
_NAMES = {v: k for k, v in _TYPES.items()}


def save(path: Path, arrays: Mapping[str, np.ndarray], dtypes: Mapping[str, str] | None = None) -> None:
    """Write ``arrays``; a file of that name is replaced at once when the new one is complete.

    ``dtypes`` names a type that NumPy does not show: "bfloat16" for its bits in uint16. Raises LibraryError when the
    file cannot be written.
    """
    header: dict[str, Any] = {}
    at = 0
    for name, array in arrays.items():
        dtype = (dtypes or {}).get(name, str(array.dtype))
        header[name] = {"dtype": _NAMES[dtype], "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    try:
        write(
            path,
            itertools.chain(
                [len(text).to_bytes(8, "little") + text], (np.ascontiguousarray(a).tobytes() for a in arrays.values())
            ),
        )
    except OSError as e:
        raise LibraryError(f"checkpoint {path}", str(e), "a file that can be written") from e


def load(path: Path, names: Container[str] | None = None) -> dict[str, np.ndarray]:
    """Read every array, or those of ``names`` (bfloat16 as its bits in uint16). Raises LibraryError for a missing or bad file."""
    try:
        data = path.read_bytes()
    except OSError as e:
        raise LibraryError(f"checkpoint {path}", str(e), "a safetensors file") from e
    return {name: array.copy() for name, array in parse(data, path, names).items()}


def parse(data: bytes | mmap.mmap, path: Path, names: Container[str] | None = None) -> dict[str, np.ndarray]:
    """The arrays of a file's content, or those of ``names``, as read-only views; ``path`` is for the error of a damaged one."""
    try:
        n = int.from_bytes(data[:8], "little")
        if n > len(data) - 8:
            raise ValueError("it is shorter than its header says")
        header = json.loads(data[8 : 8 + n])
        header.pop("__metadata__", None)
        return {name: _array(data, 8 + n, info) for name, info in header.items() if names is None or name in names}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise LibraryError(f"checkpoint {path}", f"a damaged file: {e}", "a safetensors file") from e


def _array(data: bytes | mmap.mmap, start: int, info: Mapping[str, Any]) -> np.ndarray:
    dtype = np.dtype("uint16" if info["dtype"] == "BF16" else _TYPES[info["dtype"]])
    first, last = info["data_offsets"]
    shape = tuple(info["shape"])
    if not 0 <= first <= last <= len(data) - start or last - first != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"offsets {first} to {last} for {info['dtype']}{list(shape)}")
    return np.frombuffer(data, np.uint8, last - first, start + first).view(dtype).reshape(shape)
