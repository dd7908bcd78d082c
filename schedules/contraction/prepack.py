"""Constant operands in the micro-kernel's layout: copied to panels once, when the library is built.

A constant qualifies when it is nothing but an operand of a contraction whose config packs that operand. What the kernel
then reads is a parameter of its own, in the order in which ``Nest`` would have packed it at every call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilegrad._base.tvm import tirx
from tilegrad.schedules.contraction.affine import Affine
from tilegrad.schedules.contraction.canonical import Contraction, Operand
from tilegrad.schedules.contraction.pack_blocks import style_of
from tilegrad.schedules.contraction.plan import Plan
from tilegrad.schedules.stages import Iter, loads, stages

Fill = Callable[[np.ndarray], np.ndarray]
"""From a constant's data to the panels."""


def packable(func: tirx.PrimFunc, c: Contraction, plan: Plan, constants: Sequence[int]) -> dict[str, int]:
    """``a`` and ``b`` -> the parameter among ``constants`` that is this operand and can be packed beforehand."""
    reads = [r.source for s in stages(func) or () for r in loads(s.body)]
    found = {}
    for side, op, packed in (("a", c.a, plan.config["pack_a"]), ("b", c.b, plan.config["pack_b"])):
        place = op.place
        if not packed or op.read is None or place is None or plan.size.segments > 1:
            continue
        if side == "b" and style_of(c) not in ("copy", "transpose"):
            continue
        for i in constants:
            param = func.params[i]
            if op.read.source.same_as(param) and sum(r.same_as(param) for r in reads) == 1:
                found[side] = i
    return found


def count(plan: Plan, side: str) -> int:
    """Elements of a side's panels."""
    p = plan
    if side == "a":
        return p.size.batch * p.k_blocks * p.tiles * p.kc * p.slots
    return p.size.batch * p.k_blocks * p.panels * p.kc * p.nr


def fill(c: Contraction, plan: Plan, side: str) -> Fill:
    """What packs one side's constant."""
    return (lambda data: _rows(c, plan, data)) if side == "a" else (lambda data: _columns(c, plan, data))


def _rows(c: Contraction, p: Plan, data: np.ndarray) -> np.ndarray:
    """[batch][K block][tile][k][row]."""
    values = _values(c, c.a, (c.batch, c.m, c.k), data)
    small, large = p.rows
    starts = [i * small + min(i, large) for i in range(p.tiles + 1)]
    out = np.zeros((p.size.batch, p.k_blocks, p.tiles, p.kc, p.slots), c.acc)
    for kb in range(p.k_blocks):
        for i, (r0, r1) in enumerate(zip(starts, starts[1:], strict=False)):
            block = values[:, r0:r1, kb * p.kc : (kb + 1) * p.kc]
            out[:, kb, i, : block.shape[2], : r1 - r0] = block.transpose(0, 2, 1)
    return out.reshape(-1)


def _columns(c: Contraction, p: Plan, data: np.ndarray) -> np.ndarray:
    """[batch][K block][panel][k][column]."""
    values = _values(c, c.b, (c.batch, c.k, c.n), data)
    out = np.zeros((p.size.batch, p.k_blocks * p.kc, p.panels * p.nr), c.acc)
    out[:, : p.size.k, : p.size.n] = values
    blocks = out.reshape(p.size.batch, p.k_blocks, p.kc, p.panels, p.nr)
    return np.ascontiguousarray(blocks.transpose(0, 1, 3, 2, 4)).reshape(-1)


def _values(c: Contraction, op: Operand, groups: Sequence[Sequence[Iter]], data: np.ndarray) -> np.ndarray:
    """The operand as an array with one axis a group."""
    place = op.place
    assert place is not None
    x, y, z = (_offsets(place, g) for g in groups)
    return data.reshape(-1)[place.const + x[:, None, None] + y[None, :, None] + z[None, None, :]]


def _offsets(place: Affine, axes: Sequence[Iter]) -> np.ndarray:
    out = np.zeros(1, np.int64)
    for axis in axes:
        out = (out[:, None] + place.of(axis) * np.arange(axis.extent)).reshape(-1)
    return out


def parameter(plan: Plan, side: str, dtype: str) -> Any:
    """The buffer that the kernel reads instead of the constant."""
    return tirx.decl_buffer((count(plan, side),), dtype, f"panels_{side}")
