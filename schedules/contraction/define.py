"""Kernels from workloads: what a shipped log names can be rebuilt and measured without its model."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tilegrad._base.errors import ScheduleError
from tilegrad._base.tvm import te, tirx
from tilegrad.schedules.stages import create
from tilegrad.schedules.te.conv import conv, conv_by_data, conv_by_weight
from tilegrad.schedules.te.matmul import accumulator, cast, dims
from tilegrad.schedules.template import Workload

_LONG = {"f": "float", "bf": "bfloat", "i": "int", "u": "uint", "b": "bool"}
_UNARY: dict[str, Callable[[Any], Any]] = {
    "relu": lambda x: tirx.max(x, tirx.const(0, x.ty.dtype)),
    "tanh": tirx.tanh,
    "sigmoid": tirx.sigmoid,
    "exp": tirx.exp,
    "negative": lambda x: -x,
}
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, y: x + y,
    "subtract": lambda x, y: y - x,
    "multiply": lambda x, y: x * y,
    "divide": lambda x, y: x / y,
    "maximum": tirx.max,
    "minimum": tirx.min,
}


def define(workload: Workload) -> tirx.PrimFunc:
    """The unscheduled kernel. Raises ScheduleError for a workload that its key does not determine (computed operands)."""
    f = workload.fields
    if "geometry" in f:
        inputs, out = _convolution(workload.op, f)
    elif f["layout"].strip("NT") or "prologue" in f or int(f.get("segments", 1)) > 1:
        raise ScheduleError("contraction define", f"layout {f['layout']!r} of {workload.op}", "plain matrices or a convolution")
    else:
        inputs, out = _matmul(workload.op, f)
    for name in filter(None, f["epilogue"].split(",")):
        if name != "cast":
            inputs, out = _epilogue(name, inputs, out, workload)
    return create([*inputs, cast(out, long(f["dtypes"][2]))])


def long(short: str) -> str:
    """float32 for f32 and so on."""
    match = re.fullmatch(r"([a-z]+)(\d+)", short)
    if match is None or match[1] not in _LONG:
        raise ScheduleError("contraction define", f"element type {short!r}", "f32, f64, f16, bf16, i8, u8, i32")
    return "bool" if match[1] == "b" else _LONG[match[1]] + match[2]


def _matmul(op: str, f: Any) -> tuple[list[te.Tensor], te.Tensor]:
    b, m, n, k = (int(f[x]) for x in ("batch", "m", "n", "k"))
    lead = (b,) if b > 1 else ()
    a = te.placeholder((*lead, *((m, k) if f["layout"][0] == "N" else (k, m))), long(f["dtypes"][0]), "a")
    w = te.placeholder((*lead, *((k, n) if f["layout"][1] == "N" else (n, k))), long(f["dtypes"][1]), "b")
    acc = accumulator(str(a.dtype))
    axis = te.reduce_axis((0, k), "k")

    def product(*index: Any) -> Any:
        *z, i, j = index
        x = a(*z, i, axis) if f["layout"][0] == "N" else a(*z, axis, i)
        y = w(*z, axis, j) if f["layout"][1] == "N" else w(*z, j, axis)
        return te.sum(x.astype(acc) * y.astype(acc), axis=axis)

    return [a, w], te.compute((*lead, m, n), product, name=op)


def _convolution(op: str, f: Any) -> tuple[list[te.Tensor], te.Tensor]:
    g = {k: v for k, v in (item.split("=") for item in f["geometry"].split())}
    shape = {k: tuple(map(int, g[k].split("x"))) for k in ("x", "w", "y")}
    pads = [tuple(map(int, p.split(":"))) for p in g["pad"].split(",")]
    args = (tuple(map(int, g["stride"].split(","))), pads, tuple(map(int, g["dilation"].split(","))), int(g["groups"]))
    dtype = long(f["dtypes"][0])
    x, w, y = (te.placeholder(shape[k], dtype, k) for k in ("x", "w", "y"))
    if op.endswith("_by_data"):
        return [y, w], conv_by_data(y, w, shape["x"], *args)
    if op.endswith("_by_weight"):
        return [y, x], conv_by_weight(y, x, shape["w"], *args)
    return [x, w], conv(x, w, *args)


def _epilogue(name: str, inputs: list[te.Tensor], out: te.Tensor, workload: Workload) -> tuple[list[te.Tensor], te.Tensor]:
    match = re.fullmatch(r"(\w+)(?:\[([bmn1 ]+)\])?", name)
    stage, operands = (match[1], (match[2] or "").split()) if match else (name, [])
    if stage in _UNARY and not operands:
        return inputs, te.compute(out.shape, lambda *i: _UNARY[stage](out(*i)), name=stage)
    if stage in _BINARY and len(operands) == 1:
        axes = _axes_of(operands[0], len(out.shape), "geometry" in workload.fields, int(workload.fields["batch"]) > 1)
        other = te.placeholder(tuple(dims(out)[a] for a in axes), out.dtype, f"e{len(inputs)}")
        body = _BINARY[stage]
        return [*inputs, other], te.compute(out.shape, lambda *i: body(out(*i), other(*(i[a] for a in axes))), name=stage)
    raise ScheduleError("contraction define", f"epilogue {name!r}", "one of " + ", ".join([*_UNARY, *_BINARY]))


def _axes_of(groups: str, rank: int, convolution: bool, batched: bool) -> list[int]:
    """Which of the output's dimensions the letters b, m and n stand for."""
    if convolution:  # [n, channel, *position]: channels are M, images and positions are N
        table = {"b": [], "m": [1], "n": [0, *range(2, rank)]}
    else:
        table = {"b": [0] if batched else [], "m": [rank - 2], "n": [rank - 1]}
    return sorted(a for g in groups if g in table for a in table[g])
