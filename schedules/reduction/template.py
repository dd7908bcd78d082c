"""Reductions of every shape, with what feeds and follows them: one pass over memory where a row fits the cache."""

from __future__ import annotations

import math as pymath

import numpy as np

from tilegrad._base.errors import ScheduleError
from tilegrad._base.target import Target
from tilegrad._base.tvm import te, tirx
from tilegrad.schedules.body import Body, Views
from tilegrad.schedules.elementwise.nest import elementwise_nest
from tilegrad.schedules.elementwise.template import group_by_shape
from tilegrad.schedules.finish import element_bytes
from tilegrad.schedules.function import function_of
from tilegrad.schedules.loops import PARALLEL_WORK, seq
from tilegrad.schedules.reduction.columns import ColumnGroup
from tilegrad.schedules.reduction.passes import survey
from tilegrad.schedules.reduction.plan import Group, Plan, groups_of, plan
from tilegrad.schedules.reduction.rows import RowGroup
from tilegrad.schedules.reduction.sides import attach
from tilegrad.schedules.stages import create, id_of, inputs_outputs, stages
from tilegrad.schedules.template import Config, Scheduled, Workload


class ReductionTemplate:
    """Kernels of stages with at least one reduction. ``vector``: registers a vector operation spans."""

    name = "reduction/1"

    def match(self, func: tirx.PrimFunc) -> Workload | None:
        """Any kernel of stages, keyed by its function and the shapes of its parameters and reductions."""
        found = stages(func)
        if found is None or not any(s.reduce for s in found):
            return None
        ins, outs = inputs_outputs(func, found)
        sizes = [pymath.prod(int(d) for d in b.shape) * element_bytes(b.dtype) for b in [*ins, *outs]]
        reductions = [s for s in found if s.reduce]
        fields = {
            "reductions": [
                [list(s.shape), [i.extent for i in s.reduce], s.combiner[0] if s.combiner else "?"] for s in reductions
            ],
            "inputs": [[int(d) for d in b.shape] for b in ins],
            "shapes": [[int(d) for d in b.shape] for b in outs],
            "dtypes": [str(b.dtype) for b in [*ins, *outs]],
            "stages": len(found),
            "function": function_of(found),
        }
        flops = sum(pymath.prod(s.shape) * pymath.prod(i.extent for i in s.reduce) for s in reductions)
        return Workload("reduction", fields, flops, sum(sizes))

    def space(self, workload: Workload, target: Target) -> list[Config]:
        """Vector widths, parallel or not."""
        return [{"vector": v, "tile": 32, "parallel": p} for p in (1, 0) for v in (4, 2, 1)]

    def default(self, workload: Workload, target: Target) -> Config:
        """Four registers of partial results hide the latency of additions."""
        return {"vector": 4, "tile": 32, "parallel": 1}

    def apply(self, func: tirx.PrimFunc, config: Config, target: Target) -> Scheduled:
        """Groups in order, then the outputs that belong to none."""
        found = stages(func)
        if found is None:
            raise ScheduleError("reduction template", "a kernel that is not made of stages", "a kernel it matched")
        _, outs = inputs_outputs(func, found)
        outputs = {id_of(b) for b in outs}
        todo = plan(found, outputs)
        views = Views()
        body: list[tirx.Stmt] = []
        queue = list(todo.groups)
        while queue:
            group = queue.pop(0)
            statements, after = _emit(todo, group, views, bool(queue or todo.rest), config, target, outputs)
            body += statements
            queue[:0] = after
        for same in group_by_shape(todo.rest):
            body += elementwise_nest(same, todo.inlined, views, config, target)
            for stage in same:
                todo.inlined.pop(id_of(stage.buffer), None)
        return Scheduled(tirx.PrimFunc(func.params, seq([*views.statements, *body]), attrs=func.attrs))

    def estimate(self, workload: Workload, config: Config, target: Target) -> float:
        """Traffic at 5 GB/s a thread, plus the start of the threads."""
        threads = target.threads if config["parallel"] else 1
        return workload.bytes / 5e9 / threads + 5e-6 * (threads > 1)

    def features(self, workload: Workload, config: Config, target: Target) -> np.ndarray:
        """log2 of sizes, and the knobs."""
        threads = target.threads if config["parallel"] else 1
        shape, cols, _ = workload.fields["reductions"][0]
        raw = [workload.bytes + 1, pymath.prod(shape), pymath.prod(cols), workload.fields["stages"], config["vector"], threads]
        return np.append(np.log2(np.array(raw, np.float32)), np.float32(1e6 * self.estimate(workload, config, target)))

    def define(self, workload: Workload) -> tirx.PrimFunc:
        """The sum of the first input over the trailing axes of the first reduction's size: its traffic, not its function."""
        rows, cols, _ = workload.fields["reductions"][0]
        x = te.placeholder((*rows, *cols), workload.fields["dtypes"][0], name="x")
        axes = [te.reduce_axis((0, n), name=f"k{i}") for i, n in enumerate(cols)]
        y = te.compute(rows, lambda *i: te.sum(x(*i, *axes), axis=axes), name="y")
        return create([x, y])


def _emit(
    todo: Plan, group: Group, views: Views, read_later: bool, config: Config, target: Target, outputs: set[int]
) -> tuple[list[tirx.Stmt], list[Group]]:
    """The group's loops, in the direction in which memory is contiguous, and the groups that are to follow it."""
    bodies, stashes = survey(todo, group)
    weight = max(b.weight for b in bodies)
    plain = all(s.kind for p in group.passes if p.reduces for s in p.steps)
    parallel = config["parallel"] and group.row_count * group.col_count * weight >= PARALLEL_WORK
    threads = target.threads if parallel else 1
    across = _contiguous_row(group, bodies[0]) if plain else None
    split = plain and threads > 1 and group.row_count < 4 * threads and bool(group.row_count % threads)
    along = bool(group.sides) and across is None and not split
    if along:
        attach(group)
        bodies, stashes = survey(todo, group)
    keep = {k for k in group.results if k in outputs or read_later or (group.sides and not along)}
    if across is not None:
        group.rows = (*(r for r in group.rows if r is not group.rows[across]), group.rows[across])
        columns = ColumnGroup(todo, group, views, keep, config, target, threads, stashes)
        split, emit = columns.splits, columns.build
    else:
        rows = RowGroup(todo, group, views, keep, config, target, bodies, stashes)
        emit = (lambda: rows.split(threads)) if split else (lambda: rows.fused(threads))
    if split:
        keep |= set(group.results)
    for key, stage in group.results.items():
        if key in keep and key not in outputs:
            views.allocate(stage.buffer)
    statements = emit()
    ends = rows.parts.ends() if across is None and rows.parts else [s.stage for s in group.sides]
    return statements, groups_of(ends, todo.inlined)


def _contiguous_row(group: Group, body: Body) -> int | None:
    """The row variable along which most of the first pass's data is contiguous; None when that is a column."""
    score: dict[int, int] = {}
    for access in body.accesses:
        for it in (*group.rows, *group.passes[0].cols):
            if access.coef(it.var) == 1:
                score[id_of(it.var)] = score.get(id_of(it.var), 0) + access.elements
    best = max(score, key=lambda k: score[k], default=None)
    return next((n for n, r in enumerate(group.rows) if id_of(r.var) == best), None)


TEMPLATE = ReductionTemplate()
