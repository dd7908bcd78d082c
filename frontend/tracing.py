"""Tracing: a function run once on placeholders, its recording turned into one Graph with named ports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tilegrad._base.errors import UsageError
from tilegrad.frontend import convert, dtypes, random
from tilegrad.frontend.calling import as_array
from tilegrad.frontend.evaluate import Update, value_of
from tilegrad.frontend.gradients import flatten
from tilegrad.frontend.recording import Node, Type, placeholder
from tilegrad.frontend.tensor import Tensor

if TYPE_CHECKING:
    from tilegrad.relax_ext.graph import Graph

Signature = tuple[Type, ...]


def signature(arrays: Sequence[Any]) -> Signature:
    """Shapes and dtypes."""
    return tuple(Type.of(a.shape, a.dtype.name) for a in arrays)


def examples(inputs: Any, what: str) -> list[np.ndarray]:
    """Example inputs as arrays. Raises UsageError unless they come in a list or tuple."""
    if not isinstance(inputs, (list, tuple)):
        raise UsageError(f"{what}, argument 'example_inputs'", type(inputs).__name__, "a list or tuple of arrays", "Write [x].")
    arrays = []
    for x in inputs:
        a = as_array(x)
        if not isinstance(x, np.ndarray) and not hasattr(x, "dtype"):
            a, _ = dtypes.from_data(x, None)
        dtypes.name_of(a.dtype)
        arrays.append(np.asarray(a, order="C"))
    return arrays


def placeholders(types: Signature) -> list[Tensor]:
    """One Tensor without a value per input."""
    return [Tensor(placeholder(t.shape, t.dtype)) for t in types]


@dataclass
class States:
    """The Tensors that a compiled object keeps between calls, by name."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    hypers: dict[str, tuple[int, str]] = field(default_factory=dict)  # name -> (parameter group, key)

    def add_module(self, module: Any) -> None:
        """A module's parameters and buffers under their own names."""
        for name, t in [*module.named_parameters(), *module.named_buffers()]:
            self.tensors.setdefault(name, t)

    def add_found(self, nodes: Sequence[Node]) -> None:
        """Tensors with requires_grad that a function uses without belonging to a module."""
        known = {id(t) for t in self.tensors.values()}
        for n in nodes:
            owner = n.owner() if n.owner else None
            if n.bound and n.op == "leaf" and n.value is not None and owner is not None and id(owner) not in known:
                known.add(id(owner))
                self.tensors[f"tensor{len(self.tensors)}"] = owner

    def arrays(self) -> dict[str, np.ndarray]:
        """Every state's own array: programs read and write it in place."""
        return {name: value_of(t._node) for name, t in self.tensors.items()}


def build_graph(
    inputs: Mapping[str, Node],
    outputs: Mapping[str, Tensor],
    updates: Sequence[Update],
    states: States,
    hypers: Mapping[str, Node],
) -> Graph:
    """One Graph: inputs, then the states and hyperparameters that are used, then outputs and updates.

    States keep their names; an input named as one of them, or an output as any, is told apart by an underscore.
    """
    drawn = random.state()
    if any(u.tensor is drawn for u in updates):
        states.tensors.setdefault(random.STATE, drawn)
    roots = [t._node for t in outputs.values()] + [u.new for u in updates]
    rec = convert.needed(roots)
    states.add_found(rec.nodes)
    name_of = {id(t): name for name, t in states.tensors.items()}
    used = set(rec.nodes)
    base = {id(u.tensor): u.base for u in updates}
    taken = {*states.tensors, *hypers}
    ports = {node: convert.Port(distinct(name, taken), "input") for name, node in inputs.items()}
    for name, t in states.tensors.items():
        node = base.get(id(t), t._node)
        if node in used or id(t) in base:
            ports[node] = convert.Port(name, "state")
    ports |= {node: convert.Port(name, "hyper") for name, node in hypers.items() if node in used}
    outs = [convert.Output(distinct(name, taken), t._node) for name, t in outputs.items()]
    for u in updates:
        if id(u.tensor) not in name_of:
            raise UsageError(
                "tracing", "an in-place update of a Tensor that is no parameter or buffer", "assignments to buffers only"
            )
        outs.append(convert.Output(f"new.{name_of[id(u.tensor)]}", u.new, name_of[id(u.tensor)]))
    return convert.to_graph(rec, ports, outs)


def named_outputs(result: Any, name: str) -> tuple[dict[str, Tensor], Any]:
    """The leaves of a function's result by port name, and what rebuilds the result from them."""
    leaves, spec = flatten(result)
    for x in leaves:
        if not isinstance(x, Tensor):
            raise UsageError("tracing", f"a result of type {type(x).__name__}", "Tensors, or containers of them")
    names = [name] if len(leaves) == 1 else [f"{name}{i}" for i in range(len(leaves))]
    return dict(zip(names, leaves, strict=True)), spec


def input_names(function: Any, count: int) -> list[str]:
    """Names of the positional parameters, where they can be found out; ``x0``, ``x1``, ... otherwise."""
    import inspect

    try:
        f = function.forward if hasattr(function, "forward") else function
        params = list(inspect.signature(f).parameters.values())
        names = [p.name for p in params if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    except (TypeError, ValueError):
        names = []
    return names[:count] if len(names) >= count else [f"x{i}" for i in range(count)]


__all__ = ["Signature", "States", "build_graph", "examples", "input_names", "named_outputs", "placeholders", "signature"]


def distinct(name: str, taken: set[str]) -> str:
    """``name``, with an underscore for each time that it is taken; taken from now on."""
    while name in taken:
        name += "_"
    taken.add(name)
    return name
