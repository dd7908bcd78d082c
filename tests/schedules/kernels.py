"""Compile one scheduled kernel and run it on arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilegrad import schedules
from tilegrad._base.target import Target
from tilegrad._base.tvm import te, tirx, tvm
from tilegrad.runtime.lowering import pipeline_for
from tilegrad.schedules.stages import create

TARGET = Target.native(2)


class Kernel:
    """A TE kernel through its template; ``k(*inputs)`` returns its outputs. Buffers start as garbage."""

    def __init__(self, inputs: list[te.Tensor], *outputs: te.Tensor, config: Any = None, target: Target = TARGET) -> None:
        self.func: tirx.PrimFunc = create([*inputs, *outputs])
        self.template, self.workload = schedules.task_of(self.func)
        self.done = schedules.schedule(self.func, target, config)
        self._count = len(inputs)
        module = tvm.IRModule({"main": self.done.func.with_attr("global_symbol", "main")})
        module = tvm.compile(module, target.tvm, tir_pipeline=pipeline_for(self.done.func))
        self.assembly = module.mod.inspect_source("asm")
        self._run = module["main"]

    def __call__(self, *arrays: Any) -> Any:
        outs = [np.full([int(d) for d in p.shape], 7).astype(str(p.dtype)) for p in self.func.params[self._count :]]
        args = [tvm.runtime.tensor(np.asarray(a, order="C")) for a in [*arrays, *outs]]
        if self.done.scratch_bytes:
            args.append(tvm.runtime.tensor(np.full(self.done.scratch_bytes, 255, "uint8")))
        self._run(*args)
        results = [a.numpy() for a in args[self._count : self._count + len(outs)]]
        return results[0] if len(results) == 1 else results


def tensor(*shape: int, dtype: str = "float32", name: str = "x") -> te.Tensor:
    """An input."""
    return te.placeholder(shape, dtype, name=name)


def normal(*shape: int, seed: int = 0, dtype: str = "float32") -> np.ndarray:
    """Standard normal numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)
