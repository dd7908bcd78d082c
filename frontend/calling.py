"""A library's entry bound to arrays once, so that a call costs microseconds of Python."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilegrad._base.errors import DTypeError, ShapeError, UsageError
from tilegrad.runtime.binding import address
from tilegrad.runtime.library import Context
from tilegrad.runtime.program import numpy_dtype


class BoundEntry:
    """``call(*inputs)`` runs the entry on the inputs and on the states and hyperparameters it was bound to."""

    def __init__(self, context: Context, entry: str, bound: Mapping[str, np.ndarray], batch: int | None = None) -> None:
        self.context, self.entry, self._bound = context, entry, dict(bound)
        ports = context.library.ports(entry, batch)
        self._call = context.caller(entry, batch)
        self._pointers = (ctypes.c_void_p * len(ports))()
        self.inputs = [(i, p.name, p.shape, np.dtype(numpy_dtype(p.dtype))) for i, p in enumerate(ports) if p.role == "input"]
        self.outputs = [(i, p.name, p.shape, np.dtype(numpy_dtype(p.dtype))) for i, p in enumerate(ports) if p.role == "output"]
        for i, p in enumerate(ports):
            if p.role in ("state", "hyper"):
                self._pointers[i] = address(self._bound[p.name])

    def __call__(self, *arrays: Any) -> list[np.ndarray]:
        """The outputs, newly allocated. Raises UsageError, ShapeError or DTypeError for inputs that do not fit."""
        if len(arrays) != len(self.inputs):
            names = ", ".join(n for _, n, _, _ in self.inputs)
            raise UsageError(f"entry '{self.entry}'", f"{len(arrays)} inputs", f"{len(self.inputs)}: {names}")
        pointers, keep = self._pointers, []
        for (i, name, shape, dtype), a in zip(self.inputs, arrays, strict=True):
            if a.__class__ is not np.ndarray or a.dtype != dtype or a.shape != shape or not a.flags.carray:
                a = self._checked(name, shape, dtype, a)
            keep.append(a)
            pointers[i] = address(a)
        results = []
        for i, _, shape, dtype in self.outputs:
            out = np.empty(shape, dtype)
            results.append(out)
            pointers[i] = address(out)
        self._call(pointers)
        return results

    def _checked(self, name: str, shape: Sequence[int], dtype: np.dtype, value: Any) -> np.ndarray:
        a = as_array(value)
        where = f"entry '{self.entry}', input '{name}'"
        if a.shape != tuple(shape):
            raise ShapeError(where, f"shape {a.shape}", f"{tuple(shape)}")
        if a.dtype != dtype:
            raise DTypeError(where, f"dtype {a.dtype}", f"{dtype}", f"Convert with array.astype('{dtype}').")
        return np.require(a, requirements=["C", "A"])

    def arguments(self, arrays: Sequence[Any]) -> dict[str, np.ndarray]:
        """Every argument by port name, for the context's own ``run``, ``benchmark`` and ``profile``."""
        given = {name: self._checked(name, s, d, a) for (_, name, s, d), a in zip(self.inputs, arrays, strict=True)}
        wanted = {p.name for p in self.context.library.ports(self.entry)}
        return given | {n: a for n, a in self._bound.items() if n in wanted}


def as_array(value: Any) -> np.ndarray:
    """A NumPy array of an array, Tensor, PyTorch tensor or nested sequence."""
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "detach") and hasattr(value, "cpu"):
        return value.detach().cpu().numpy()
    return value.numpy() if hasattr(value, "_node") else np.asarray(value)
