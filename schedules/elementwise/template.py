"""Elementwise chains and data movement: every stage spatial, all of them in one pass over each output shape."""

from __future__ import annotations

import math as pymath
from collections.abc import Callable

import numpy as np

from tilegrad._base.errors import ScheduleError
from tilegrad._base.target import Target
from tilegrad._base.tvm import te, tirx
from tilegrad.schedules.body import Views
from tilegrad.schedules.elementwise.nest import elementwise_nest
from tilegrad.schedules.finish import element_bytes
from tilegrad.schedules.function import function_of
from tilegrad.schedules.loops import seq
from tilegrad.schedules.stages import Stage, create, id_of, inputs_outputs, stages
from tilegrad.schedules.template import Config, Scheduled, Workload

SHORT_WINDOW = 32
"""Reductions over at most so many elements whose neighbours in memory are neighbours in the output are unrolled."""


class ElementwiseTemplate:
    """Kernels without reductions. ``vector``: registers a vector operation spans; ``tile``: rows of a transposed tile."""

    name = "elementwise/1"

    def match(self, func: tirx.PrimFunc) -> Workload | None:
        """Any kernel of spatial stages, keyed by its parameters' shapes and its function."""
        found = stages(func)
        if found is None or any(s.reduce for s in found):
            return None
        ins, outs = inputs_outputs(func, found)
        sizes = [pymath.prod(int(d) for d in b.shape) * element_bytes(b.dtype) for b in [*ins, *outs]]
        fields = {
            "shapes": [[int(d) for d in b.shape] for b in outs],
            "inputs": [[int(d) for d in b.shape] for b in ins],
            "dtypes": [str(b.dtype) for b in [*ins, *outs]],
            "stages": len(found),
            "function": function_of(found),
        }
        return Workload("elementwise", fields, 0, sum(sizes))

    def space(self, workload: Workload, target: Target) -> list[Config]:
        """All widths and tiles, parallel or not."""
        return [{"vector": v, "tile": t, "parallel": p} for p in (1, 0) for v in (4, 2, 1) for t in (32, 16, 64)]

    def default(self, workload: Workload, target: Target) -> Config:
        """Four registers share each constant and hide latency; of three inputs or more, two registers each are enough.

        A transposed tile's 32 rows are two lines of float32.
        """
        return {"vector": 4 if len(workload.fields["inputs"]) < 3 else 2, "tile": 32, "parallel": 1}

    def apply(self, func: tirx.PrimFunc, config: Config, target: Target) -> Scheduled:
        """One nest for each output shape, in order; a later one reads what an earlier one wrote."""
        found = stages(func)
        if found is None:
            raise ScheduleError("elementwise template", "a kernel that is not made of stages", "a kernel it matched")
        _, outs = inputs_outputs(func, found)
        inlined = {id_of(s.buffer): s for s in found}
        views = Views()
        body: list[tirx.Stmt] = []
        for group in group_by_shape([s for s in found if any(s.buffer.same_as(o) for o in outs)]):
            body += elementwise_nest(group, inlined, views, config, target)
            for stage in group:
                del inlined[id_of(stage.buffer)]
        return Scheduled(tirx.PrimFunc(func.params, seq([*views.statements, *body]), attrs=func.attrs))

    def estimate(self, workload: Workload, config: Config, target: Target) -> float:
        """Traffic at 5 GB/s a thread, plus the start of the threads."""
        threads = target.threads if config["parallel"] else 1
        return workload.bytes / 5e9 / threads + 5e-6 * (threads > 1)

    def features(self, workload: Workload, config: Config, target: Target) -> np.ndarray:
        """log2 of sizes, and the knobs."""
        threads = target.threads if config["parallel"] else 1
        raw = [workload.bytes + 1, workload.fields["stages"], config["vector"], config["tile"], threads]
        return np.append(np.log2(np.array(raw, np.float32)), np.float32(1e6 * self.estimate(workload, config, target)))

    def define(self, workload: Workload) -> tirx.PrimFunc:
        """A sum of the inputs that broadcast to each output's shape: the same traffic, not the same function."""
        dtypes = workload.fields["dtypes"]
        inputs = [
            te.placeholder(s, d, name=f"x{k}") for k, (s, d) in enumerate(zip(workload.fields["inputs"], dtypes, strict=False))
        ]
        outputs = []
        for shape, dtype in zip(workload.fields["shapes"], dtypes[len(inputs) :], strict=True):
            same = [x for x in inputs if list(map(int, x.shape)) == shape]
            outputs.append(te.compute(shape, _total(same, dtype), name="y"))
        return create([*inputs, *outputs])


def _total(tensors: list[te.Tensor], dtype: str) -> Callable[..., tirx.Expr]:
    return lambda *i: sum((x(*i).astype(dtype) for x in tensors), tirx.const(0, dtype))


def group_by_shape(outputs: list[Stage]) -> list[list[Stage]]:
    """Stages that can share a loop nest."""
    groups: dict[tuple[int, ...], list[Stage]] = {}
    for stage in outputs:
        groups.setdefault(stage.shape, []).append(stage)
    return list(groups.values())


TEMPLATE = ElementwiseTemplate()
