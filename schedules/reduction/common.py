"""What both directions, along rows and across them, share when they write a pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilegrad._base.tvm import tirx
from tilegrad.schedules.body import Views, combine
from tilegrad.schedules.loops import Emit
from tilegrad.schedules.reduction.accumulate import Accumulator
from tilegrad.schedules.reduction.passes import PassEvaluator, Point, Store, end_value, start_value
from tilegrad.schedules.reduction.plan import Group, Pass, Plan, Step
from tilegrad.schedules.stages import Expr, id_of


def live(current: Pass, store: Store) -> Pass:
    """The pass without steps whose values an earlier pass has already stored."""
    written = {k for k, s in store.stashes.items() if s.written}
    return Pass(current.cols, [s for s in current.steps if id_of(s.stage.buffer) not in written], current.sides)


def spots(step: Step) -> list[Expr]:
    """The element of its buffer that a step computes, in the group's variables."""
    return [step.place.get(i.var, i.var) for i in step.stage.spatial]


def updates(
    views: Views, evaluator: PassEvaluator, current: Pass, point: Point, emit: Emit, accs: Sequence[Accumulator], at: Expr
) -> list[tirx.Stmt]:
    """One vector of a pass: all values first, then the stores, or the accumulators at ``at``."""
    out: list[tirx.Stmt] = []
    late: list[tirx.Stmt] = []
    count = len(current.steps)
    for k, (step, result) in enumerate(zip(current.steps, point.body.results[:count], strict=True)):
        stored, value = emit.name(emit.at(result))
        out += stored
        if accs:
            late.append(accs[k].add(at, value))
        else:
            index = emit.at(evaluator.offset(step.stage.buffer, spots(step)))
            late.append(tirx.BufferStore(views.declare(step.stage.buffer), value, [index]))
    for side, result in zip(current.sides, point.body.results[count:], strict=True):
        parts, first = evaluator.store.parts[id_of(side.stage.buffer)]
        at = emit.at(evaluator.offset(side.stage.buffer, spots(side))) + first
        stored, value = emit.name(emit.at(result))
        before, total = emit.name(parts[at])
        out += [*stored, *before]
        late.append(tirx.BufferStore(parts, combine(side.kind or "", total, value), [at]))
    return [*out, *late, *kept_stores(views, evaluator, point, emit)]


def kept_stores(views: Views, evaluator: PassEvaluator, point: Point, emit: Emit) -> list[tirx.Stmt]:
    """Stores of the stages that this pass keeps."""
    out: list[tirx.Stmt] = []
    for stash, indices, value in point.kept:
        if stash.local is None:
            target, index = views.declare(stash.stage.buffer), evaluator.offset(stash.stage.buffer, indices)
        else:
            target, index = stash.local, evaluator.stash_index(stash, indices)
        out.append(tirx.BufferStore(target, emit.at(value), [emit.at(index)]))
    return out


def retire(plan: Plan, group: Group, store: Store) -> None:
    """What the group has stored is in memory from here on: nobody computes it again."""
    for key, stash in store.stashes.items():
        if key in plan.outputs and stash.written:
            plan.inlined.pop(key, None)
            plan.rest = [s for s in plan.rest if id_of(s.buffer) != key]
    for current in group.passes:
        for step in current.steps:
            plan.inlined.pop(id_of(step.stage.buffer), None)


def parts_in_order(step: Step, parts: Any, index: Any, count: int, store: Any) -> list[tirx.Stmt]:
    """``store(total)`` of ``parts[index(0)]``, ``parts[index(1)]``, ... combined in this order: the same bits every time."""
    assert step.kind is not None
    total = tirx.decl_buffer((1,), parts.dtype, name="total")
    out: list[tirx.Stmt] = [tirx.AllocBuffer(total), tirx.BufferStore(total, start_value(step), [0])]
    for t in range(count):
        out.append(tirx.BufferStore(total, combine(step.kind, total[0], parts[index(t)]), [0]))
    return [*out, store(end_value(step, total[0]))]
