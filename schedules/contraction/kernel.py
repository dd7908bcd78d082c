"""One kernel of one nest, or of a nest a phase."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilegrad._base.tvm import ir, tirx, tvm_ffi
from tilegrad.schedules.contraction.bound import Bound
from tilegrad.schedules.contraction.canonical import Contraction
from tilegrad.schedules.contraction.nest import Nest
from tilegrad.schedules.contraction.plan import Plan, ceildiv, element_bytes
from tilegrad.schedules.contraction.tir import Stmt, seq
from tilegrad.schedules.stages import Expr, id_of
from tilegrad.schedules.template import Scheduled


def kernel(
    func: tirx.PrimFunc,
    parts: Sequence[Contraction],
    plans: Sequence[Plan],
    bound: Bound | None = None,
    panels: Mapping[str, Any] | None = None,
) -> Scheduled:
    """The kernel with ``func``'s parameters and scratch that runs a nest a phase, one after the other.

    bound, panels: see ``Nest``; for a single one only. Phases that all pack A do so together, each to scratch of its own.
    """
    together = len(parts) > 1 and all(p.config["pack_a"] and p.tiles == plans[0].tiles for p in plans)
    nests: list[Nest] = []
    for part, plan in zip(parts, plans, strict=True):
        nests.append(Nest(part, plan, panels, bound, nests[-1].mem.scratch_bytes if together and nests else 0))
    packed = _pack_phases(nests) if together else None
    bodies = [nest.body(together) for nest in nests]
    declared = [nest.mem.declarations for nest in nests]
    size = max(nest.mem.scratch_bytes for nest in nests)
    scratch = tirx.decl_buffer((max(1, size),), "uint8", "scratch", data_alignment=64)
    placeholders = {id_of(nest.mem.scratch) for nest in nests}
    body = tvm_ffi.structural_map(seq(declared, packed, bodies), (ir.Var, lambda v: scratch if id_of(v) in placeholders else v))
    return Scheduled(tirx.PrimFunc([*func.params, scratch], body, attrs=func.attrs), size)


def _pack_phases(nests: Sequence[Nest]) -> Stmt:
    """A of all phases at once, a group that L2 holds at a time: every phase reads other elements of the same cache lines."""
    p = nests[0].p
    row_bytes = sum(nest.p.size.k for nest in nests) * element_bytes(p.size.acc)
    group = min(nests[0].group(p.size.batch), max(1, p.target.l2_bytes * 6 // 10 // (row_bytes * p.slots)))
    groups = ceildiv(p.tiles, group)

    def item(_: Expr, index: Expr) -> Stmt:
        batch, g = tirx.floordiv(index, groups), tirx.floormod(index, groups)

        def phase(nest: Nest) -> Stmt:
            k = nest.p.k_blocks
            return nest.mem.loop(k, lambda kb: nest.pack_a_group((batch * k + kb) * groups + g, group), "kb")

        return seq([phase(nest) for nest in nests])

    return nests[0].mem.parallel(p.target.threads, p.size.batch * groups, item)
