"""Regions: runs of bindings that the reverse walk treats as one node, to recompute them or to use a rule of the user's own.

A region is contiguous: whatever reads its results comes after it, so that all of their cotangents are known when the
walk reaches its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tilegrad._base.errors import UsageError
from tilegrad._base.tvm import ir, relax
from tilegrad.relax_ext import ops
from tilegrad.relax_ext.graph import GraphBuilder

if TYPE_CHECKING:
    from tilegrad.relax_ext.gradient import Walk

Forward = Callable[..., "relax.Expr | Sequence[relax.Expr]"]
Backward = Callable[..., Sequence["relax.Expr | None"]]


@dataclass(frozen=True)
class Region:
    """``builder.bindings[start:stop]`` with its arguments and results."""

    start: int
    stop: int
    inputs: tuple[relax.Var, ...]
    outputs: tuple[relax.Var, ...]
    has_own_rule: bool = False

    def moved(self, start: int, stop: int, new: dict[relax.Var, relax.Expr]) -> Region:
        """The same region of a copy of the bindings, in which ``new[v]`` stands for ``v``."""
        inputs, outputs = (tuple(new.get(v, v) for v in vs) for vs in (self.inputs, self.outputs))
        return replace(self, start=start, stop=stop, inputs=inputs, outputs=outputs)

    def pull(self, walk: Walk) -> None:
        """Send the cotangents of what the region defines to what it reads."""
        raise NotImplementedError


def own_inputs(spans: Sequence[Region]) -> dict[relax.Var, tuple[relax.Var, ...]]:
    """Result -> arguments, for the regions with a rule of the user's own."""
    return {v: s.inputs for s in spans if s.has_own_rule for v in s.outputs}


def checkpoint(builder: GraphBuilder, function: Forward, *inputs: relax.Var) -> list[relax.Var]:
    """Emit ``function(*inputs)`` so that its gradient recomputes it instead of keeping its intermediates.

    ``function`` emits into ``builder`` and returns one or more vars. The recomputation starts from ``tilegrad.barrier``
    of the inputs and of a cotangent, so no pass can merge it with the forward computation or move it before the backward.
    """
    return _record(builder, _Checkpoint, function, inputs)


def custom_vjp(builder: GraphBuilder, forward: Forward, backward: Backward, *inputs: relax.Var) -> list[relax.Var]:
    """Emit ``forward(*inputs)``, whose gradient is ``backward(inputs, outputs, cotangents)``.

    Both emit into ``builder``; ``backward`` gets three lists of vars and returns one expression or None per input.
    The forward may call anything, kernels of the user's own (``call_tir``) included. Rules in ``backward`` are
    differentiated in turn for higher orders.
    """

    def make(start: int, stop: int, inputs: tuple[relax.Var, ...], outputs: tuple[relax.Var, ...]) -> Region:
        return _Custom(start, stop, inputs, outputs, True, backward)

    return _record(builder, make, forward, inputs)


def _record(
    builder: GraphBuilder, make: Callable[..., Region], function: Forward, inputs: Sequence[relax.Var]
) -> list[relax.Var]:
    start = len(builder.bindings)
    results = function(*inputs)
    outputs = [builder.emit(r) for r in (results if isinstance(results, (list, tuple)) else [results])]
    if len(builder.bindings) > start:
        builder.regions.append(make(start, len(builder.bindings), tuple(inputs), tuple(outputs)))
    return outputs


@dataclass(frozen=True)
class _Custom(Region):
    backward: Backward = lambda *_: ()

    def pull(self, walk: Walk) -> None:
        tape, builder = walk.tape, walk.tape.builder
        inside = {v for v, _ in walk.bindings[self.start : self.stop]}
        stray = next((v for v in inside if walk.cotangent(v) is not None and v not in self.outputs), None)
        if stray is not None:
            raise UsageError("custom_vjp", f"an inner value '{stray.name}' that is used outside", "use of its results only")
        given = [walk.cotangent(v) for v in self.outputs]
        if all(g is None for g in given):
            return
        values = [g if g is not None else tape.value(v).zeros_like() for g, v in zip(given, self.outputs, strict=True)]
        tape.flush([*self.inputs, *self.outputs, *(g.expr for g in values)])
        results = list(self.backward(list(self.inputs), list(self.outputs), [g.expr for g in values]))
        if len(results) != len(self.inputs):
            raise UsageError(
                "custom_vjp, result of 'backward'", f"{len(results)} gradients", f"one for each of {len(self.inputs)} inputs"
            )
        for var, g in zip(self.inputs, results, strict=True):
            walk.contribute(var, tape.value(builder.emit(g)) if g is not None else None)


@dataclass(frozen=True)
class _Checkpoint(Region):
    def pull(self, walk: Walk) -> None:
        from tilegrad.relax_ext.gradient import Walk as Inner

        tape = walk.tape
        body = walk.bindings[self.start : self.stop]
        given = {v: walk.cotangent(v) for v, _ in body if walk.cotangent(v) is not None}
        if not given:
            return
        first = next(iter(given.values()))
        token = next(p for p in (first if isinstance(first, list) else [first]) if p is not None)
        inputs = list(dict.fromkeys(self.inputs))
        again = {v: tape.bind(ops.barrier(v, token.expr)).expr for v in inputs}
        back = {w: v for v, w in again.items()}
        copies: dict[relax.Var, relax.Expr] = {}
        places = [0]
        for var, expr in body:
            new = substitute(expr, again)
            again[var] = tape.bind(new).expr
            copies.setdefault(again[var], new)
            places.append(len(copies))
        spans = [s.moved(places[s.start - self.start], places[s.stop - self.start], again) for s in self._within(walk)]
        body_reads = {v for v in walk.active if v not in again}
        inner = Inner(tape, list(copies.items()), {w for w, v in back.items() if v in walk.active} | body_reads, spans)
        for var, g in given.items():
            inner.contribute(again[var], g)
        for var, g in inner.run().items():
            walk.contribute(back.get(var, var), g)

    def _within(self, walk: Walk) -> list[Region]:
        """Regions inside of this one."""
        return [s for s in walk.spans if s is not self and self.start <= s.start and s.stop <= self.stop]


def substitute(expr: relax.Expr, new: dict[relax.Var, relax.Expr]) -> relax.Expr:
    """``expr`` reading ``new[v]`` wherever it reads a var ``v`` of ``new``."""
    if isinstance(expr, relax.Var):
        return new.get(expr, expr)
    if isinstance(expr, relax.Tuple):
        return relax.Tuple([substitute(f, new) for f in expr.fields])
    if isinstance(expr, relax.TupleGetItem):
        return relax.TupleGetItem(substitute(expr.tuple_value, new), expr.index)
    if isinstance(expr, ir.Call):
        return ir.Call(expr.op, [substitute(a, new) for a in expr.args], expr.attrs, expr.ty_args)
    return expr
