"""Recorded nodes -> Graph, gradients expanded into the same builder by the reverse-mode walker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tilegrad.frontend.recording import Node, limits_of, ordered

if TYPE_CHECKING:
    from tilegrad.relax_ext.graph import Graph, GraphBuilder, InRole


@dataclass(frozen=True)
class Port:
    """The graph's name and role for a leaf (or for a number that became an argument)."""

    name: str
    role: InRole


@dataclass(frozen=True)
class Output:
    """A result of the graph; ``updates`` names the state it is written back to."""

    name: str
    node: Node
    updates: str | None = None


@dataclass(frozen=True)
class Recording:
    """What a set of roots needs: ``nodes``, inputs before users. Those in ``leaves`` enter with the value they have."""

    nodes: list[Node]
    expanded: set[Node]

    def is_leaf(self, n: Node) -> bool:
        """Whether the node enters with its value. One that is differentiated through is computed again instead."""
        return n.op == "leaf" or (n.value is not None and n not in self.expanded)


def needed(roots: Iterable[Node]) -> Recording:
    """The nodes that must be emitted to compute ``roots``."""
    roots = list(roots)
    expanded: set[Node] = set(roots)
    while True:
        size = len(expanded)
        rec = Recording(
            ordered(roots, lambda n: () if n.op == "leaf" or (n.value is not None and n not in expanded) else n.inputs), expanded
        )
        for n in rec.nodes:
            if n.op == "vjp" and not rec.is_leaf(n):
                expanded.update(m for m in ordered(n.inputs[: n.attrs[0]], _gradient_inputs) if m.grad and not m.bound)
        if len(expanded) == size:
            return rec


def _gradient_inputs(n: Node) -> tuple[Node, ...]:
    return () if n.bound else tuple(i for i in n.inputs if i.grad)


def to_graph(rec: Recording, ports: Mapping[Node, Port], outputs: Sequence[Output]) -> Graph:
    """Emit the recording. Inputs appear in the order of ``ports``; a leaf without a port becomes a constant."""
    from tilegrad._base.tvm import relax
    from tilegrad.relax_ext.graph import GraphBuilder
    from tilegrad.relax_ext.ops.reshape import reshape

    builder = GraphBuilder()
    exprs: dict[Node, Any] = {}
    stopped: dict[Node, Any] = {}
    for node, port in ports.items():
        found = limits_of(node) if port.role == "input" else None
        limits = (found.low, found.high, found.also) if found else None
        exprs[node] = builder.input(port.name, node.type.shape, node.type.dtype, port.role, limits)
    for n in rec.nodes:
        if n in exprs:
            continue
        if n.op == "const":
            exprs[n] = relax.const(n.attrs[0], n.type.dtype)
            continue
        if rec.is_leaf(n):
            exprs[n] = relax.const(n.value, n.type.dtype)
            continue
        args = [exprs[i] for i in n.inputs]
        for k, i in enumerate(n.inputs):
            if n.grad and i.stop:
                if i not in stopped:
                    stopped[i] = stop_gradient(builder, exprs[i], i.place)
                args[k] = stopped[i]
        exprs[n] = _emit(builder, n.op, n.attrs, n.type, n.place, args)
    seen: set[Any] = set()
    for out in outputs:
        expr = exprs[out.node]
        if not isinstance(expr, relax.Var) or expr in seen or out.node in ports:  # every result is an array of its own
            expr = builder.emit(reshape(expr, out.node.type.shape))
        seen.add(expr)
        builder.output(out.name, expr, out.updates)
    return builder.finish()


def _emit(builder: GraphBuilder, op: str, attrs: tuple[Any, ...], type: Any, place: str | None, args: list[Any]) -> Any:
    """The expression of one recorded operation; a list for one with several results."""
    from tilegrad._base.tvm import relax
    from tilegrad.frontend.ops import OPS

    if op == "get":
        group = args[0]
        return group[attrs[0]] if isinstance(group, list) else builder.emit(relax.TupleGetItem(group, attrs[0]), place)
    if op == "vjp":
        return _vjp(builder, attrs, type, args)
    if op == "detach":
        return args[0]
    if op == "alias":
        return _alias(builder, args[0])
    if op == "call":
        return attrs[0].emit(builder, [as_var(builder, a) for a in args])
    return builder.emit(OPS[op].emit(*args, *attrs), place)


def emit_steps(builder: GraphBuilder, steps: Sequence[Step], exprs: list[Any]) -> list[Any]:
    """Emit the steps of a block; ``exprs`` holds its inputs and grows by one entry a step."""
    from tilegrad._base.tvm import relax

    stopped: dict[int, Any] = {}
    for s in steps:
        if s.op == "const":
            exprs.append(relax.const(s.attrs[0], s.type.dtype))
            continue
        args = [exprs[i] for i in s.inputs]
        for k in s.stopped:
            i = s.inputs[k]
            if i not in stopped:
                stopped[i] = stop_gradient(builder, exprs[i], s.place)
            args[k] = stopped[i]
        exprs.append(_emit(builder, s.op, s.attrs, s.type, s.place, args))
    return exprs


@dataclass(frozen=True)
class Step:
    """One recorded operation of a block: ``inputs`` are positions, ``stopped`` those of them that no gradient may pass."""

    op: str
    attrs: tuple[Any, ...]
    inputs: tuple[int, ...]
    stopped: tuple[int, ...]
    type: Any
    place: str | None = field(compare=False)


def as_var(builder: GraphBuilder, expr: Any) -> Any:
    """A var that holds the expression."""
    from tilegrad._base.tvm import relax

    if isinstance(expr, relax.Var):
        return expr
    return builder.emit(relax.op.full(expr.ty.shape, expr, str(expr.ty.dtype)))


def _alias(builder: GraphBuilder, value: Any) -> Any:
    """A var of its own for the value, so that differentiation by it sees this use alone."""
    var = builder.block_builder.emit(value)
    builder.bindings.append((var, value))
    return var


def _vjp(builder: GraphBuilder, attrs: tuple[Any, ...], types: Any, args: list[Any]) -> list[Any]:
    """``attrs`` = (outputs, cotangents): that many outputs, that many cotangents, then what is differentiated."""
    from tilegrad._base.tvm import relax
    from tilegrad.relax_ext.gradient import vjp

    outs, cots = attrs
    grads = vjp(builder, args[:outs], args[outs : outs + cots], args[outs + cots :])
    return [builder.emit(relax.op.zeros(t.shape, t.dtype)) if g is None else g for g, t in zip(grads, types, strict=True)]


def stop_gradient(builder: GraphBuilder, expr: Any, place: str | None) -> Any:
    """The value behind an operator that no gradient passes."""
    from tilegrad.frontend.ops import OPS

    return builder.emit(OPS["stop_gradient"].emit(expr), place)
