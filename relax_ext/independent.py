"""Whether no row of a batch can change what another row gives: then a batch may be run in parts.

Rows are followed through the kernels from the inputs: element ``idx`` of a buffer belongs to row ``idx[dim] // unit``. A kernel
is good when every element that it writes reads elements of its own row only; this is proven, not tried.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tilegrad._base.errors import UsageError
from tilegrad._base.tvm import ir, tirx, tvm
from tilegrad.runtime.program import Call, Program
from tilegrad.schedules.stages import Stage, id_of, loads, stages


@dataclass(frozen=True)
class Place:
    """Where the row stands in a buffer's index: at ``idx[dim] // unit``."""

    dim: int
    unit: int


def check(programs: Mapping[int, Program]) -> None:
    """``programs``: the same function for several batch sizes. Raises UsageError naming the operator that mixes rows."""
    for size, program in programs.items():
        if size > 1:
            _Follow(program, size).run()


@dataclass
class _Follow:
    program: Program
    batch: int
    places: dict[str, Place | None] = field(default_factory=dict)
    """Of every buffer that was written so far; None: the same for every row."""

    def run(self) -> None:
        for name, b in self.program.buffers.items():
            if b.role != "view":
                self.places[name] = Place(0, 1) if b.role == "input" and b.shape[:1] == (self.batch,) else None
        for call in self.program.calls:
            self._call(call)
        for name in self.program.ports:
            b, place = self.program.buffers[name], self.places[name]
            if b.role == "output" and place not in (None, Place(0, 1)):
                raise _mixed(f"output '{name}' whose rows are not along its first axis")

    def _call(self, call: Call) -> None:
        func = self.program.kernels[call.kernel]
        known: dict[int, Place | None] = {id_of(p): self._seen(a) for p, a in zip(func.params, call.args, strict=True)}
        outs = list(zip(func.params, call.args, strict=True))[len(call.args) - call.num_outputs :]
        if all(known[id_of(p)] is None for p, a in zip(func.params, call.args, strict=True) if (p, a) not in outs):
            places: list[Place | None] = [None for _ in outs]
        else:
            parts = stages(func)
            if parts is None:
                raise _mixed(f"kernel '{call.kernel}', which cannot be looked into")
            for stage in parts:
                known[id_of(stage.buffer)] = _place(stage, known, self.batch, call.kernel)
            places = [known[id_of(p)] for p, _ in outs]
        for (_, name), place in zip(outs, places, strict=True):
            if self.program.buffers[name].role in ("state", "hyper"):
                raise _mixed(f"an update of the state '{name}'")
            self._wrote(name, place)

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
        raise _mixed(f"the reshape from {old} to {new}")


def _place(stage: Stage, known: Mapping[int, Place | None], batch: int, kernel: str) -> Place | None:
    """The place in what a stage writes."""
    prover = tvm.sym.Analyzer()
    for i in (*stage.spatial, *stage.reduce):
        prover.bind(i.var, ir.Range(tirx.const(0, i.var.ty.dtype), tirx.const(i.extent, i.var.ty.dtype)))
    row: Any = None
    for load in [e for e in loads(stage.body) if not e.source.same_as(stage.buffer)]:
        place = known[id_of(load.source)]
        if place is None:
            continue
        own = tirx.floordiv(load.indices[place.dim], tirx.const(place.unit, load.indices[place.dim].ty.dtype))
        if row is not None and not prover.can_prove_equal(row, own):
            raise _mixed(f"operator '{stage.name}' of kernel '{kernel}'")
        row = own if row is None else row
    if row is None:
        return None
    for dim, i in enumerate(stage.spatial):
        if i.extent % batch == 0:
            unit = i.extent // batch
            if prover.can_prove_equal(tirx.floordiv(i.var, tirx.const(unit, i.var.ty.dtype)), row):
                return Place(dim, unit)
    raise _mixed(f"operator '{stage.name}' of kernel '{kernel}'")


def _mixed(what: str) -> UsageError:
    got = f"a model that mixes rows of the batch: {what}"
    expected = "outputs whose rows depend on their own rows only"
    return UsageError("argument 'max_batch'", got, expected, "Compile it for the sizes you need with batch_sizes=.")
