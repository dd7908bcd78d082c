"""Runs a Program kernel by kernel with NumPy buffers and TVM's own unscheduled code: an oracle for planning."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from tilegrad._base.tvm import tvm
from tilegrad.runtime.program import Program


def run(program: Program, args: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Buffers by name after one run; states come back changed, ``args`` stay as they are."""
    kernels = tvm.compile(
        tvm.IRModule({name: f.with_attr("global_symbol", name) for name, f in program.kernels.items()}),
        target={"kind": "llvm", "opt-level": 0},
    )
    arena = np.full(program.arena_bytes, 0xFF, "uint8")  # NaNs: reading what was not written shows
    values: dict[str, np.ndarray] = {}
    for name, b in program.buffers.items():
        if b.role == "temp":
            values[name] = arena[b.offset : b.offset + b.nbytes].view(b.dtype).reshape(b.shape)
        elif b.role == "const":
            values[name] = b.data
        elif b.role != "view":
            values[name] = np.zeros(b.shape, b.dtype) if b.role == "output" else np.array(args[name], b.dtype)
    for name, b in program.buffers.items():
        if b.view_of is not None:
            start = (b.offset or 0) // np.dtype(b.dtype).itemsize
            values[name] = values[b.view_of].reshape(-1)[start : start + math.prod(b.shape)].reshape(b.shape)
    for call in program.calls:
        tensors = [tvm.runtime.tensor(values[a].copy()) for a in call.args]
        kernels[call.kernel](*tensors)
        for name, t in list(zip(call.args, tensors, strict=True))[-call.num_outputs :]:
            values[name][...] = t.numpy()
    return values
