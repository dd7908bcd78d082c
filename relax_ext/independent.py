"""Whether no row of a batch can change what another row gives: then a batch may be run in parts.

Rows are followed through the kernels from the inputs: element ``idx`` of a buffer belongs to row ``idx[dim] // unit``. A kernel
is good when every element that it writes reads elements of its own row only; this is proven, not tried.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilegrad._base.errors import UsageError
from tilegrad._base.tvm import ir, s_tir, tirx, tvm
from tilegrad.runtime.program import Call, Program
from tilegrad.schedules.stages import id_of, loads, substitute


@dataclass(frozen=True)
class Place:
    """Where the row stands in a buffer's index: at ``idx[dim] // unit``."""

    dim: int
    unit: int


def follow(program: Program, batch: int) -> list[dict[int, Place | None]]:
    """For every call of a program for ``batch`` rows: the places in its kernel's buffers, by identity.

    None, or nothing, is for a buffer that has no rows of the batch. Raises UsageError naming the operator that mixes rows.
    """
    found = _Follow(program, batch)
    found.run()
    return found.known


@dataclass
class _Follow:
    program: Program
    batch: int
    places: dict[str, Place | None] = field(default_factory=dict)
    """Of every buffer that was written so far; None: the same for every row."""
    known: list[dict[int, Place | None]] = field(default_factory=list)
    """What ``follow`` returns."""

    def run(self) -> None:
        for name, b in self.program.buffers.items():
            if b.role != "view":
                self.places[name] = Place(0, 1) if b.role == "input" and b.shape[:1] == (self.batch,) else None
        for call in self.program.calls:
            self._call(call)
        for name in self.program.ports:
            b, place = self.program.buffers[name], self.places[name]
            if b.role == "output" and place is None:
                raise mixed(f"output '{name}' that no row of the batch decides")
            if b.role == "output" and place != Place(0, 1):
                raise mixed(f"output '{name}' whose rows are not along its first axis")

    def _call(self, call: Call) -> None:
        func = self.program.kernels[call.kernel]
        args = list(zip(func.params, call.args, strict=True))
        ins, outs = args[: len(args) - call.num_outputs], args[len(args) - call.num_outputs :]
        known: dict[int, Place | None] = {id_of(p): self._seen(a) for p, a in ins}
        if any(known.values()):
            where = f"kernel '{call.kernel}'"
            found = list(_stores(func.body, {}, (), where))
            for verified in (False, True):  # a kernel may read what it writes itself, before and after
                for store in found:
                    _take(store, known, self.batch, verified, where)
        self.known.append(known)
        for p, name in outs:
            if self.program.buffers[name].role in ("state", "hyper"):
                raise mixed(f"an update of the state '{name}'")
            self._wrote(name, known.get(id_of(p)))

    def _seen(self, name: str) -> Place | None:
        """The place in a buffer, or in the shape that a view gives it."""
        b = self.program.buffers[name]
        if b.role != "view":
            return self.places[name]
        base = self.program.buffers[b.view_of or ""]
        return self._moved(self.places[base.name], base.shape, b.shape, name)

    def _wrote(self, name: str, place: Place | None) -> None:
        b = self.program.buffers[name]
        base = self.program.buffers[b.view_of or name]
        self.places[base.name] = self._moved(place, b.shape, base.shape, name)

    def _moved(self, place: Place | None, old: tuple[int, ...], new: tuple[int, ...], name: str) -> Place | None:
        """The place after a reshape; only rows that lie one after the other stay whole in any shape."""
        if place is None or old == new:
            return place
        for dim, extent in enumerate(new):
            leads = math.prod(new[:dim]) == 1 and extent % self.batch == 0
            if math.prod(old[: place.dim]) == 1 and leads and place.unit * self.batch == old[place.dim]:
                return Place(dim, extent // self.batch)
        raise mixed(f"the reshape from {old} to {new}")


@dataclass(frozen=True)
class _Store:
    """``buffer[indices] = value`` for all values of variables below their extents; ``reads`` are the loads it depends on."""

    buffer: Any
    indices: Sequence[Any]
    reads: tuple[Any, ...]
    extents: Mapping[Any, Any]


def _stores(stmt: Any, extents: Mapping[Any, Any], reads: tuple[Any, ...], where: str) -> Iterator[_Store]:
    """Every store under a statement; ``reads`` decide whether it is reached."""
    if isinstance(stmt, tirx.SeqStmt):
        values: dict[Any, Any] = {}
        for s in stmt.seq:
            part = substitute(s, values) if values else s
            if isinstance(part, tirx.Bind):
                values[part.var] = part.value
            else:
                yield from _stores(part, extents, reads, where)
    elif isinstance(stmt, tirx.For):
        yield from _stores(stmt.body, {**extents, stmt.loop_var: (stmt.min, stmt.extent)}, (*reads, *loads(stmt.extent)), where)
    elif isinstance(stmt, tirx.AttrStmt):
        yield from _stores(stmt.body, extents, reads, where)
    elif isinstance(stmt, tirx.IfThenElse):
        reads = (*reads, *loads(stmt.condition))
        for s in (stmt.then_case, stmt.else_case):
            if s is not None:
                yield from _stores(s, extents, reads, where)
    elif isinstance(stmt, s_tir.SBlockRealize):
        inner = {**extents, **{i.var: (i.dom.min, i.dom.extent) for i in stmt.block.iter_vars}}
        for s in (stmt.block.init, stmt.block.body):
            if s is not None:
                yield from _stores(s, inner, (*reads, *loads(stmt.predicate)), where)
    elif isinstance(stmt, tirx.BufferStore):
        inside = (e for part in (stmt.value, *stmt.indices) for e in loads(part))
        yield _Store(stmt.buffer, stmt.indices, (*reads, *inside), extents)
    elif not isinstance(stmt, tirx.AllocBuffer):
        raise mixed(f"{where}, whose {type(stmt).__name__} cannot be looked into")


def _take(store: _Store, known: dict[int, Place | None], batch: int, verified: bool, where: str) -> None:
    """Note the place in the buffer that is written, or verify that all that is read is of the same row."""
    prover = tvm.sym.Analyzer()
    for var, (start, extent) in store.extents.items():
        prover.bind(var, ir.Range.from_min_extent(start, extent))
    rows = [_row(e.indices, place) for e in store.reads if (place := known.get(id_of(e.source))) is not None]
    if not rows:
        known.setdefault(id_of(store.buffer), None)
        return
    fits = [
        Place(dim, unit)
        for dim, extent in enumerate(store.buffer.shape)
        if (unit := int(extent) // batch) * batch == int(extent)
        and all(prover.can_prove_equal(_row(store.indices, Place(dim, unit)), row) for row in rows)
    ]
    before = known.get(id_of(store.buffer))
    if not fits or (verified and before not in fits):
        raise mixed(f"{where}, in what it writes to '{store.buffer.name}'")
    known[id_of(store.buffer)] = before or fits[0]


def _row(indices: Sequence[Any], place: Place) -> Any:
    index = indices[place.dim]
    return tirx.floordiv(index, tirx.const(place.unit, index.ty.dtype))


def mixed(what: str) -> UsageError:
    """The error for a model whose rows cannot be run one without the others."""
    return refused(f"a model that mixes rows of the batch: {what}")


def refused(got: str) -> UsageError:
    """The same, for another reason."""
    expected = "outputs whose rows depend on their own rows only, in the same way"
    return UsageError("argument 'max_batch'", got, expected, "Compile it for the sizes you need with batch_sizes=.")
