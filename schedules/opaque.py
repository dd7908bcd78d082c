"""The last template: any kernel, compiled as it stands, with its loops parallelised where TVM proves that safe."""

from __future__ import annotations

import numpy as np

from tilegrad._base.errors import ScheduleError
from tilegrad._base.target import Target
from tilegrad._base.tvm import s_tir, tirx, tvm, tvm_ffi
from tilegrad.schedules.finish import element_bytes
from tilegrad.schedules.template import Config, Scheduled, Workload

_MIN_PARALLEL = 1 << 14  # iterations of a loop nest below which starting the threads costs more than it saves


class OpaqueTemplate:
    """Matches always. Correct rather than fast: what no other template understands (scans, sorts by loops)."""

    name = "opaque/1"

    def match(self, func: tirx.PrimFunc) -> Workload:
        """A workload named by the kernel's structural hash: it cannot be described further."""
        digest = f"{tvm_ffi.structural_hash(func.without_attr('global_symbol')) & (2**64 - 1):016x}"
        sizes = [int(np.prod([int(d) for d in p.shape], dtype=np.int64)) * element_bytes(p.dtype) for p in func.params]
        return Workload("opaque", {"hash": digest}, 0, sum(sizes))

    def space(self, workload: Workload, target: Target) -> list[Config]:
        """Parallel or not."""
        return [{"parallel": 1}, {"parallel": 0}]

    def default(self, workload: Workload, target: Target) -> Config:
        """Parallel where legal and large enough."""
        return {"parallel": int(target.threads > 1)}

    def apply(self, func: tirx.PrimFunc, config: Config, target: Target) -> Scheduled:
        """Parallelise the outer loop of each block for which the schedule's own checks allow it."""
        if not config["parallel"]:
            return Scheduled(func)
        return Scheduled(_parallelise(func))

    def estimate(self, workload: Workload, config: Config, target: Target) -> float:
        """Traffic at 4 GB/s."""
        return workload.bytes / 4e9 / (target.threads if config["parallel"] else 1)

    def features(self, workload: Workload, config: Config, target: Target) -> np.ndarray:
        """log2 of bytes and threads."""
        return np.log2(np.array([workload.bytes + 1, config["parallel"] * target.threads + 1], np.float32))

    def define(self, workload: Workload) -> tirx.PrimFunc:
        """Impossible: the workload is only a hash."""
        raise ScheduleError(
            "opaque kernel", "a workload alone", "the kernel itself", "An opaque kernel cannot be tuned from a log."
        )


def _parallelise(func: tirx.PrimFunc) -> tirx.PrimFunc:
    sch = s_tir.Schedule(tvm.IRModule({"main": func.without_attr("global_symbol")}), error_render_level="none")
    try:
        blocks = sch.get_child_blocks(sch.get_sblock("root"))
    except (ValueError, s_tir.ScheduleError, tvm.error.InternalError):
        return func
    for block in blocks:
        loops = sch.get_loops(block)
        extents = [sch.get(loop).extent for loop in loops]
        if not loops or not all(isinstance(e, tirx.IntImm) for e in extents):
            continue
        if np.prod([int(e.value) for e in extents]) >= _MIN_PARALLEL and int(extents[0].value) > 1:
            try:
                sch.parallel(loops[0])
            except s_tir.ScheduleError:  # not provably data-parallel
                continue
    return sch.mod["main"]
