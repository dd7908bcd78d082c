"""Program: an ordered list of kernel calls over planned buffers. The border between graph and library.

Nothing here needs TVM: a kernel's body is an opaque value that only the rooms above look into.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

Role = Literal["input", "state", "hyper", "output", "const", "temp", "view", "batch"]


@dataclass(frozen=True)
class Buffer:
    """One array of the program.

    role:
      input   given by the caller at each call, never written
      state   parameter or optimizer state: owned by the context unless the caller binds its own;
              read, and written in place by updates
      hyper   a state that only the caller changes (learning rate, ...)
      output  written for the caller
      const   ``data``, baked into the library
      temp    lives in the arena at byte ``offset``
      view    the memory of buffer ``view_of`` (not itself a view) under another shape of the same size; of a temporary also
              a part of it, from byte ``offset``
      batch   int64[1]: how many rows the caller gave to an entry that takes any number
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: Role
    offset: int | None = None
    data: np.ndarray | None = field(default=None, compare=False)
    view_of: str | None = None
    limits: tuple[int, int, int] | None = None
    """Of an input of whole numbers: smallest, largest, and one more that is allowed; a call refuses any other."""

    @property
    def nbytes(self) -> int:
        """Size in bytes (bool counts one byte an element)."""
        return math.prod(self.shape) * np.dtype(numpy_dtype(self.dtype)).itemsize


@dataclass(frozen=True)
class ByRows:
    """How a call goes through the rows of a batch: its kernel takes ``rows`` of them at once, the kernel ``single`` one.

    row_bytes: of every argument, from one row to the next; 0 for what is the same for every row. parts: the batch is divided
    into so many, done at once by serial kernels; 1: the kernels themselves use the threads.
    """

    single: str
    rows: int
    row_bytes: tuple[int, ...]
    parts: int


@dataclass(frozen=True)
class Call:
    """``kernels[kernel](*args)``: buffer names in the kernel's parameter order, inputs then outputs."""

    kernel: str
    args: tuple[str, ...]
    num_outputs: int = 1
    by_rows: ByRows | None = None


@dataclass(frozen=True)
class Program:
    """Kernel calls in order, with every buffer they touch.

    ``ports`` are the names that a caller sees, in the order of the entry's argument array:
    inputs, states, hypers, outputs. ``arena_bytes`` holds the temporaries; kernels' scratch is
    added by the build, which knows the configs. ``kernels`` maps a content-addressed name to the
    kernel (a ``tvm.tirx.PrimFunc``, unscheduled).
    """

    name: str
    ports: tuple[str, ...]
    buffers: Mapping[str, Buffer]
    calls: tuple[Call, ...]
    kernels: Mapping[str, Any]
    arena_bytes: int = 0
    batch: int = 0
    """The most rows that it takes, where it takes any number of them from 1 on; 0 for a program of fixed shapes."""

    def text(self) -> str:
        """The program for a person: ports, then one line a call with shapes and offsets."""

        def show(name: str) -> str:
            b = self.buffers[name]
            place = (
                f"@{b.offset}"
                if b.role == "temp"
                else f"={b.view_of}{f'+{b.offset}' if b.offset else ''}"
                if b.view_of
                else f":{b.role}"
            )
            return f"%{name}{place} {b.dtype}[{','.join(map(str, b.shape))}]"

        lines = [f"program {self.name}  # arena {self.arena_bytes} bytes, {len(self.kernels)} kernels"]
        lines += [f"  port {show(p)}" for p in self.ports]
        for c in self.calls:
            ins, outs = c.args[: len(c.args) - c.num_outputs], c.args[len(c.args) - c.num_outputs :]
            lines.append(f"  {', '.join(map(show, outs))} = {c.kernel}({', '.join('%' + a for a in ins)})")
        return "\n".join(lines) + "\n"


RANDOM = "tilegrad.random"
"""Name of the state of random operators: int64[2], the seed and the number of draws so far."""

_NUMPY = {"bool": "bool", "bfloat16": "uint16"}


def numpy_dtype(dtype: str) -> str:
    """NumPy's name for a tilegrad dtype; bfloat16 travels as its bits in uint16."""
    return _NUMPY.get(dtype, dtype)
