"""From stages to phases: which reductions run over the same rows, and what is computed in which pass over a row.

A *group* is a set of stages that share their kept index variables, the *rows*: softmax's maximum, sum and quotient, a
layer norm's mean, variance and output, with the rest of the kernel's spatial stages inlined into them. A group is a
list of *passes*; a pass runs once over the remaining variables of its steps, the *columns*, and computes steps that do
not need one another.
"""

from __future__ import annotations

import math as pymath
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tilegrad._base.tvm import ir, tirx
from tilegrad.schedules.body import Body, Evaluator, Views
from tilegrad.schedules.finish import element_bytes
from tilegrad.schedules.stages import Expr, Iter, Stage, id_of, substitute

WINDOW = 32
"""Reductions over at most so many elements, along which the output's neighbours are not apart, are unrolled."""
SIDE_BYTES = 64 << 10
"""A side's results up to this size stay in the cache while row after row is added to them."""


@dataclass(frozen=True)
class Step:
    """A stage within a group: ``place`` maps its variables to the group's rows and the pass's columns."""

    stage: Stage
    place: dict[Any, Expr]

    @property
    def kind(self) -> str | None:
        """How it accumulates; None for a spatial stage, and for a reduction that is no plain one."""
        return self.stage.combiner[0] if self.stage.combiner else None

    @property
    def expr(self) -> Expr:
        """What one point of the pass contributes (a spatial stage's value)."""
        combiner = self.stage.combiner
        return substitute(combiner[1] if combiner else self.stage.body, self.place)


@dataclass
class Pass:
    """Steps computed together, over the same columns."""

    cols: tuple[Iter, ...]
    steps: list[Step] = field(default_factory=list)
    sides: list[Step] = field(default_factory=list)
    """Reductions over the rows, one result a column (see ``sides.py``)."""

    @property
    def reduces(self) -> bool:
        """Whether its steps are reductions (otherwise all of them are spatial)."""
        return bool(self.steps) and bool(self.steps[0].stage.reduce)


@dataclass(frozen=True)
class Side:
    """A reduction over exactly a group's rows; ``place`` maps its reduced variables to them, ``needs`` are results it reads."""

    stage: Stage
    place: dict[Any, Expr]
    needs: frozenset[int]


@dataclass
class Group:
    """Passes over common rows; ``sides`` reduce over all of its rows what the passes touch anyway."""

    rows: tuple[Iter, ...]
    passes: list[Pass] = field(default_factory=list)
    sides: list[Side] = field(default_factory=list)

    @property
    def results(self) -> dict[int, Stage]:
        """The group's reductions by buffer."""
        return {id_of(s.stage.buffer): s.stage for p in self.passes for s in p.steps if s.stage.reduce}

    @property
    def row_count(self) -> int:
        """Number of rows."""
        return pymath.prod(i.extent for i in self.rows)

    @property
    def col_count(self) -> int:
        """Columns of the longest pass."""
        return max(pymath.prod(i.extent for i in p.cols) for p in self.passes)


@dataclass
class Plan:
    """Groups in order; then the outputs that no group computes. ``inlined`` is every stage without memory of its own."""

    groups: list[Group]
    rest: list[Stage]
    inlined: dict[int, Stage]
    outputs: set[int]


def plan(found: Sequence[Stage], outputs: set[int]) -> Plan:
    """Phases of a kernel whose stages are ``found``; ``outputs`` are the buffers that callers see."""
    windows = {id_of(s.buffer) for s in found if is_window(s)}
    inlined = {id_of(s.buffer): s for s in found if not s.reduce or id_of(s.buffer) in windows}
    result = Plan([], [], inlined, outputs)
    todo = list(found)
    while todo:
        todo = _phase(todo, result)
    return result


def _phase(todo: Sequence[Stage], result: Plan) -> list[Stage]:
    """Place every stage of ``todo`` but those that need a side's result, which are returned."""
    waiting: dict[int, Stage] = {}
    later: list[Stage] = []
    before = len(result.groups)  # of the phase before: what reads its sides must not join them
    for stage in todo:
        key = id_of(stage.buffer)
        if key in result.inlined and key not in result.outputs:
            continue
        group = result.groups[-1] if len(result.groups) > before else None
        if waiting and _reads(stage, result.inlined, waiting):
            waiting[key] = stage
            later.append(stage)
        elif group is not None and _join(group, stage, result.inlined):
            continue
        elif key in result.inlined:
            result.rest.append(stage)
        elif group is not None and (side := _side(group, stage, result.inlined)) is not None:
            waiting[key] = stage
            group.sides.append(side)
        else:
            result.groups.append(_open(stage))
    return later


def groups_of(found: Sequence[Stage], inlined: dict[int, Stage]) -> list[Group]:
    """Groups for reductions that do not read one another."""
    out: list[Group] = []
    for stage in found:
        if not (out and _join(out[-1], stage, inlined)):
            out.append(_open(stage))
    return out


def _side(group: Group, stage: Stage, inlined: dict[int, Stage]) -> Side | None:
    own = _wide(stage.reduce)
    if stage.combiner is None or sorted(i.extent for i in own) != sorted(r.extent for r in group.rows):
        return None
    if stage.dtype in ("float16", "bfloat16") or pymath.prod(stage.shape) * element_bytes(stage.dtype) > SIDE_BYTES:
        return None
    reads = _reads(stage, inlined, group.results)
    rows = _rows_read(group, reads, {id_of(i.var) for i in own}) if reads else [i.var for i in own]
    if rows is None or not (reads or _same_walk(group, stage, rows, inlined)):
        return None
    place: dict[Any, Expr] = {v: r.var for v, r in zip(rows, group.rows, strict=True)}
    place |= {i.var: tirx.const(0, i.var.ty.dtype) for i in (*stage.spatial, *stage.reduce) if i.extent == 1}
    return Side(stage, place, frozenset(key for key, _ in reads))


def is_window(stage: Stage) -> bool:
    """A short reduction whose terms for neighbouring outputs are at most 4 elements apart, as a pool's."""
    if stage.combiner is None or pymath.prod(i.extent for i in stage.reduce) > WINDOW:
        return False
    spatial = [i for i in stage.spatial if i.extent > 1]
    if not spatial:
        return False
    body = evaluate([*stage.spatial, *stage.reduce], stage.combiner[1], {}, Views())
    last = spatial[-1]
    moves = [a for a in body.accesses if a.coef(last.var) or id_of(last.var) in a.free]  # free: by a quotient, as in a transpose
    return last.extent >= 4 and bool(moves) and all(abs(a.coef(last.var)) <= 4 for a in moves)


def evaluate(iters: Sequence[Iter], expr: Expr, inlined: dict[int, Stage], views: Views, **options: Any) -> Body:
    """The body of one expression."""
    evaluator = Evaluator(iters, inlined, views, **options)
    evaluator.add(expr)
    return evaluator.body


def _reads(stage: Stage, inlined: dict[int, Stage], wanted: dict[int, Stage]) -> list[tuple[int, list[Expr]]]:
    """Where ``stage``, with everything inlined, reads the buffers in ``wanted``."""
    found: list[tuple[int, list[Expr]]] = []

    def rule(buffer: Any, indices: Sequence[Expr]) -> Expr | None:
        if id_of(buffer) in wanted:
            found.append((id_of(buffer), list(indices)))
            return buffer[tuple(indices)] if indices else buffer[()]
        return None

    others = {k: s for k, s in inlined.items() if k != id_of(stage.buffer)}
    body = stage.combiner[1] if stage.combiner else stage.body
    evaluate([*stage.spatial, *stage.reduce], body, others, Views(), rule=rule)
    return found


def _wide(iters: Sequence[Iter]) -> list[Iter]:
    return [i for i in iters if i.extent > 1]


def _open(stage: Stage) -> Group:
    rows = tuple(Iter(tirx.Var(f"row{k}", i.var.ty.dtype), i.extent) for k, i in enumerate(_wide(stage.spatial)))
    group = Group(rows)
    _append(group, stage, [i.var for i in _wide(stage.spatial)], set())
    return group


def _join(group: Group, stage: Stage, inlined: dict[int, Stage]) -> bool:
    """Make ``stage`` part of the group when it works on the same rows."""
    reads = _reads(stage, inlined, group.results)
    own = {id_of(i.var) for i in _wide(stage.spatial)}
    if reads:
        rows = _rows_read(group, reads, own)
        if rows is None:
            return False
    else:
        rows = [i.var for i in _wide(stage.spatial)]
        if not stage.reduce or not _same_walk(group, stage, rows, inlined):
            return False
    if stage.reduce and {id_of(v) for v in rows} != own:
        return False
    _append(group, stage, rows, {key for key, _ in reads})
    return True


def _rows_read(group: Group, reads: Sequence[tuple[int, list[Expr]]], own: set[int]) -> list[Any] | None:
    """The variables, among ``own``, by which results are read, in the order of the group's rows; None unless all agree."""
    rows: list[Any] | None = None
    for key, indices in reads:
        result = group.results[key]
        order = _row_order(group, result)
        at: list[Any] = [None] * len(group.rows)
        for dim, (it, index) in enumerate(zip(result.spatial, indices, strict=True)):
            if it.extent == 1:
                continue
            if not isinstance(index, ir.Var) or id_of(index) not in own:
                return None
            at[order[dim]] = index
        if len({id_of(v) for v in at}) != len(at) or (rows is not None and [id_of(v) for v in rows] != [id_of(v) for v in at]):
            return None
        rows = at
    return rows


def _same_walk(group: Group, stage: Stage, rows: Sequence[Any], inlined: dict[int, Stage]) -> bool:
    """Whether ``stage``, which reads no result, walks by ``rows`` through arrays that the group reads as the group does."""
    extents = {id_of(i.var): i.extent for i in (*stage.spatial, *stage.reduce)}
    if [extents[id_of(v)] for v in rows] != [r.extent for r in group.rows]:
        return False
    views = Views()
    results = lambda buffer, at: buffer[tuple(at)] if id_of(buffer) in group.results else None  # noqa: E731
    steps = [
        a
        for p in group.passes
        for s in p.steps
        for a in evaluate([*group.rows, *p.cols], s.expr, inlined, views, rule=results).accesses
    ]
    body = stage.combiner[1] if stage.combiner else stage.body
    own = evaluate([*stage.spatial, *stage.reduce], body, inlined, views, rule=results).accesses
    taken = {id_of(a.buffer): [a.coef(r.var) for r in group.rows] for a in steps}
    return all([a.coef(v) for v in rows] == taken.get(id_of(a.buffer), [a.coef(v) for v in rows]) for a in own)


def _row_order(group: Group, result: Stage) -> dict[int, int]:
    """For each wide dimension of a result, which of the group's rows it is."""
    step = next(s for p in group.passes for s in p.steps if s.stage is result)
    names = {id_of(r.var): k for k, r in enumerate(group.rows)}
    return {d: names[id_of(step.place[i.var])] for d, i in enumerate(result.spatial) if i.extent > 1}


def _append(group: Group, stage: Stage, rows: Sequence[Any], needs: set[int]) -> None:
    """Add ``stage`` to the last pass if it can run together with it, otherwise as a pass of its own."""
    taken = {id_of(v) for v in rows}
    iters = [*stage.spatial, *stage.reduce]
    cols = [i for i in iters if id_of(i.var) not in taken and i.extent > 1]
    place: dict[Any, Expr] = {v: r.var for v, r in zip(rows, group.rows, strict=True)}
    place |= {i.var: tirx.const(0, i.var.ty.dtype) for i in iters if i.extent == 1}
    last = group.passes[-1] if group.passes else None
    extents = tuple(c.extent for c in cols)
    together = (
        last is not None
        and all(s.kind or not s.stage.reduce for s in (*last.steps, Step(stage, place)))
        and last.reduces == bool(stage.reduce)
        and tuple(c.extent for c in last.cols) == extents
        and not any(id_of(s.stage.buffer) in needs for s in last.steps)
    )
    if not together:
        last = Pass(tuple(Iter(tirx.Var(f"col{k}", c.var.ty.dtype), c.extent) for k, c in enumerate(cols)))
        group.passes.append(last)
    assert last is not None
    place |= {c.var: own.var for c, own in zip(cols, last.cols, strict=True)}
    last.steps.append(Step(stage, place))
