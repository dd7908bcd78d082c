"""Whether a kernel reads inside its arrays.

A read is inside when every index lies in its axis at every point of the loops at which it is evaluated, given the conditions of
the ``if_then_else`` around it (a ``Select`` evaluates both sides and guards nothing). TVM's analyzer proves most; what it leaves
is tried point by point where loop variables alone decide. What stays undecided counts as outside: an index that comes from an
array needs a clamp, or a condition on itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
from tvm.sym.analyzer import Analyzer

from tilegrad._base.tvm import ir, tirx, tvm_ffi
from tilegrad.relax_ext.lowered import is_if_then_else
from tilegrad.schedules.stages import Stage, loads, stages

_CHILDREN = ("a", "b", "value", "condition", "true_value", "false_value", "args", "indices", "body")
_MOST_POINTS = 1 << 20
"""How many points of the loops are tried at most."""

_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    tirx.Add: np.add, tirx.Sub: np.subtract, tirx.Mul: np.multiply, tirx.FloorDiv: np.floor_divide, tirx.FloorMod: np.mod,
    tirx.Div: lambda a, b: np.trunc(a / b).astype(np.int64), tirx.Mod: np.fmod, tirx.Min: np.minimum, tirx.Max: np.maximum,
    tirx.EQ: np.equal, tirx.NE: np.not_equal, tirx.LT: np.less, tirx.LE: np.less_equal, tirx.GT: np.greater,
    tirx.GE: np.greater_equal, tirx.And: np.logical_and, tirx.Or: np.logical_or,
}  # fmt: skip


def reads_outside(func: tirx.PrimFunc) -> str | None:
    """The first read that is not known to lie inside its array, as ``x[i - 1] in 'name', axis 0 of 4 elements``; None when all
    are, or when the kernel is of a form that is not analysed (``schedules.stages`` says which)."""
    for stage in stages(func) or ():
        analyzer = Analyzer()
        for i in (*stage.spatial, *stage.reduce):
            analyzer.bind(i.var, ir.Range(0, i.extent))
        for load, conditions in _reads(stage.body, ()):
            found = None if load.source.same_as(stage.buffer) else _outside(analyzer, load, conditions, stage)
            if found is not None:
                return found
    return None


def _outside(analyzer: Analyzer, load: Any, conditions: Sequence[Any], stage: Stage) -> str | None:
    with ExitStack() as scope:
        for c in conditions:
            scope.enter_context(analyzer.constraint_scope(c))
        for axis, (index, extent) in enumerate(zip(load.indices, load.source.shape, strict=True)):
            proved = analyzer.can_prove(index >= 0) and analyzer.can_prove(index < extent)
            if not proved and not _inside_everywhere(index, int(extent), conditions, stage):
                text = ", ".join(str(i).splitlines()[-1] for i in load.indices)
                return f"a read of {load.source.name}[{text}] in '{stage.name}', axis {axis} of {int(extent)} elements"
    return None


def _inside_everywhere(index: Any, extent: int, conditions: Sequence[Any], stage: Stage) -> bool:
    """Whether the index was found inside at every point; False where arrays have a say in it or the points are too many.
    Conditions on arrays are taken to hold."""
    known = [c for c in conditions if not loads(c)]
    used: list[Any] = []
    for e in (index, *known):
        tvm_ffi.structural_walk(e, (ir.Var, lambda v: used.append(v)))
    iters = [i for i in (*stage.spatial, *stage.reduce) if any(i.var.same_as(v) for v in used)]
    if loads(index) or math.prod(i.extent for i in iters) > _MOST_POINTS:
        return False
    grid = np.meshgrid(*(np.arange(i.extent) for i in iters), indexing="ij", sparse=True)
    points = {i.var: g for i, g in zip(iters, grid, strict=True)}
    try:
        place = _at(index, points)
        inside = (place >= 0) & (place < extent)
        for c in known:
            inside = inside | ~np.asarray(_at(c, points), bool)
    except NotImplementedError:
        return False
    return bool(np.all(inside))


def _at(e: Any, points: Mapping[Any, np.ndarray]) -> Any:
    """The expression's value at every point. Raises NotImplementedError for what is no whole-number arithmetic."""
    if type(e) in _BINARY:
        a, b = _at(e.a, points), _at(e.b, points)
        if isinstance(e, (tirx.FloorDiv, tirx.FloorMod, tirx.Div, tirx.Mod)) and np.any(b == 0):
            raise NotImplementedError
        return _BINARY[type(e)](a, b)
    if isinstance(e, tirx.Not):
        return np.logical_not(_at(e.a, points))
    if isinstance(e, tirx.IntImm):
        return np.int64(int(e.value))
    if isinstance(e, ir.Var) and e in points:
        return points[e]
    if isinstance(e, tirx.Cast) and str(e.dtype) in ("int32", "int64"):
        return _at(e.value, points)
    if isinstance(e, ir.Call) and is_if_then_else(e):
        return np.where(*(_at(a, points) for a in e.args))
    raise NotImplementedError


def _reads(expr: Any, conditions: tuple[Any, ...]) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Every load with the conditions under which it is evaluated."""
    if isinstance(expr, ir.TensorLoad):
        yield expr, conditions
    if isinstance(expr, ir.Call) and is_if_then_else(expr):
        condition, yes, no = expr.args
        yield from _reads(condition, conditions)
        yield from _reads(yes, (*conditions, *_parts(condition, True)))
        yield from _reads(no, (*conditions, *_parts(condition, False)))
        return
    for name in _CHILDREN:
        child: Any = getattr(expr, name, None)
        for e in child if hasattr(child, "__len__") and not isinstance(child, str) else (child,):
            if isinstance(e, ir.Expr):
                yield from _reads(e, conditions)


def _parts(condition: Any, holds: bool) -> list[Any]:
    """What holds, each by itself, where the condition holds or does not."""
    if isinstance(condition, tirx.And if holds else tirx.Or):
        return [*_parts(condition.a, holds), *_parts(condition.b, holds)]
    if isinstance(condition, tirx.Not):
        return _parts(condition.a, not holds)
    return [condition if holds else tirx.Not(condition)]
