"""Arrays to the pointers of a C call: checks that name the port, what came and what was expected. Copies nothing."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from tilegrad._base.errors import DTypeError, ShapeError, UsageError
from tilegrad.runtime.arrays import address, empty
from tilegrad.runtime.manifest import Port
from tilegrad.runtime.program import numpy_dtype

LARGE = 1 << 14
"""Bytes from which on the place of an output in memory matters."""


class Binder:
    """Checks and binds the arguments of one entry."""

    def __init__(self, entry: str, ports: tuple[Port, ...]) -> None:
        self.entry = entry
        self.ports = ports
        self._slots = [
            (i, p, p.name, p.shape, np.dtype(numpy_dtype(p.dtype)), p.role in ("state", "hyper"), p.role == "output", p.written)
            for i, p in enumerate(ports)
        ]
        self._array = ctypes.c_void_p * len(ports)

    def bind(self, args: Mapping[str, Any]) -> tuple[Any, dict[str, np.ndarray], list[np.ndarray]]:
        """(argument array for C, outputs by name, every array that must outlive the call)."""
        pointers, outputs, keep = self._array(), {}, []
        used, given_for_writing = 0, False
        for i, port, name, shape, dtype, owned, output, written in self._slots:
            array = args.get(name)
            if array is None:
                if owned:
                    continue
                if not output:
                    raise UsageError(f"entry '{self.entry}'", f"no {name!r} among {sorted(args)}", f"an array for {port}")
                array = _empty(shape, dtype)
            else:
                used += 1
                if type(array) is not np.ndarray:
                    array = self._as_array(port, array, dtype)
                if array.dtype != dtype or array.shape != shape:
                    array = self._checked_type(port, array, dtype)
                flags = array.flags
                if not (flags.carray if written else flags.c_contiguous and flags.aligned):
                    raise self._layout_error(port, array)
                given_for_writing |= written
            if output:
                outputs[name] = array
            keep.append(array)
            pointers[i] = address(array)
        if used != len(args):
            self._check_names(args)
        if given_for_writing:
            self._check_overlap(pointers)
        return pointers, outputs, keep

    def _where(self, port: Port) -> str:
        return f"entry '{self.entry}', {port.role} '{port.name}'"

    def _as_array(self, port: Port, value: Any, dtype: np.dtype) -> np.ndarray:
        if isinstance(value, np.ndarray):
            return value
        if isinstance(value, np.generic) and not port.written:
            return np.asarray(value)
        if isinstance(value, (int, float)) and port.role == "hyper" and port.shape == ():
            return np.array(value, dtype)
        if hasattr(value, "__dlpack__"):
            try:
                return np.from_dlpack(value)
            except (BufferError, RuntimeError, TypeError, ValueError) as e:
                raise UsageError(
                    self._where(port), f"{type(value).__name__} that DLPack does not give to the CPU: {e}", "a CPU array"
                ) from e
        raise UsageError(
            self._where(port), type(value).__name__, "a NumPy array (or an object with __dlpack__)", "Use numpy.asarray."
        )

    def _checked_type(self, port: Port, array: np.ndarray, dtype: np.dtype) -> np.ndarray:
        if array.shape != port.shape:
            raise ShapeError(self._where(port), f"shape {array.shape}", f"{port.shape}")
        if port.dtype == "bfloat16" and array.dtype.name == "bfloat16":
            return array.view(np.uint16)
        expected = "bfloat16 (or its bits as uint16)" if port.dtype == "bfloat16" else port.dtype
        raise DTypeError(self._where(port), f"dtype {array.dtype}", expected, f"Convert with array.astype('{dtype}').")

    def _layout_error(self, port: Port, array: np.ndarray) -> UsageError:
        if not array.flags.c_contiguous:
            got, expected, hint = f"strides {array.strides}", "a C-contiguous array", "Use numpy.ascontiguousarray."
        elif not array.flags.aligned:
            got, expected, hint = (
                f"data not aligned to {array.itemsize} bytes",
                "data aligned to its elements",
                "Make a copy of the array.",
            )
        else:
            got, expected, hint = "a read-only array", "a writeable one, because the entry writes it", ""
        return UsageError(self._where(port), got, expected, hint)

    def _check_names(self, args: Mapping[str, Any]) -> None:
        known = {p.name for p in self.ports}
        if unknown := [n for n, v in args.items() if n not in known and v is not None]:
            raise UsageError(
                f"entry '{self.entry}'", f"unknown {', '.join(map(repr, unknown))}", f"names among {', '.join(sorted(known))}"
            )

    def _check_overlap(self, pointers: Any) -> None:
        """No array that the entry writes may share memory with another argument."""
        spans = sorted(
            (start, start + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize, i)
            for i, _, _, shape, dtype, *_ in self._slots
            if (start := pointers[i])
        )
        end, before = 0, 0
        for start, stop, i in spans:
            if start < end and (self.ports[i].written or self.ports[before].written):
                raise UsageError(
                    self._where(self.ports[i]), f"memory that '{self.ports[before].name}' uses too", "arrays that do not overlap"
                )
            if stop > end:
                end, before = stop, i


def _empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """A new array; a large one starts at a cache line."""
    return empty(shape, dtype) if prod(shape) * dtype.itemsize >= LARGE else np.empty(shape, dtype)
