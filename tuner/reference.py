"""The reference result of a kernel: its unscheduled body in float64, away from every template.

Large sums of products are NumPy's (``products.py``); all else is plain loops that TVM compiles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from tilegrad._base.target import Target
from tilegrad._base.tvm import ir, s_tir, tirx, tvm
from tilegrad.schedules.stages import Stage, id_of, loads, stages
from tilegrad.tuner.check import inputs, widen
from tilegrad.tuner.products import WORTH, Product, product_of

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
    run = runner(in_float64(func))
    for positive in (False, True):
        given = inputs(described[: len(described) - num_outputs], seed, positive)
        arrays = [widen(x, dtype) for x, (_, dtype) in zip(given, described, strict=False)]
        arrays += [np.zeros(s, "float64" if "float" in d else d) for s, d in described[len(described) - num_outputs :]]
        results = run(arrays)[len(arrays) - num_outputs :]
        if all(np.isnan(r).mean() <= MOST_NAN for r in results if r.dtype.kind == "f" and r.size):
            break
    named: dict[str, Any] = {f"in{i}": x for i, x in enumerate(given)} | {f"out{i}": x for i, x in enumerate(results)}
    np.savez(path, **named)


def runner(func: tirx.PrimFunc, least: int = WORTH) -> Callable[[Sequence[np.ndarray]], list[np.ndarray]]:
    """``func`` as a function from the arrays of all its parameters to their values after it.

    Sums of ``least`` products or more are NumPy's.
    """
    steps = [(step, step.layout() if isinstance(step, Product) else step) for step in _steps(func, least)]
    ready = [(step, loops.params, _compile(loops)) for step, loops in steps]

    def run(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        values = dict(zip(map(id_of, func.params), arrays, strict=True))
        for step, params, call in ready:
            known = map(id_of, step.reads if isinstance(step, Product) else params)
            given = [values[i] if i in values else _empty(p) for i, p in zip_longest(known, params)]
            found = call(given)
            if isinstance(step, Product):
                values[id_of(step.stage.buffer)] = step.result(*found[-2:])
            else:
                values |= zip(map(id_of, params), found, strict=True)
        return [values[id_of(p)] for p in func.params]

    return run


def _steps(func: tirx.PrimFunc, least: int) -> list[tirx.PrimFunc | Product]:
    """``func`` cut at its large sums of products; itself where there are none."""
    found = stages(func)
    body = func.body.block.body if isinstance(func.body, s_tir.SBlockRealize) else func.body
    nests = list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
    if found is None or len(found) != len(nests):
        return [func]
    out: list[tirx.PrimFunc | Product] = []
    loops: list[tuple[Any, Stage]] = []
    for nest, stage in zip(nests, found, strict=True):
        product = product_of(stage, least)
        if product is None:
            loops.append((nest, stage))
            continue
        out += [_kernel(loops)] if loops else []
        out.append(product)
        loops = []
    if not out:
        return [func]
    return [*out, _kernel(loops)] if loops else out


def _kernel(parts: Sequence[tuple[Any, Stage]]) -> tirx.PrimFunc:
    """Some of a kernel's loop nests as a kernel of its own, whose parameters are all the buffers they touch."""
    touched = [b for _, s in parts for b in (*(r.source for r in loads(s.body)), s.buffer)]
    params = list({id_of(b): b for b in touched}.values())
    body = tirx.SeqStmt([nest for nest, _ in parts]) if len(parts) > 1 else parts[0][0]
    root = s_tir.SBlock([], [], [], "root", body)
    return tirx.PrimFunc(params, s_tir.SBlockRealize([], True, root)).with_attr("s_tir", True)


def _empty(param: Any) -> np.ndarray:
    return np.empty([int(d) for d in param.shape], str(param.dtype))


def _compile(func: tirx.PrimFunc) -> Callable[[Sequence[np.ndarray]], list[np.ndarray]]:
    """Plain loops as a function from the arrays of all parameters to their values after it."""
    func = _arrange(func).with_attr("global_symbol", "main")
    call = tvm.compile(tvm.IRModule({"main": func}), target=Target.native().tvm)["main"]

    def run(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        tensors = [tvm.runtime.tensor(x) for x in arrays]
        call(*tensors)
        return [t.numpy() for t in tensors]

    return run


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
