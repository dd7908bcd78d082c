"""TIR passes for kernels whose loops and buffers are already plain: what the templates write.

TVM's default pipeline also simplifies three times, compacts allocations and looks for loop-invariant branches; on
kernels with gathers that is three quarters of their compile time and changes nothing that LLVM does not do as well.
Kernels that still have blocks take the default pipeline.
"""

from __future__ import annotations

from typing import Any

NAME = "tilegrad"


def pipeline_for(func: Any) -> str:
    """The name of the TIR pipeline for one kernel, registered with TVM when first asked for."""
    from tilegrad._base.tvm import s_tir, tvm_ffi

    blocks: list[Any] = []
    tvm_ffi.structural_walk(func.body, (s_tir.SBlockRealize, lambda b: blocks.append(b)))
    return "default" if blocks else _registered()


def _registered() -> str:
    from tvm.tirx import compilation_pipeline

    if NAME not in compilation_pipeline.PIPELINE_MAP:
        compilation_pipeline.register_tir_pipeline(NAME, _factory)
    return NAME


def _factory() -> tuple[Any, Any, Any]:
    from tvm.tirx import compilation_pipeline

    from tilegrad._base.tvm import s_tir, tirx, tvm

    t = tirx.transform
    passes = [
        t.FlattenBuffer(),
        t.BF16ComputeLegalize(),
        t.NarrowDataType(32),
        t.VectorizeLoop(True),
        t.StorageRewrite(),
        t.UnrollLoop(),
        t.StmtSimplify(),
        s_tir.transform.RewriteUnsafeSelect(),
        t.CommonSubexprElim(),
        t.VerifyMemory(),
        t.AnnotateEntryFunc(),
        t.SplitHostDevice(),
        t.MakePackedAPI(),
        t.BF16StorageLegalize(),
    ]
    return (
        tvm.transform.Sequential(passes),
        compilation_pipeline.finalize_host_passes,
        compilation_pipeline.finalize_device_passes,
    )
