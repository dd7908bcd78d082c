"""What a group's passes compute, point by point, and where their results live while the group runs."""

from __future__ import annotations

import math as pymath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilegrad._base.tvm import ir, tirx
from tilegrad.schedules import math
from tilegrad.schedules.body import Access, Body, Evaluator, Views, elements, identity, with_init
from tilegrad.schedules.finish import element_bytes
from tilegrad.schedules.reduction.plan import Group, Pass, Plan, Step
from tilegrad.schedules.stages import Expr, Stage, id_of

STASH_BYTES = 256 << 10
"""A row's expensive intermediate is kept for later passes up to this size, and computed again beyond."""


@dataclass
class Stash:
    """A full-size stage that is kept when first computed: in its output, or in a local array of one row (or block)."""

    stage: Stage
    local: Any = None
    written: bool = False


@dataclass
class Point:
    """A pass's body and, beside the steps' results, the stages it keeps: ``(stash, indices, value)``."""

    body: Body
    kept: list[tuple[Stash, list[Expr], Expr]] = field(default_factory=list)


@dataclass
class Store:
    """A group's intermediate values: results by buffer (local arrays) and stashes by buffer.

    ``base`` is what a row's last index is counted from in local arrays (None: locals hold one row's value).
    """

    locals: dict[int, Any] = field(default_factory=dict)
    stashes: dict[int, Stash] = field(default_factory=dict)
    base: Expr | None = None
    width: int = 1
    parts: dict[int, tuple[Any, Expr]] = field(default_factory=dict)
    """For each side, the array of its parts and where in it the current block of rows has its own."""


class PassEvaluator:
    """Evaluates a group's passes, reading earlier results where the group keeps them."""

    def __init__(self, plan: Plan, group: Group, views: Views, store: Store) -> None:
        self._plan, self._group, self._views, self.store = plan, group, views, store

    def point(self, current: Pass, ranges: Mapping[int, tuple[int, int]] | None = None) -> Point:
        """The body of one point of ``current``."""
        iters = [*self._group.rows, *current.cols]
        seen: dict[int, tuple[Stash, list[Expr], Expr]] = {}

        def observe(buffer: Any, indices: Sequence[Expr], value: Expr) -> None:
            stash = self.store.stashes.get(id_of(buffer))
            if stash is not None and not stash.written and self._covers(stash.stage, indices, current):
                seen.setdefault(id_of(buffer), (stash, list(indices), value))

        def rule(buffer: Any, indices: Sequence[Expr]) -> Expr | None:
            local = self.store.locals.get(id_of(buffer))
            if local is not None:
                return local[self._row_index()]
            stash = self.store.stashes.get(id_of(buffer))
            if stash is None or not stash.written or not self._covers(stash.stage, indices, current):
                return None
            if stash.local is None:
                return evaluator.load(buffer, indices)
            return stash.local[self.stash_index(stash, indices)]

        evaluator = Evaluator(iters, self._plan.inlined, self._views, rule, observe, ranges)
        for step in current.steps:
            if step.stage.reduce:
                evaluator.add(step.expr)
            else:
                spots = [step.place.get(i.var, i.var) for i in step.stage.spatial]
                evaluator.add_element(step.stage.buffer, spots)
                seen.pop(id_of(step.stage.buffer), None)
                evaluator.body.accesses.append(self.access(step.stage.buffer, spots))
        for side in current.sides:
            evaluator.add(side.expr)
            spots = [side.place[i.var] for i in side.stage.spatial]
            evaluator.body.accesses.append(_access(side.stage.buffer, spots, side.stage.buffer))
        for stash, indices, _ in seen.values():
            if stash.local is None:
                evaluator.body.accesses.append(self.access(stash.stage.buffer, indices))
        return Point(evaluator.body, list(seen.values()))

    def access(self, buffer: Any, indices: Sequence[Expr]) -> Access:
        """The write of ``buffer[indices]``."""
        return _access(buffer, indices, self._views.declare(buffer))

    def offset(self, buffer: Any, indices: Sequence[Expr]) -> Expr:
        """The flat index of ``buffer[indices]``."""
        total: Expr = tirx.const(0, indices[0].ty.dtype if indices else "int32")
        stride = 1
        for index, extent in reversed(list(zip(indices, buffer.shape, strict=True))):
            total = index * stride + total
            stride *= int(extent)
        return total

    def stash_index(self, stash: Stash, indices: Sequence[Expr]) -> Expr:
        """Where in its local array a stash keeps an element: by its columns, then by the lane."""
        rows = {id_of(r.var) for r in self._group.rows}
        total: Expr = tirx.const(0, "int32")
        stride = self.store.width
        for index, it in reversed(list(zip(indices, stash.stage.spatial, strict=True))):
            if isinstance(index, ir.Var) and id_of(index) not in rows:
                total = total + index * stride
                stride *= it.extent
        return total + self._row_index()

    def _row_index(self) -> Expr:
        if self.store.base is None:
            return tirx.const(0, "int32")
        return self._group.rows[-1].var + self.store.base

    def _covers(self, stage: Stage, indices: Sequence[Expr], current: Pass) -> bool:
        """Whether ``indices`` run over all of the stage exactly once as rows and columns do."""
        wide = [(i, e) for i, e in zip(stage.spatial, indices, strict=True) if i.extent > 1]
        names = {id_of(i.var): i.extent for i in (*self._group.rows, *current.cols)}
        used = [id_of(e) for _, e in wide if isinstance(e, ir.Var)]
        return len(used) == len(wide) and set(used) == set(names) and all(names[id_of(e)] == i.extent for i, e in wide)


def _access(buffer: Any, indices: Sequence[Expr], view: Any) -> Access:
    coefs, stride = {}, 1
    for index, extent in reversed(list(zip(indices, buffer.shape, strict=True))):
        if isinstance(index, ir.Var):
            coefs[id_of(index)] = stride
        stride *= int(extent)
    return Access(view, coefs, frozenset(), elements(buffer))


def survey(plan: Plan, group: Group) -> tuple[list[Body], dict[int, Stage]]:
    """Each pass's body, for its accesses, and the stages worth keeping between passes.

    These are outputs that a reduction computes on its way, and expensive intermediates that two passes read.
    """
    bodies: list[Body] = []
    reads: dict[int, set[int]] = {}
    probe = Store(stashes={k: Stash(s) for k, s in plan.inlined.items()})
    for key in group.results:
        probe.locals[key] = tirx.decl_buffer((1,), group.results[key].dtype, name="probe")
    evaluator = PassEvaluator(plan, group, Views(), probe)
    for n, current in enumerate(group.passes):
        own = {id_of(s.stage.buffer) for s in current.steps}
        point = evaluator.point(current)
        bodies.append(point.body)
        for stash, _, _ in point.kept:
            reads.setdefault(id_of(stash.stage.buffer), set()).add(n)
        for key in own & set(plan.inlined):
            reads.setdefault(key, set()).add(n)
    written = {id_of(s.stage.buffer) for p in group.passes for s in p.steps if not s.stage.reduce}
    out: dict[int, Stage] = {}
    for key, where in reads.items():
        stage = plan.inlined[key]
        if key in plan.outputs and (key not in written or len(where) > 1):
            out[key] = stage
        elif key not in plan.outputs and len(where) > 1 and math.is_expensive(stage.body):
            out[key] = stage
    return bodies, out


def accumulator_dtype(step: Step) -> str:
    """Sixteen-bit floats accumulate in float32."""
    return "float32" if step.stage.dtype in ("float16", "bfloat16") else step.stage.dtype


def start_value(step: Step) -> Expr:
    """What the accumulator starts from."""
    dtype = accumulator_dtype(step)
    return identity(step.kind, dtype) if step.kind else cast(step.stage.init, dtype)


def end_value(step: Step, total: Expr) -> Expr:
    """The reduction's result from its accumulator."""
    if step.kind is None:
        return total
    return cast(with_init(step.kind, cast(step.stage.init, accumulator_dtype(step)), total), step.stage.dtype)


def cast(value: Expr, dtype: str) -> Expr:
    """``value`` as ``dtype``; constants stay constants."""
    if str(value.ty.dtype) == dtype:
        return value
    return tirx.const(value.value, dtype) if isinstance(value, tirx.IntImm | tirx.FloatImm) else tirx.Cast(dtype, value)


def stash_bytes(stash: Stash, group: Group, width: int) -> int:
    """Size of the local array that one row (or a block of ``width`` rows) of a stash needs."""
    return pymath.prod(stash.stage.shape) // group.row_count * width * element_bytes(stash.stage.dtype)
