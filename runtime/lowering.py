"""TIR passes for kernels whose loops and buffers are already plain: what the templates write.

TVM's default pipeline also simplifies three times, compacts allocations and looks for loop-invariant branches; on
kernels with gathers that is three quarters of their compile time and changes nothing that LLVM does not do as well.
Kernels that still have blocks take the default pipeline.
"""

from __future__ import annotations

from typing import Any

NAME = "tilegrad"
WITH_LETS = "tilegrad.with_lets"
"""For kernels with ``Let`` expressions: TVM's elimination of common subexpressions puts the definition of one that
stands in a ``Let`` behind its first use. LLVM eliminates them in any case."""


def pipeline_for(func: Any) -> str:
    """The name of the TIR pipeline for one kernel, registered with TVM when first asked for."""
    from tilegrad._base.tvm import s_tir, tirx, tvm_ffi

    blocks: list[Any] = []
    lets: list[Any] = []
    tvm_ffi.structural_walk(func.body, [(s_tir.SBlockRealize, blocks.append), (tirx.Let, lets.append)])
    return "default" if blocks else _registered(WITH_LETS if lets else NAME)


def _registered(name: str) -> str:
    from tvm.tirx import compilation_pipeline

    if name not in compilation_pipeline.PIPELINE_MAP:
        compilation_pipeline.register_tir_pipeline(name, lambda: _factory(common_subexpressions=name == NAME))
    return name


def _factory(common_subexpressions: bool) -> tuple[Any, Any, Any]:
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
        *([t.CommonSubexprElim()] if common_subexpressions else []),
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
