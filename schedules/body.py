"""A stage's value as straight-line code: intermediates inlined once each, loads at linear offsets, branches resolved.

``Evaluator`` walks an expression over a stage's index variables. A read of an intermediate becomes a named value that
is shared by all readers of the same element (never a copy of the text), a read of a buffer that exists in memory
becomes a read of its flat view at ``constant + sum(coefficient * variable)`` where it is affine, and a choice whose
untaken side may be computed safely becomes a ``Select``, which vectorises.
"""

from __future__ import annotations

import math as pymath
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilegrad._base.tvm import ir, tirx, tvm, tvm_ffi
from tilegrad.schedules import floats, math
from tilegrad.schedules.finish import element_bytes
from tilegrad.schedules.stages import Expr, Iter, Stage, id_of, loads, substitute, variables

_LEAVES = (ir.Var, tirx.IntImm, tirx.FloatImm)


@dataclass(frozen=True)
class Access:
    """A read or write of a flat view at ``rest + sum(coefs[v] * v)``; ``free`` are variables that ``rest`` depends on."""

    buffer: Any
    coefs: Mapping[int, int]
    free: frozenset[int]
    elements: int

    def coef(self, var: Any) -> int:
        """The stride of a variable; 0 where it has none."""
        return self.coefs.get(id_of(var), 0)


@dataclass
class Body:
    """Straight-line code over ``iters``: named values in order, then the results.

    ``free`` are variables used otherwise than by affine offsets; ``cuts`` are, per variable, positions at which a
    condition on that variable alone changes; ``scalar`` are variables whose vector form would need a branch per lane.
    """

    iters: tuple[Iter, ...]
    binds: list[tuple[Any, Expr]] = field(default_factory=list)
    results: list[Expr] = field(default_factory=list)
    accesses: list[Access] = field(default_factory=list)
    free: set[int] = field(default_factory=set)
    cuts: dict[int, set[int]] = field(default_factory=dict)
    scalar: set[int] = field(default_factory=set)
    weight: int = 1

    def depends(self) -> dict[int, frozenset[int]]:
        """For each named value, the index variables it depends on."""
        known: dict[int, frozenset[int]] = {id_of(i.var): frozenset([id_of(i.var)]) for i in self.iters}
        for var, value in self.binds:
            known[id_of(var)] = frozenset().union(*(known.get(id_of(v), frozenset()) for v in variables(value)))
        return known


class Views:
    """Flat views of the kernel's buffers, declared once at its top."""

    def __init__(self) -> None:
        self._views: dict[int, Any] = {}
        self.statements: list[tirx.Stmt] = []

    def declare(self, buffer: Any) -> Any:
        """The flat view of ``buffer``."""
        key = id_of(buffer)
        if key not in self._views:
            align = element_bytes(buffer.dtype)  # a parameter's data may lie anywhere
            view = tirx.decl_buffer((elements(buffer),), buffer.dtype, name=f"{buffer.name}_flat", data_alignment=align)
            self._views[key] = view
            self.statements.append(tirx.DeclBuffer(view, data=tirx.buffer_data(buffer)))
        return self._views[key]

    def allocate(self, buffer: Any) -> Any:
        """A flat array for an intermediate that several loop nests share."""
        key = id_of(buffer)
        assert key not in self._views
        view = tirx.decl_buffer((elements(buffer),), buffer.dtype, name=buffer.name)
        self._views[key] = view
        self.statements.append(tirx.AllocBuffer(view))
        return view


def elements(buffer: Any) -> int:
    """Number of elements."""
    return pymath.prod(int(d) for d in buffer.shape)


class Evaluator:
    """Evaluates expressions over ``iters``.

    ``inlined`` maps buffers to the stages that compute them; ``rule`` may answer a read (by buffer and indices) first.
    ``observe`` is told of every inlined element; ``ranges`` narrows variables to [low, high).
    """

    def __init__(
        self,
        iters: Sequence[Iter],
        inlined: Mapping[int, Stage],
        views: Views,
        rule: Callable[[Any, Sequence[Expr]], Expr | None] | None = None,
        observe: Callable[[Any, Sequence[Expr], Expr], None] | None = None,
        ranges: Mapping[int, tuple[int, int]] | None = None,
    ) -> None:
        self.body = Body(tuple(iters))
        self._inlined, self._views, self._rule = inlined, views, rule
        self._observe = observe
        self.analyzer = tvm.sym.Analyzer()
        self._anywhere = tvm.sym.Analyzer()  # without the conditions that hold inside a branch
        for it in iters:
            low, high = (ranges or {}).get(id_of(it.var), (0, it.extent))
            for analyzer in (self.analyzer, self._anywhere):
                analyzer.bind(it.var, ir.Range(tirx.const(low, it.var.ty.dtype), tirx.const(high, it.var.ty.dtype)))
        self._memo: dict[Any, Expr] = {}
        self._memory: set[int] = set()
        self._guards = 0
        self._bounds: list[bool] = []

    def add(self, expr: Expr) -> Expr:
        """Append the value of ``expr`` to the results."""
        return self._append(self.value(expr))

    def add_element(self, buffer: Any, indices: Sequence[Expr]) -> Expr:
        """Append the value of ``buffer[indices]`` to the results."""
        return self._append(self.read(buffer, indices))

    def _append(self, value: Expr) -> Expr:
        self.body.results.append(value)
        for _, e in [*self.body.binds, (None, value)]:
            self.body.free |= {id_of(v) for v in _free_variables(e)} & {id_of(i.var) for i in self.body.iters}
        return value

    def value(self, expr: Expr) -> Expr:
        """The value of ``expr`` in terms of named values and flat reads."""
        if isinstance(expr, _LEAVES):
            return expr
        return tvm_ffi.structural_mutate(
            expr,
            [
                (ir.TensorLoad, lambda e, _: self.read(e.source, list(e.indices))),
                (tirx.Select, lambda e, _: self._choice(e.condition, e.true_value, e.false_value)),
                (ir.Call, self._call),
            ],
        )

    def bind(self, value: Expr) -> Expr:
        """A name for ``value``, or the value itself where naming is impossible (booleans, guarded code) or pointless."""
        if isinstance(value, _LEAVES) or str(value.ty.dtype) == "bool" or self._guards:
            return value
        var = tirx.Var(f"v{len(self.body.binds)}", value.ty.dtype)
        self.body.binds.append((var, value))
        return var

    def read(self, buffer: Any, indices: Sequence[Expr]) -> Expr:
        """The value of ``buffer[indices]``."""
        if id_of(buffer) in self._memory:  # part of an index that has its value already
            return buffer[tuple(indices)]
        indices = [i if isinstance(i, _LEAVES) else self.analyzer.simplify(self.value(i)) for i in indices]
        if self._rule is not None and (answer := self._rule(buffer, indices)) is not None:
            if isinstance(answer, ir.TensorLoad) and not answer.source.same_as(buffer):
                self._memory.add(id_of(answer.source))
            return answer
        stage = self._inlined.get(id_of(buffer))
        if stage is None:
            return self.load(buffer, indices)
        if self._guards:
            return self._stage(stage, indices)
        key = (id_of(buffer), tvm_ffi.StructuralKey(list(indices)))
        if key not in self._memo:
            self._memo[key] = self.bind(self._stage(stage, indices))
            if self._observe is not None:
                self._observe(buffer, indices, self._memo[key])
        return self._memo[key]

    def _stage(self, stage: Stage, indices: Sequence[Expr]) -> Expr:
        """One element of an inlined stage; the reductions among them are short and unrolled."""
        place = {i.var: e for i, e in zip(stage.spatial, indices, strict=True)}
        if not stage.reduce:
            return self.value(substitute(stage.body, place))
        assert stage.combiner is not None
        kind, update = stage.combiner
        total: Expr | None = None
        for tap in _grid([i.extent for i in stage.reduce]):
            at = place | {i.var: tirx.const(t, i.var.ty.dtype) for i, t in zip(stage.reduce, tap, strict=True)}
            term = self.value(substitute(update, at))
            total = term if total is None else combine(kind, self.bind(total), self.bind(term))
        return with_init(kind, stage.init, total)

    def load(self, buffer: Any, indices: Sequence[Expr]) -> Expr:
        """A read of memory, by the buffer's flat view."""
        size = elements(buffer)
        view = self._views.declare(buffer)
        self._memory.add(id_of(view))
        offset: Expr = tirx.const(0, "int32")
        stride = 1
        wide = max((str(i.ty.dtype) for i in indices), default="int32")  # "int64" > "int32"
        for index, extent in reversed(list(zip(indices, buffer.shape, strict=True))):
            offset = offset + tirx.Cast(wide, index) * stride if str(index.ty.dtype) != wide else offset + index * stride
            stride *= int(extent)
        offset = self.analyzer.simplify(offset)
        coefs, rest = self._affine(offset)
        bound = self.analyzer.const_int_bound(offset)
        self._bounds.append(bound.min_value >= 0 and bound.max_value < size)
        self.body.accesses.append(Access(view, coefs, frozenset(id_of(v) for v in variables(rest)), size))
        index = rest
        for it in self.body.iters:
            if id_of(it.var) in coefs:
                index = index + _affine_term(it.var, coefs[id_of(it.var)])
        return view[index]

    def _affine(self, offset: Expr) -> tuple[dict[int, int], Expr]:
        """(coefficients of the variables in which ``offset`` is affine, the rest)."""
        coefs: dict[int, int] = {}
        used = {id_of(v) for v in variables(offset)}
        for it in self.body.iters:
            if id_of(it.var) not in used:
                continue
            one = tirx.const(1, it.var.ty.dtype)
            # The next position need not meet the branch's condition, (i - k) % 3 == 0 for instance.
            step = self._anywhere.simplify(substitute(offset, {it.var: it.var + one}) - offset)
            if isinstance(step, tirx.IntImm):
                coefs[id_of(it.var)] = int(step.value)
        zero = {it.var: tirx.const(0, it.var.ty.dtype) for it in self.body.iters if id_of(it.var) in coefs}
        rest = self.analyzer.simplify(substitute(offset, zero))
        # x[i, index[i, j]]: i moves the place by itself and also chooses the index.
        for it in self.body.iters:
            own = sum(_own_coefficient(term, it.var) for term in _terms(rest)) if id_of(it.var) in used - set(coefs) else 0
            if own:
                coefs[id_of(it.var)] = own
                rest = self.analyzer.simplify(rest - _affine_term(it.var, own))
        return coefs, rest

    def _call(self, call: Any, mutator: Any) -> Expr:
        name = str(getattr(call.op, "name", "")).rpartition(".")[2]
        if name == "if_then_else":
            return self._choice(*call.args)
        if name == "likely":
            return self.value(call.args[0])
        call = mutator.default_mutate(call)
        new = math.expand(call, None if self._guards else self.bind)
        if math.is_expensive(call):
            self.body.weight += 8
        return new

    def _choice(self, condition: Expr, yes: Expr, no: Expr) -> Expr:
        """``yes`` where ``condition`` holds, else ``no``: a Select where both may be computed, a branch otherwise."""
        plain, data = _split_condition(condition)
        if plain is not None and data is not None:  # what the data says is asked only where the data exists
            return self._choice(plain, tirx.if_then_else(data, yes, no), no)
        if data is not None:
            return self._data_choice(data, yes, no)
        condition = self.analyzer.simplify(self.value(condition))
        if isinstance(condition, tirx.IntImm):
            return self.value(yes if int(condition.value) else no)
        if not self._guards and self._is_safe(yes, no):
            return tirx.Select(condition, self.value(yes), self.value(no))
        self._note_condition(condition)
        self._guards += 1
        with self.analyzer.constraint_scope(condition):
            yes = self.value(yes)
        no = self.value(no)
        self._guards -= 1
        return tirx.if_then_else(condition, yes, no)

    def _data_choice(self, condition: Expr, yes: Expr, no: Expr) -> Expr:
        """A choice by values that were read."""
        if self._is_safe(condition, yes, no):
            condition, yes, no = (self.value(e) for e in (condition, yes, no))
            return tirx.Select(condition, yes, no)
        self._guards += 1
        condition, yes, no = (self.value(e) for e in (condition, yes, no))
        self._guards -= 1
        self.body.scalar |= {id_of(v) for v in variables(condition)} & {id_of(i.var) for i in self.body.iters}
        return tirx.if_then_else(condition, yes, no)

    def _is_safe(self, *parts: Expr) -> bool:
        """Whether every read in ``parts`` stays within its buffer wherever it is computed."""
        bounds, accesses, cuts, scalar = (
            len(self._bounds),
            len(self.body.accesses),
            {k: set(v) for k, v in self.body.cuts.items()},
            set(self.body.scalar),
        )
        self._guards += 1
        for part in parts:
            self.value(part)
        self._guards -= 1
        safe = all(self._bounds[bounds:])
        del self._bounds[bounds:], self.body.accesses[accesses:]
        self.body.cuts, self.body.scalar = cuts, scalar
        return safe

    def _note_condition(self, condition: Expr) -> None:
        """Record where an unavoidable branch changes, so that loops can be split there."""
        parts: list[Any] = []
        kinds = (tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE)
        tvm_ffi.structural_walk(condition, (kinds, parts.append))
        known = {id_of(i.var): i for i in self.body.iters}
        for part in parts:
            used = [v for v in variables(part) if id_of(v) in known]
            if "int" not in str(part.a.ty.dtype):
                self.body.scalar |= {id_of(v) for v in used}
                continue
            coefs, rest = self._affine(self.analyzer.simplify(part.a - part.b))
            if len(used) == 1 and set(coefs) == {id_of(used[0])} and isinstance(rest, tirx.IntImm):
                c, d = coefs[id_of(used[0])], int(rest.value)
                # c v + d changes sign between floor(-d / c) and the next; equality holds at most there
                at = -d // c
                self.body.cuts.setdefault(id_of(used[0]), set()).update({at, at + 1} if -d % c == 0 else {at + 1})
            else:
                self.body.scalar |= {id_of(v) for v in used}


def _split_condition(condition: Expr) -> tuple[Expr | None, Expr | None]:
    """(the conjunction's parts that read nothing, those that do); None where there are none."""
    if isinstance(condition, tirx.And):
        left, right = _split_condition(condition.a), _split_condition(condition.b)
        return _both(left[0], right[0]), _both(left[1], right[1])
    return (None, condition) if loads(condition) else (condition, None)


def _both(a: Expr | None, b: Expr | None) -> Expr | None:
    return a if b is None else b if a is None else tirx.And(a, b)


def combine(kind: str, a: Expr, b: Expr) -> Expr:
    """One step of a reduction, in the type of ``a``. Both are used more than once for max and min: name them first."""
    b = b if str(b.ty.dtype) == str(a.ty.dtype) else tirx.Cast(str(a.ty.dtype), b)
    if kind == "sum":
        return a + b
    if kind == "prod":
        return a * b
    return floats.maximum(a, b) if kind == "max" else floats.minimum(a, b)


def identity(kind: str, dtype: str) -> Expr:
    """The neutral element."""
    if kind in ("sum", "prod"):
        return tirx.const(int(kind == "prod"), dtype)
    if "float" in dtype:
        return tirx.const(float("-inf" if kind == "max" else "inf"), dtype)
    return tirx.min_value(dtype) if kind == "max" else tirx.max_value(dtype)


def with_init(kind: str, init: Expr, total: Expr) -> Expr:
    """``total`` combined with the reduction's start, unless that is neutral (a type's least value counts as -infinity)."""
    dtype = str(total.ty.dtype)
    plain = tirx.min_value(dtype) if kind == "max" else tirx.max_value(dtype) if kind == "min" else identity(kind, dtype)
    if isinstance(init, tirx.IntImm | tirx.FloatImm) and float(init.value) in (
        float(plain.value),
        float(identity(kind, dtype).value),
    ):
        return total
    return combine(kind, init, total)


def _terms(index: Expr) -> list[Expr]:
    """What a sum adds up."""
    return [*_terms(index.a), *_terms(index.b)] if isinstance(index, tirx.Add) else [index]


def _own_coefficient(term: Expr, var: Any) -> int:
    """c where a term is ``c var``, else 0."""
    if isinstance(term, tirx.Mul) and isinstance(term.b, tirx.IntImm):
        return int(term.b.value) * _own_coefficient(term.a, var)
    return int(isinstance(term, ir.Var) and term.same_as(var))


def _affine_term(var: Any, coef: int) -> Expr:
    return var if coef == 1 else var * tirx.const(coef, var.ty.dtype)


def _grid(extents: Sequence[int]) -> list[tuple[int, ...]]:
    points: list[tuple[int, ...]] = [()]
    for n in extents:
        points = [(*p, k) for p in points for k in range(n)]
    return points


def _free_variables(expr: Expr) -> list[Any]:
    """Index variables used outside the affine part of a flat read (whose index is ``rest + c v + ...``)."""
    found: list[Any] = []

    def visit(e: Any, visitor: Any) -> None:
        for term in (t for index in e.indices for t in _terms(index)):
            plain = term.a if isinstance(term, tirx.Mul) and isinstance(term.b, tirx.IntImm) else term
            if not isinstance(plain, ir.Var):
                found.extend(_free_variables(term))

    def var(v: Any, _visitor: Any) -> None:
        if not tirx.is_buffer_var(v):
            found.append(v)

    tvm_ffi.structural_visit(expr, [(ir.TensorLoad, visit), (ir.Var, var)])
    return found
