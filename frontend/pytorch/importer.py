"""torch.export's ATen graph -> Graph, one table entry an operator, every result checked against PyTorch's own types."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from tilegrad._base.errors import DTypeError, ModelImportError, TilegradError
from tilegrad._base.tvm import relax
from tilegrad.frontend.pytorch.lowering import Cannot, Lowering, RandomState, Type, constant, dtype_name
from tilegrad.frontend.pytorch.table import load_rules, overload_name
from tilegrad.frontend.pytorch.tensors import to_numpy
from tilegrad.frontend.pytorch.unsupported import Unsupported, user_line
from tilegrad.frontend.tracing import distinct
from tilegrad.relax_ext.graph import Graph, GraphBuilder
from tilegrad.relax_ext.ops.reshape import reshape
from tilegrad.relax_ext.vjp.values import Tape, Value

log = logging.getLogger(__name__)

DTYPES = frozenset("bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64".split())


IGNORED = frozenset({"_assert_tensor_metadata.default"})
"""Nodes that compute nothing: statements about types that our own inference checks anyway."""


@dataclass
class Imported:
    """An exported program as a Graph.

    states: parameters and buffers by PyTorch's names, in the order of the Graph's state ports.
    parameters: the names of those that are parameters (the rest are buffers).
    inputs, outputs: the names of the user's ports.
    """

    graph: Graph
    states: dict[str, np.ndarray]
    parameters: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass
class OpenImport:
    """An import whose builder still takes bindings: for losses, gradients and updates behind the model's own results.

    inputs, states: the vars of the ports by name. outputs: the user's results by name. updates: new values of states.
    nodes: every FX node's value by the node's name.
    """

    builder: GraphBuilder
    tape: Tape
    inputs: dict[str, relax.Var]
    states: dict[str, relax.Var]
    parameters: tuple[str, ...]
    data: dict[str, np.ndarray]
    outputs: dict[str, relax.Expr]
    updates: dict[str, relax.Expr]
    nodes: dict[str, Any]

    def finish(self, more: Mapping[str, relax.Expr] | None = None) -> Imported:
        """The Graph of all results, the updates of states, and ``more`` outputs by name."""
        results = [(name, e, None) for name, e in {**self.outputs, **(more or {})}.items()]
        add_outputs(self.builder, [*results, *((f"{name}.new", e, name) for name, e in self.updates.items())])
        names = tuple(name for name, _, _ in results)
        return Imported(self.builder.finish(), self.data, self.parameters, tuple(self.inputs), names)


def import_exported(ep: torch.export.ExportedProgram) -> Imported:
    """Import an exported program: inputs, states with PyTorch's names, outputs, and mutated buffers as updates.

    Raises UnsupportedOperatorError (every unsupported operator of the model, with counts and source lines),
    DTypeError (complex or quantised tensors), ModelImportError (dynamic shapes, inputs that are mutated).
    """
    return open_exported(ep).finish()


def open_exported(ep: torch.export.ExportedProgram, decomposed: bool = False) -> OpenImport:
    """As ``import_exported``, with the builder left open. ``decomposed``: the program has been taken apart already."""
    from tilegrad.frontend.pytorch.decompositions import decompose

    builder = GraphBuilder()
    tape = Tape(builder)
    ep = ep if decomposed else decompose(ep)
    ports = _add_ports(builder, tape, ep)
    random = RandomState(tape)
    values = emit_graph(tape, ep.graph, ports.values, random)
    outputs, updates = _outputs(ep, values, {*ports.inputs, *ports.states})
    after = random.advanced()
    if after is not None:
        assert random.value is not None
        ports.states[RandomState.NAME] = random.value.expr
        ports.data[RandomState.NAME] = np.zeros(2, np.int64)
        updates[RandomState.NAME] = after
    tape.flush([v.expr for v in (*outputs.values(), *updates.values())])
    return OpenImport(
        builder, tape, ports.inputs, ports.states, tuple(ports.parameters), ports.data,
        {n: v.expr for n, v in outputs.items()}, {n: v.expr for n, v in updates.items()}, values,
    )  # fmt: skip


@dataclass
class _Ports:
    values: dict[str, Value] = field(default_factory=dict)
    inputs: dict[str, relax.Var] = field(default_factory=dict)
    states: dict[str, relax.Var] = field(default_factory=dict)
    data: dict[str, np.ndarray] = field(default_factory=dict)
    parameters: list[str] = field(default_factory=list)


def _add_ports(builder: GraphBuilder, tape: Tape, ep: torch.export.ExportedProgram) -> _Ports:
    """Parameters of the Graph: user inputs first, then states by their PyTorch names; constants are baked in."""
    from torch.export.graph_signature import InputKind, TensorArgument

    placeholders = {n.name: n for n in ep.graph.nodes if n.op == "placeholder"}
    ports = _Ports()
    tied: dict[torch.Tensor, str] = {}
    for spec in sorted(ep.graph_signature.input_specs, key=lambda s: s.kind != InputKind.USER_INPUT):
        if not isinstance(spec.arg, TensorArgument):
            continue  # a Python number or string: already a constant of the graph
        name, target = spec.arg.name, spec.target
        if spec.kind == InputKind.USER_INPUT:
            ty = type_of(placeholders[name].meta["val"], f"input '{name}'")
            ports.inputs[name] = builder.input(name, ty.shape, ty.dtype)
            ports.values[name] = tape.value(ports.inputs[name])
            continue
        data = ep.state_dict[target] if target in ep.state_dict else ep.constants[target]
        ty = type_of(data, f"{spec.kind.name.lower()} '{target}'")
        if spec.kind == InputKind.PARAMETER:  # tied weights come once, under their first name
            target = tied.setdefault(data, target)
        if spec.kind == InputKind.CONSTANT_TENSOR:
            ports.values[name] = tape.value(constant(to_numpy(data), ty.dtype))
            continue
        if target not in ports.states:
            ports.data[target] = to_numpy(data)
            ports.states[target] = builder.input(target, ty.shape, ty.dtype, "state")
            if spec.kind == InputKind.PARAMETER:
                ports.parameters.append(target)
        ports.values[name] = tape.value(ports.states[target])
    return ports


def _outputs(
    ep: torch.export.ExportedProgram, values: Mapping[str, Any], taken: set[str]
) -> tuple[dict[str, Value], dict[str, Value]]:
    """The user's results by names not ``taken`` (``output``, ``output1``, ...), and the new values of mutated buffers."""
    from torch.export.graph_signature import OutputKind, TensorArgument

    results: dict[str, Value] = {}
    updates: dict[str, Value] = {}
    for spec in ep.graph_signature.output_specs:
        if spec.kind == OutputKind.USER_INPUT_MUTATION:
            raise ModelImportError(
                "from_torch", f"a model that writes into its input '{spec.target}'", "inputs that are only read",
                "Return the new value instead of assigning in place.",
            )  # fmt: skip
        if not isinstance(spec.arg, TensorArgument):
            continue
        if spec.kind == OutputKind.BUFFER_MUTATION:
            assert spec.target is not None
            updates[spec.target] = values[spec.arg.name]
        else:
            results[distinct(f"output{len(results)}" if results else "output", taken)] = values[spec.arg.name]
    return results, updates


def add_outputs(builder: GraphBuilder, outputs: Sequence[tuple[str, relax.Expr, str | None]]) -> None:
    """Add results, each as an array of its own: inputs, constants and repeated results are copied."""
    bound = {v for v, _ in builder.bindings}
    for name, expr, updates in outputs:
        if expr not in bound:
            shape = tuple(int(d) for d in expr.ty.shape)
            if isinstance(expr, relax.Var):
                expr = builder.emit(reshape(expr, shape))
            else:
                expr = builder.emit(relax.op.broadcast_to(expr, shape))
        bound.discard(expr)
        builder.output(name, expr, updates)


def emit_graph(tape: Tape, graph: torch.fx.Graph, values: Mapping[str, Value], random: RandomState) -> dict[str, Any]:
    """Write every node of an ATen graph onto the tape; ``values`` holds the placeholders'. Returns values by node name.

    Raises UnsupportedOperatorError with all that cannot be written.
    """
    rules = load_rules()
    env: dict[str, Any] = dict(values)
    unsupported = Unsupported()
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        tape.where = user_line(node)
        name = overload_name(node.target)
        if name in IGNORED or (not _ready(node, env) and not _makes_tensors(node)):
            continue  # a statement; or numbers from the result of an unsupported operator, such as its size
        if name is None:
            _python_node(node, env, unsupported)
        elif name not in rules:
            unsupported.add(name, node)
        elif not _ready(node, env):
            continue  # reads the result of an unsupported operator
        else:
            try:
                env[node.name] = _apply(rules[name], tape, node, name, env, random)
            except Cannot as reason:
                unsupported.add(name, node, str(reason))
            except TilegradError:
                raise
            except Exception as fault:
                log.debug("the rule of %s failed", name, exc_info=True)
                first_line = next(iter(str(fault).strip().splitlines()), "")
                unsupported.add(name, node, f"its rule does not take these arguments ({type(fault).__name__}: {first_line})")
    unsupported.raise_if_any()
    return env


def _python_node(node: torch.fx.Node, env: dict[str, Any], unsupported: Unsupported) -> None:
    import operator

    if node.target is operator.getitem:
        if _ready(node, env):
            source, index = node.args
            env[node.name] = env[source.name][index]  # type: ignore[union-attr]
    else:
        unsupported.add(getattr(node.target, "__name__", str(node.target)), node)


def _ready(node: torch.fx.Node, env: Mapping[str, Any]) -> bool:
    return all(n.name in env for n in node.all_input_nodes)


def _makes_tensors(node: torch.fx.Node) -> bool:
    made = node.meta.get("val")
    return any(isinstance(x, torch.Tensor) for x in (made if isinstance(made, (tuple, list)) else [made]))


def _apply(rule: Any, tape: Tape, node: torch.fx.Node, name: str, env: Mapping[str, Any], random: RandomState) -> Any:
    """Run one rule and hold its results against PyTorch's types."""
    if "val" not in node.meta:
        raise ModelImportError(f"from_torch, node '{node.name}'", "a node without a recorded type", "torch.export's output")
    several = isinstance(node.meta["val"], (tuple, list))
    metas = list(node.meta["val"]) if several else [node.meta["val"]]
    types = [type_of(m, f"{name} at {user_line(node) or node.name}") if isinstance(m, torch.Tensor) else None for m in metas]
    args = torch.fx.node.map_arg(node.args, lambda n: env[n.name])
    kwargs = torch.fx.node.map_arg(node.kwargs, lambda n: env[n.name])
    if types and all(t is not None and 0 in t.shape for t in types):
        results: list[Any] = [tape.zeros(t.shape, t.dtype) for t in types if t is not None]
    else:
        result = rule(Lowering(tape, types, name, random), *_plain(args), **_plain(kwargs))
        results = list(result) if isinstance(result, (tuple, list)) else [result]
    for i, (got, want) in enumerate(zip(results, types, strict=False)):
        if isinstance(got, Value) and want is not None and (got.shape, got.dtype) != (want.shape, want.dtype):
            raise ModelImportError(
                f"from_torch, result {i} of {name} at {user_line(node) or node.name}",
                f"{got.dtype}{list(got.shape)}", f"{want.dtype}{list(want.shape)}, as PyTorch infers",
                "This is a fault of the operator's rule; please report it.",
            )  # fmt: skip
    return results if several else results[0]


def _plain(args: Any) -> Any:
    """FX's immutable containers as lists, dtypes by name."""
    if isinstance(args, torch.dtype):
        return dtype_name(args)
    if isinstance(args, tuple):
        return tuple(_plain(a) for a in args)
    if isinstance(args, list):
        return [_plain(a) for a in args]
    if isinstance(args, dict):
        return {k: _plain(v) for k, v in args.items()}
    return args


def type_of(meta: torch.Tensor, where: str) -> Type:
    """Shape and dtype of a (fake) tensor. Raises DTypeError and ModelImportError for what cannot be static or is no number."""
    dtype = dtype_name(meta.dtype)
    if dtype not in DTYPES:
        raise DTypeError(where, dtype, "one of " + ", ".join(sorted(DTYPES)))
    if any(not isinstance(d, int) for d in meta.shape):
        raise ModelImportError(
            where, f"the symbolic shape {list(meta.shape)}", "static shapes",
            "Export without dynamic_shapes, and avoid results whose size depends on values (nonzero, x[mask]).",
        )  # fmt: skip
    return Type(tuple(meta.shape), dtype)
