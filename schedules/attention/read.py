"""What an attention kernel reads and writes, found by the annotations of its stages (``schedules/te/attention.py``).

Layouts that fusion has moved into the kernel (heads within a row, parts of one projection) end up in the operands'
index expressions, so nothing is copied for them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilegrad._base.tvm import tirx
from tilegrad.schedules.contraction.affine import Simplifier, affine, flat
from tilegrad.schedules.contraction.canonical import Contraction, Link, Operand, operand
from tilegrad.schedules.stages import Stage, inline, loads, stages


@dataclass(frozen=True)
class Attention:
    """``parts``: stages by name, ``inlined``: movements around them, ``outputs``: buffers that the kernel returns."""

    parts: Mapping[str, Stage]
    inlined: tuple[Stage, ...]
    outputs: tuple[Any, ...]

    @property
    def direction(self) -> str:
        """``forward`` or ``backward``."""
        return str(self.parts["scores"].annotations["direction"])

    @property
    def diagonal(self) -> int | None:
        """Query i sees key j where j <= i + diagonal."""
        found = self.parts["logits"].annotations.get("diagonal")
        return None if found is None else int(found)

    @property
    def dtype(self) -> str:
        """Element type of everything."""
        return self.parts["scores"].dtype

    @property
    def heads(self) -> int:
        """Number of independent attentions."""
        return math.prod(self.parts["scores"].shape[:-2])

    @property
    def queries(self) -> int:
        """Number of queries."""
        return self.parts["scores"].shape[-1]

    @property
    def keys(self) -> int:
        """Number of keys."""
        return self.parts["scores"].shape[-2]

    @property
    def width(self) -> int:
        """Length of a query and a key."""
        return self.parts["scores"].reduce[0].extent

    @property
    def value_width(self) -> int:
        """Length of a value."""
        part = self.parts["mix" if self.direction == "forward" else "dv"]
        return part.shape[-2 if self.direction == "forward" else -1]

    @property
    def bias(self) -> tuple[int, ...] | None:
        """The shape of what is added to the scores."""
        scores = self.parts["scores"].buffer
        found = [r for r in loads(self.parts["logits"].body) if not r.source.same_as(scores)]
        return tuple(int(d) for d in found[0].source.shape) if found else None

    def is_output(self, part: str) -> bool:
        """Whether the kernel returns that part's buffer."""
        return any(self.parts[part].buffer.same_as(o) for o in self.outputs)

    def product(self, part: str) -> Contraction:
        """One of the products as C[batch, m, n] = sum over k of A B; m and n are the stage's last two dimensions."""
        stage = self.parts[part]
        assert stage.combiner is not None
        update = stage.combiner[1]
        while isinstance(update, tirx.Cast):
            update = update.value
        axes = (*stage.spatial, *stage.reduce)
        simplify = Simplifier(axes)
        sides = [operand(inline(f, self.inlined), simplify, stage.dtype, self.inlined, f) for f in (update.a, update.b)]
        chain = (Link(stage, tuple(i.var for i in stage.spatial), self.is_output(part)),)
        batch, m, n = stage.spatial[:-2], stage.spatial[-2:-1], stage.spatial[-1:]
        a, b = sides
        return Contraction(
            stage.name, stage.annotations, batch, m, (), n, stage.reduce, a, b, stage.dtype, chain, self.inlined, (), False
        )  # fmt: skip


def in_place(op: Operand, axes: Sequence[Any]) -> bool:
    """Whether the operand is a plain matrix that can be read where it lies."""
    if op.read is None:
        return False
    place = affine(flat(op.read.source, op.read.indices, "int64"))
    return place is not None and all(place.fused([a]) is not None for a in axes)


def read(func: tirx.PrimFunc) -> Attention | None:
    """The attention that a kernel computes, or None."""
    found = stages(func)
    if found is None or not any("attention" in s.annotations for s in found):
        return None
    parts = {str(s.annotations["attention"]): s for s in found if "attention" in s.annotations}
    inlined = tuple(s for s in found if "attention" not in s.annotations and not s.reduce)
    outputs = tuple(p for p in func.params if any(s.buffer.same_as(p) for s in found))
    known = {id(s) for s in parts.values()}
    if any(s.buffer.same_as(o) for o in outputs for s in found if id(s) not in known):
        return None
    return Attention(parts, inlined, outputs)
