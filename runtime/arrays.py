"""Where arrays lie in memory: at cache lines, as planned buffers do and NumPy's own do not, so that no vector crosses one."""

from __future__ import annotations

import ctypes
from math import prod

import numpy as np

LINE = 64
"""Bytes of a cache line."""


def address(array: np.ndarray) -> int:
    """Where the array's data lies."""
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(array))  # type: ignore[arg-type]
    except (TypeError, ValueError, BufferError):  # read-only or empty arrays: slower
        return array.ctypes.data


def empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """A new row-major array that starts at a line; its contents are arbitrary."""
    size = prod(shape) * dtype.itemsize
    memory = np.empty(size + LINE, np.uint8)
    start = -address(memory) % LINE
    return memory[start : start + size].view(dtype).reshape(shape)


def aligned(array: np.ndarray) -> np.ndarray:
    """A row-major copy that starts at a line."""
    out = empty(array.shape, array.dtype)
    out[...] = array
    return out
