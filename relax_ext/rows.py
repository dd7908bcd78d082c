"""Which kernels work row by row on the same rows, so that one pass may compute them all while a row is in cache.

A reduction fixes the rows: the index variables it keeps. From there they are followed through the buffers that kernels
share: a buffer's *row dimensions* are those that a row variable indexes, in the rows' order. Kernels fit together when
everything they exchange is read in the row it was written in. A reduction over exactly the rows fits too, at the end:
no other kernel of the pass may read its result.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from tilegrad._base.tvm import ir, relax, tirx
from tilegrad.relax_ext.lowered import Node
from tilegrad.schedules.finish import element_bytes
from tilegrad.schedules.reduction.plan import SIDE_BYTES
from tilegrad.schedules.stages import Stage, id_of, loads

MIN_ROWS = 8
"""With fewer rows there is too little to share out among threads."""

Dims = tuple[int, ...]


class Rows:
    """The row dimensions of every var that a set of kernels touches; grows kernel by kernel."""

    def __init__(self, extents: tuple[int, ...]) -> None:
        self.extents = extents
        self.dims: dict[relax.Var, Dims] = {}
        self._read: set[relax.Var] = set()
        self._ended: set[relax.Var] = set()

    @staticmethod
    def of(anchor: Node) -> Rows | None:
        """The rows of a reduction kernel; None when it has none worth sharing out, or keeps its innermost dimension."""
        first = next(s for s in anchor.stages if s.reduce)
        kept = [i for i in first.spatial if i.extent > 1]
        rows = Rows(tuple(i.extent for i in kept))
        if math.prod(rows.extents) < MIN_ROWS:
            return None
        for load in loads(first.body):
            if load.source.same_as(first.buffer):
                continue
            dims = _positions(load.indices, [i.var for i in kept])
            if dims is not None and dims and dims[-1] == len(load.source.shape) - 1:
                return None  # sums over the other dimensions: rows are not contiguous
        return rows if rows.add(anchor, seed={id_of(first.buffer): [i.var for i in kept]}) else None

    def add_all(self, nodes: Iterable[Node]) -> bool:
        """Add kernels in whatever order their shared vars become known. False (and nothing added) when one does not fit."""
        before = dict(self.dims), set(self._read), set(self._ended)
        waiting = list(nodes)
        while waiting:
            ready = [n for n in waiting if any(v in self.dims or v in self._ended for v in _vars(n))]
            if not ready or not self.add(ready[0]):
                self.dims, self._read, self._ended = before
                return False
            waiting.remove(ready[0])
        return True

    def add(self, node: Node, seed: dict[int, list[tirx.Var]] | None = None) -> bool:
        """Whether the kernel works on these rows; if so its vars become known."""
        var_of = {
            id_of(p): v for p, v in zip(node.func.params, [*node.args, *node.outs], strict=True) if isinstance(v, relax.Var)
        }
        known = {b: self.dims[v] for b, v in var_of.items() if v in self.dims}
        if not known and seed is None:
            return self._follow(node)
        todo = list(node.stages)
        ended: set[int] = set()
        while (found := next(((s, r) for s in todo if (r := self._row_vars(s, known, seed))), None)) is not None:
            stage, rows = found
            if self._ends(stage, rows) and self._agree(stage, rows, known):
                ended.add(id_of(stage.buffer))
            elif not self._take(stage, rows, known):
                return False
            todo.remove(stage)
        ended |= {id_of(s.buffer) for s in todo}  # these follow the ends, or have nothing to do with rows
        read, written = set(_vars_in(node.args)), {v for b, v in var_of.items() if b in ended}
        if any(s.reduce for s in todo) or read & self._ended or written & (self._read | read):
            return False
        self._read |= read
        self._ended |= written
        self.dims |= {v: known[b] for b, v in var_of.items() if b in known}
        return True

    def _follow(self, node: Node) -> bool:
        """Take in arithmetic on what ended the rows."""
        written = set(_vars_in(node.outs))
        if any(s.reduce for s in node.stages) or written & self._read:
            return False
        self._ended |= written
        return True

    def _row_vars(self, stage: Stage, known: dict[int, Dims], seed: dict[int, list[tirx.Var]] | None) -> list[tirx.Var] | None:
        """The stage's variables that stand for the rows, read off the first known buffer it touches."""
        own = id_of(stage.buffer)
        if seed and own in seed:
            return seed[own]
        if own in known:
            return [stage.spatial[d].var for d in known[own]]
        for load in loads(stage.body):
            if (dims := known.get(id_of(load.source))) is not None:
                return [load.indices[d] for d in dims]
        return None

    def _ends(self, stage: Stage, rows: list[tirx.Var]) -> bool:
        """Whether the stage reduces over exactly the rows, to results that stay in the cache meanwhile."""
        over = {id_of(i.var): i.extent for i in stage.reduce if i.extent > 1}
        size = math.prod(stage.shape) * element_bytes(stage.dtype)
        return (
            stage.combiner is not None
            and [over.get(id_of(r)) for r in rows] == list(self.extents)
            and len(over) == len(rows)
            and size <= SIDE_BYTES
        )

    def _take(self, stage: Stage, rows: list[tirx.Var], known: dict[int, Dims]) -> bool:
        extents = {id_of(i.var): i.extent for i in stage.spatial}
        if [extents.get(id_of(r)) if isinstance(r, ir.Var) else None for r in rows] != list(self.extents):
            return False
        place = _positions([i.var for i in stage.spatial], rows)
        if place is None or (stage.reduce and any(i.extent > 1 and d not in place for d, i in enumerate(stage.spatial))):
            return False
        return known.setdefault(id_of(stage.buffer), place) == place and self._agree(stage, rows, known)

    @staticmethod
    def _agree(stage: Stage, rows: list[tirx.Var], known: dict[int, Dims]) -> bool:
        """Whether the stage reads what is known in its own rows; what it reads by them is known from here on."""
        for load in loads(stage.body):
            at = _positions(load.indices, rows)
            if id_of(load.source) in known:
                if at != known[id_of(load.source)]:
                    return False
            elif at is not None:
                known[id_of(load.source)] = at
        return True


def _vars(node: Node) -> list[relax.Var]:
    return _vars_in((*node.args, *node.outs))


def _vars_in(exprs: Iterable[relax.Expr | None]) -> list[relax.Var]:
    return [v for v in exprs if isinstance(v, relax.Var)]


def _positions(indices: Iterable[tirx.PrimExpr], rows: list[tirx.Var]) -> Dims | None:
    """Where each row variable stands alone among ``indices``; None unless all do, once."""
    ids = [id_of(e) if isinstance(e, ir.Var) else None for e in indices]
    wanted = [id_of(r) for r in rows]
    return tuple(ids.index(w) for w in wanted) if all(ids.count(w) == 1 for w in wanted) else None
