"""A program for one batch, made to take any number of rows up to it.

Kernels that work on rows are given as many as there are, in one of two ways. A contraction gets the number of rows as an
argument and bounds its own loops (``schedules/contraction/bound.py``). Any other kernel is cut down to a few rows, and to one
row, and the runtime goes through the batch with both: this is right because a row of what it writes depends on the same row
of what it reads (``independent.py``) in the same way for every row, which is proven here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tilegrad import schedules
from tilegrad._base.target import Target
from tilegrad._base.tvm import tirx
from tilegrad.relax_ext.independent import Place, follow, refused
from tilegrad.runtime.program import Buffer, ByRows, Call, Program
from tilegrad.schedules.contraction import TEMPLATE as CONTRACTION
from tilegrad.schedules.contraction.affine import Simplifier
from tilegrad.schedules.contraction.bound import bounded
from tilegrad.schedules.contraction.canonical import simplify_loads
from tilegrad.schedules.finish import element_bytes
from tilegrad.schedules.stages import Expr, Iter, Stage, id_of, loads, replace_loads, stages, substitute, to_func, variables

BATCH = "batch"
"""The buffer with the number of rows."""
SMALL = 1 << 14
"""Bytes that a kernel should at least touch in one call."""
LONG = 50e-6
"""Seconds from which on one row is worth dividing among the threads."""


def any_batch(program: Program, batch: int, target: Target, bound: bool = True) -> Program:
    """``program``, made for ``batch`` rows, for 1 to ``batch`` rows.

    bound: contractions may bound their own loops. Raises UsageError naming the operator that mixes rows, or that knows which row
    is which in a way that cannot be followed.
    """
    if batch == 1:
        return program
    places = follow(program, batch)
    buffers, kernels, calls = dict(program.buffers), {}, []
    for call, known in zip(program.calls, places, strict=True):
        func = program.kernels[call.kernel]
        if not any(known.values()):
            kernels[call.kernel] = func
            calls.append(call)
            continue
        whole = _bounded(func, known, batch) if bound else None
        if whole is not None:
            name = f"{call.kernel}_to_{batch}"
            buffers.setdefault(BATCH, Buffer(BATCH, (1,), "int64", "batch"))
            kernels[name] = whole
            calls.append(replace(call, kernel=name, args=(BATCH, *call.args)))
        else:
            calls.append(_by_rows(call, func, known, batch, target, kernels))
    return replace(program, buffers=buffers, calls=tuple(calls), kernels=kernels, batch=batch)


def _bounded(func: tirx.PrimFunc, known: Mapping[int, Place | None], batch: int) -> tirx.PrimFunc | None:
    if schedules.task_of(func)[0] is not CONTRACTION:
        return None
    core = next(s for s in stages(func) or () if s.reduce)
    place = known.get(id_of(core.buffer))
    if place is None:
        return None
    batched = [i for i, p in enumerate(func.params) if (at := known.get(id_of(p))) is not None and _leads(p, at)]
    if len(batched) < sum(known.get(id_of(p)) is not None for p in func.params):
        return None
    return bounded(func, batch, core.buffer, place.dim, place.unit, batched)


def _leads(buffer: tirx.Var, place: Place) -> bool:
    """Whether the rows follow one another from the first element on."""
    return math.prod(int(d) for d in buffer.shape[: place.dim]) == 1


def _by_rows(
    call: Call, func: tirx.PrimFunc, known: Mapping[int, Place | None], batch: int, target: Target, kernels: dict[str, Any]
) -> Call:
    cut = _Cut(call.kernel, func, dict(known), batch)
    single = cut.to(1)
    steps = [_row_bytes(call.kernel, p, cut.places.get(id_of(p)), batch) for p in func.params]
    template, workload = schedules.task_of(single)
    alone = target.with_threads(1)
    long = template.estimate(workload, template.default(workload, alone), alone) >= LONG
    parts = 1 if long else min(target.threads, batch)
    rows = 1 if long or cut.sums else max(1, min(-(-SMALL // max(1, sum(steps))), batch // parts))
    kind = "rows" if long else "serial"
    names = [f"{call.kernel}_{n}_{kind}" for n in (rows, 1)]
    kernels[names[0]], kernels[names[1]] = cut.to(rows), single
    return replace(call, kernel=names[0], by_rows=ByRows(names[1], rows, tuple(steps), parts))


def _row_bytes(kernel: str, param: tirx.Var, place: Place | None, batch: int) -> int:
    if place is None:
        return 0
    if not _leads(param, place):
        raise refused(f"kernel '{kernel}', whose rows of '{param.name}' do not follow one another in memory")
    return math.prod(int(d) for d in param.shape) // batch * element_bytes(param.dtype)


class _Cut:
    """A kernel that works on fewer rows."""

    def __init__(self, name: str, func: tirx.PrimFunc, places: dict[int, Place | None], batch: int) -> None:
        """Raises UsageError for a kernel that cannot be looked into, or where rows are not all worked on alike."""
        self.where, self.func, self.places, self.batch = f"kernel '{name}'", func, places, batch
        found = stages(func)
        if found is None:
            raise refused(f"{self.where}, whose loops cannot be divided by rows")
        # Readers first: what only they know of a buffer (a column of row numbers, for one) is known when its writer's turn comes.
        self.stages = [self._stage(s) for s in reversed(found)][::-1]

    @property
    def sums(self) -> bool:
        """Whether it adds or multiplies floats up: kernels for different numbers of rows may do so in different orders."""
        ordered = (s for s in self.stages if s.reduce and "float" in s.dtype)
        return any(s.combiner is None or s.combiner[0] in ("sum", "prod") for s in ordered)

    def to(self, rows: int) -> tirx.PrimFunc:
        """The kernel for ``rows`` rows."""
        table = {}
        for b in [*self.func.params, *(s.buffer for s in self.stages)]:
            if (place := self.places.get(id_of(b))) is not None:
                shape = [place.unit * rows if d == place.dim else int(n) for d, n in enumerate(b.shape)]
                table[id_of(b)] = tirx.decl_buffer(shape, b.dtype, b.name)

        def swap(e: Expr) -> Expr:
            return tirx.BufferLoad(table.get(id_of(e.source), e.source), e.indices)

        def cut(s: Stage) -> Stage:
            place = self.places.get(id_of(s.buffer))
            spatial = [Iter(x.var, place.unit * rows) if place and d == place.dim else x for d, x in enumerate(s.spatial)]
            body = replace_loads(s.body, swap)
            return replace(s, buffer=table.get(id_of(s.buffer), s.buffer), spatial=tuple(spatial), body=body)

        params = [table.get(id_of(p), p) for p in self.func.params]
        return to_func(params, [cut(s) for s in self.stages], self.func.attrs)

    def _stage(self, s: Stage) -> Stage:
        """The stage with its indices simplified, once it is proven that it does the same to every row."""
        body = simplify_loads(s.body, Simplifier((*s.spatial, *s.reduce)))
        place = self.places.get(id_of(s.buffer))
        if place is None:
            return replace(s, body=body)
        row = s.spatial[place.dim]
        number = tirx.Var("row", row.var.ty)
        axes = [Iter(x.var, place.unit) if x is row else x for x in (*s.spatial, *s.reduce)]
        simplify = Simplifier([*axes, Iter(number, self.batch)])
        moved = simplify_loads(substitute(body, {row.var: row.var + number * place.unit}), simplify)
        for e in loads(moved):
            if id_of(e.source) not in self.places or self.places[id_of(e.source)] is None:
                self._learn(e, number, simplify)

        def relative(e: Expr) -> Expr | None:
            at = self.places.get(id_of(e.source))
            if at is None:
                return None
            return tirx.BufferLoad(e.source, [i - number * at.unit if d == at.dim else i for d, i in enumerate(e.indices)])

        rest = simplify_loads(replace_loads(moved, relative), simplify)
        if any(id_of(v) == id_of(number) for v in variables(rest)):
            raise refused(f"{self.where}, in which '{s.buffer.name}' depends on the number of its row")
        return replace(s, body=body)

    def _learn(self, load: Expr, number: tirx.Var, simplify: Simplifier) -> None:
        """Where the rows of a buffer lie that is the same for every call but not for every row."""
        for dim, index in enumerate(load.indices):
            extent = int(load.source.shape[dim])
            if extent % self.batch == 0 and any(id_of(v) == id_of(number) for v in variables(index)):
                unit = extent // self.batch
                if not any(id_of(v) == id_of(number) for v in variables(simplify(index - number * unit))):
                    self.places[id_of(load.source)] = Place(dim, unit)
