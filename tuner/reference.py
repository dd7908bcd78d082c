"""The reference result of a kernel: its unscheduled body in float64, run by TVM itself, away from every template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tilegrad._base.target import Target
from tilegrad._base.tvm import ir, s_tir, tirx, tvm
from tilegrad.tuner.check import inputs, widen

_SPATIAL, _REDUCE = 0, 2
MOST_NAN = 0.01
"""Inputs that give more NaN than this (a logarithm of negative numbers) are replaced by positive ones."""


def in_float64(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The same kernel with every floating-point type replaced by float64."""
    text = ir.save_json(func)
    for dtype in ("float32", "float16", "bfloat16"):
        text = text.replace(f'"{dtype}"', '"float64"')
    return ir.load_json(text)


def write(func: tirx.PrimFunc, num_outputs: int, path: Path, seed: int = 0) -> None:
    """Write an NPZ of seeded inputs (``in0``, ...) and float64 results (``out0``, ...) of ``func``."""
    described = [(tuple(int(d) for d in p.shape), str(p.dtype)) for p in func.params]
    run = _compile(in_float64(func))
    for positive in (False, True):
        given = inputs(described[: len(described) - num_outputs], seed, positive)
        arrays = [widen(x, dtype) for x, (_, dtype) in zip(given, described, strict=False)]
        arrays += [np.zeros(s, "float64" if "float" in d else d) for s, d in described[len(described) - num_outputs :]]
        tensors = [tvm.runtime.tensor(x) for x in arrays]
        run(*tensors)
        results = [t.numpy() for t in tensors[len(tensors) - num_outputs :]]
        if all(np.isnan(r).mean() <= MOST_NAN for r in results if r.dtype.kind == "f" and r.size):
            break
    named = {f"in{i}": x for i, x in enumerate(given)} | {f"out{i}": x for i, x in enumerate(results)}
    np.savez(path, **named)


def _compile(func: tirx.PrimFunc) -> Any:
    func = _arrange(func).with_attr("global_symbol", "main")
    return tvm.compile(tvm.IRModule({"main": func}), target=Target.native().tvm)["main"]


def _arrange(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Parallel outside, reductions in the middle, one spatial loop inside: fast enough, and still plain loops."""
    sch = s_tir.Schedule(tvm.IRModule({"main": func.without_attr("global_symbol")}), error_render_level="none")
    try:
        for block in sch.get_child_blocks(sch.get_sblock("root")):
            kinds = [int(v.iter_type) for v in sch.get(block).iter_vars]
            loops = sch.get_loops(block)
            if len(loops) != len(kinds) or not loops:
                continue
            spatial = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == _SPATIAL]
            reduce = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == _REDUCE]
            if len(spatial) > 1 and len(spatial) + len(reduce) == len(loops):
                sch.reorder(*spatial[:-1], *reduce, spatial[-1])
                sch.parallel(spatial[0])
                if reduce:
                    sch.decompose_reduction(block, reduce[0])
    except Exception:  # any primitive may refuse any block; plain loops are only slower
        return func
    return sch.mod["main"]
