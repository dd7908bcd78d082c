"""An imported Graph as recorded operations, so that eager tensors, ``compile`` and ``compile_step`` treat it like any code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilegrad._base.tvm import ir, relax
from tilegrad.frontend.ops import OPS, OpSpec
from tilegrad.frontend.recording import Node, record
from tilegrad.relax_ext.graph import Graph
from tilegrad.relax_ext.region import substitute
from tilegrad.relax_ext.vjp.values import used_vars

OP = "replay"


class Step:
    """One call of an imported graph: an attribute of a recorded node, equal only to itself."""

    def __init__(self, call: relax.Expr, variables: Sequence[relax.Var]) -> None:
        self.call, self.variables = call, tuple(variables)

    def emit(self, *args: relax.Expr) -> relax.Expr:
        """The call on other arguments."""
        return substitute(self.call, dict(zip(self.variables, args, strict=True)))


OPS[OP] = OpSpec(lambda *args: args[-1].emit(*args[:-1]), "what the imported graph gives it")


class Program:
    """The bindings of a Graph, ready to be recorded again and again."""

    def __init__(self, graph: Graph) -> None:
        self.inputs = [p.name for p in graph.inputs]
        self.outputs = graph.outputs
        self._params = list(graph.main.params)
        self._steps: list[tuple[relax.Var, Any]] = []
        for block in graph.main.body.blocks:
            for binding in block.bindings:
                self._steps.append((binding.var, self._step(binding.value)))
        self._result = graph.main.body.body

    @staticmethod
    def _step(value: relax.Expr) -> Any:
        return Step(value, list(dict.fromkeys(used_vars(value)))) if isinstance(value, ir.Call) else value

    def record(self, ports: Mapping[str, Node]) -> dict[str, Node]:
        """Record every call with ``ports`` as inputs and states; the results by output name."""
        env: dict[relax.Var, Any] = {v: ports[name] for v, name in zip(self._params, self.inputs, strict=True)}
        for var, step in self._steps:
            if isinstance(step, Step):
                env[var] = record(OP, tuple(env[v] for v in step.variables), (step,))
            elif isinstance(step, relax.TupleGetItem):
                env[var] = record("get", (env[step.tuple_value],), (step.index,))
            elif isinstance(step, relax.Tuple):
                env[var] = [env[f] for f in step.fields]
            else:
                env[var] = env[step]
        results = env[self._result]
        return {p.name: node for p, node in zip(self.outputs, results, strict=True)}
