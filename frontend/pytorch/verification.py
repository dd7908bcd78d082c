"""``verify``: PyTorch's value of every operator beside ours, and the first that differs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tilegrad.frontend.pytorch.decompositions import decompose
from tilegrad.frontend.pytorch.importer import open_exported
from tilegrad.frontend.pytorch.table import overload_name
from tilegrad.frontend.pytorch.tensors import to_numpy
from tilegrad.frontend.pytorch.unsupported import user_line
from tilegrad.relax_ext.driver import build_graphs
from tilegrad.relax_ext.vjp.values import Value


@dataclass(frozen=True)
class Stage:
    """One operator: its ATen name, the node, the user's line, the largest difference relative to the value's size."""

    operator: str
    node: str
    where: str
    difference: float
    ok: bool


@dataclass(frozen=True)
class Verification:
    """Stages in program order. True when all agree."""

    stages: tuple[Stage, ...]

    @property
    def ok(self) -> bool:
        """Whether every operator agrees."""
        return all(s.ok for s in self.stages)

    @property
    def first_difference(self) -> Stage | None:
        """The first operator that differs."""
        return next((s for s in self.stages if not s.ok), None)

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        bad = self.first_difference
        if bad is None:
            worst = max((s.difference for s in self.stages), default=0.0)
            return f"{len(self.stages)} operators agree with PyTorch, largest difference {worst:.2g}"
        others = sum(not s.ok for s in self.stages) - 1
        return f"{bad.operator} at {bad.where} ({bad.node}) differs from PyTorch by {bad.difference:.3g}; so do {others} after it"


class _Recorder(torch.fx.Interpreter):
    """Keeps the value of every node."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__(module)
        self.values: dict[str, torch.Tensor] = {}

    def run_node(self, n: torch.fx.Node) -> Any:
        """The node's value, noted when it is a tensor."""
        value = super().run_node(n)
        if isinstance(value, torch.Tensor):
            self.values[n.name] = value.detach().clone()
        return value


def verify(
    module: torch.nn.Module, inputs: Sequence[Any], training: bool | None = None, rtol: float = 1e-3, logs: Any = None
) -> Verification:
    """Compare every operator's value with PyTorch's, stage by stage.

    Parameters
    ----------
    module, inputs: as for ``from_torch``.
    training: the mode; default the module's own. Values that depend on random numbers are left out.
    rtol: accepted difference relative to each value's largest element (halved exponent for 16-bit floats).
    logs: as for ``compile``.
    """
    from tilegrad.frontend.pytorch.model import exported

    tensors = [torch.as_tensor(x) for x in inputs]
    ep = decompose(exported(module, tensors, module.training if training is None else training))
    expected = _expected(ep, tensors)
    opened = open_exported(ep, decomposed=True)
    wanted = _comparable(ep, opened.nodes, expected)
    opened.tape.flush([v.expr for v in wanted.values()])
    done = opened.finish({f"node.{name}": v.expr for name, v in wanted.items()})
    context = build_graphs({"verify": done.graph}, logs=logs).library.context()
    for name, data in done.states.items():
        context.state(name)[...] = data
    got = context.run("verify", {n: to_numpy(t) for n, t in zip(done.inputs, tensors, strict=True)})
    nodes = {n.name: n for n in ep.graph.nodes}
    stages = [_stage(nodes[name], got[f"node.{name}"], expected[name], rtol) for name in wanted]
    return Verification(tuple(stages))


def _expected(ep: torch.export.ExportedProgram, tensors: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    """PyTorch's value of every node."""
    user = iter(tensors)
    signature = ep.graph_signature
    args: list[Any] = []
    for spec in signature.input_specs:
        if spec.kind.name == "USER_INPUT":
            args.append(next(user) if hasattr(spec.arg, "name") and not hasattr(spec.arg, "value") else spec.arg.value)
        else:
            data = ep.state_dict[spec.target] if spec.target in ep.state_dict else ep.constants[spec.target]
            args.append(data.detach().clone())
    recorder = _Recorder(ep.graph_module)
    with torch.no_grad():
        recorder.run(*args)
    return recorder.values


def _comparable(ep: torch.export.ExportedProgram, nodes: dict[str, Any], expected: dict[str, torch.Tensor]) -> dict[str, Value]:
    """Our values of operators, in order, without those that depend on random numbers."""
    found: dict[str, Value] = {}
    random: set[str] = set()
    for n in ep.graph.nodes:
        if n.op != "call_function":
            continue
        tags = getattr(n.target, "tags", ())
        drawn = (
            torch.Tag.nondeterministic_seeded in tags and n.args[1:] and not (overload_name(n.target) or "").startswith("empty")
        )
        if drawn or any(i.name in random for i in n.all_input_nodes):
            random.add(n.name)
        elif isinstance(nodes.get(n.name), Value) and n.name in expected:
            found[n.name] = nodes[n.name]
    return found


def _stage(node: torch.fx.Node, got: np.ndarray, want: torch.Tensor, rtol: float) -> Stage:
    a, b = torch.from_numpy(got.copy()), want
    if want.dtype == torch.bfloat16:
        a = a.view(torch.bfloat16)
    a, b = a.to(torch.float64), b.to(torch.float64)
    same = (a == b) | (a.isnan() & b.isnan())
    finite = b[b.isfinite()]
    scale = max(float(finite.abs().max()) if finite.numel() else 0.0, 1e-6)
    error = torch.where(same, torch.zeros_like(a), (a - b).abs() / scale)
    worst = float(error.max()) if error.numel() else 0.0
    limit = max(rtol, 2e-2) if want.dtype in (torch.float16, torch.bfloat16) else rtol
    name = str(overload_name(node.target) or getattr(node.target, "__name__", node.target))
    return Stage(name, node.name, user_line(node) or "?", worst, bool(worst <= limit))
