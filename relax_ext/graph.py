"""Graph: one Relax function whose parameters and results have names and roles, and its builder.

The builder is the only mutable thing. The frontend's recorder, the gradient walker and the passes that
add an optimizer's update all emit into it, so forward, backward and update share one list of bindings.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from tilegrad._base.errors import UsageError
from tilegrad._base.tvm import ir, relax, tvm

if TYPE_CHECKING:
    from tilegrad.relax_ext.saved import Saved

InRole = Literal["input", "state", "hyper"]


@dataclass(frozen=True)
class InPort:
    """One parameter of ``main``. Roles and limits as in runtime.program.Buffer."""

    name: str
    role: InRole
    limits: tuple[int, int, int] | None = None


@dataclass(frozen=True)
class OutPort:
    """One element of ``main``'s result tuple; ``updates`` names the state it is written back to, if any."""

    name: str
    updates: str | None = None


@dataclass(frozen=True)
class Graph:
    """``module["main"]`` is one dataflow block that returns a tuple; ports name its ends, in order."""

    module: tvm.IRModule
    inputs: tuple[InPort, ...]
    outputs: tuple[OutPort, ...]
    saved: tuple[Saved, ...] = field(default=(), compare=False)
    """What the backward pass keeps from the forward pass, largest first; empty for a Graph read from a file."""

    @property
    def main(self) -> relax.Function:
        """The Relax function."""
        return self.module["main"]

    def text(self) -> str:
        """Ports as a comment, then TVMScript."""
        ins = ", ".join(f"{p.name}:{p.role}" for p in self.inputs)
        outs = ", ".join(p.name + (f"->{p.updates}" if p.updates else "") for p in self.outputs)
        return f"# inputs {ins}\n# outputs {outs}\n{self.module.script()}\n"

    def dumps(self) -> str:
        """The content of a ``.tgraph`` file: one JSON object."""
        return json.dumps(
            {
                "tgraph": 1,
                "inputs": [[p.name, p.role, *([p.limits] if p.limits else [])] for p in self.inputs],
                "outputs": [[p.name, p.updates] for p in self.outputs],
                "module": ir.save_json(self.module),
            }
        )

    @staticmethod
    def loads(text: str) -> Graph:
        """The inverse of ``dumps``. Raises UsageError when the text is not a tgraph."""
        try:
            d = json.loads(text)
            assert d["tgraph"] == 1
        except (ValueError, KeyError, TypeError, AssertionError) as e:
            raise UsageError("Graph.loads", "text that is not a version-1 .tgraph", "the output of Graph.dumps") from e
        return Graph(
            ir.load_json(d["module"]),
            tuple(InPort(n, r, *map(tuple, limits)) for n, r, *limits in d["inputs"]),
            tuple(OutPort(n, u) for n, u in d["outputs"]),
        )


class GraphBuilder:
    """Emits Relax bindings into one dataflow block. Relax infers every shape and dtype."""

    def __init__(self) -> None:
        self._bb = relax.BlockBuilder()
        self._bb._begin_dataflow_block()
        self._open = True
        self._params: list[relax.Var] = []
        self._inputs: list[InPort] = []
        self._outputs: list[tuple[OutPort, relax.Expr]] = []
        self.bindings: list[tuple[relax.Var, relax.Expr]] = []
        """Every emitted (var, expr) in order; what the gradient walker walks."""
        self.where: dict[relax.Var, str] = {}
        """Source line of the user's code that a var comes from, where known."""
        self.regions: list[Any] = []
        """Spans of bindings with a gradient of their own (``relax_ext.region``): checkpoint and custom_vjp."""
        self.forward: int | None = None
        """How many bindings there were before the last gradient was emitted."""

    def __del__(self) -> None:
        if getattr(self, "_open", False):  # an error in the middle of a graph: TVM would print a warning about the open block
            self._bb._end_block()

    @property
    def block_builder(self) -> relax.BlockBuilder:
        """The underlying BlockBuilder, for ``normalize`` and ``add_func``; emit through ``emit``."""
        return self._bb

    def input(
        self, name: str, shape: Sequence[int], dtype: str, role: InRole = "input", limits: tuple[int, int, int] | None = None
    ) -> relax.Var:
        """Add a parameter of ``main``."""
        if any(p.name == name for p in self._inputs):
            raise UsageError(f"GraphBuilder.input, name '{name}'", "a name that is taken", "a unique name")
        var = relax.Var(name, relax.TensorType(tuple(int(d) for d in shape), dtype))
        self._params.append(var)
        self._inputs.append(InPort(name, role, limits))
        return var

    def emit(self, expr: relax.Expr, where: str | None = None) -> relax.Var:
        """Bind ``expr`` to a new var, its type inferred. A var is returned as it is."""
        if isinstance(expr, relax.Var):
            return expr
        expr = self._flattened(expr, where)
        var = self._bb.emit(expr)
        self.bindings.append((var, self._bb.lookup_binding(var)))
        if where is not None:
            self.where[var] = where
        return var

    def _flattened(self, expr: relax.Expr, where: str | None) -> relax.Expr:
        """``expr`` with the calls among its arguments bound first, so that ``bindings`` misses none."""

        def leaf(arg: relax.Expr) -> relax.Expr:
            if isinstance(arg, ir.Call) and not isinstance(arg.ty, ir.PrimType):
                return self.emit(arg, where)
            if isinstance(arg, relax.TupleGetItem):
                return self.emit(arg, where)
            return relax.Tuple([leaf(f) for f in arg.fields]) if isinstance(arg, relax.Tuple) else arg

        if isinstance(expr, relax.TupleGetItem):
            return relax.TupleGetItem(leaf(expr.tuple_value), expr.index)
        if not isinstance(expr, ir.Call) or all(isinstance(a, relax.Var) for a in expr.args):
            return expr
        args = [leaf(a) for a in expr.args]
        if all(a.same_as(b) for a, b in zip(args, expr.args, strict=True)):
            return expr
        return ir.Call(expr.op, args, expr.attrs, expr.ty_args)

    def output(self, name: str, expr: relax.Expr, updates: str | None = None) -> None:
        """Add an element of the result; with ``updates`` it is the new value of that state, of its shape and dtype.

        Raises UsageError for a name that is taken, by a port of either kind, and for an update of what is no state or has one.
        """
        if any(p.name == name for p, _ in self._outputs) or any(p.name == name for p in self._inputs):
            raise UsageError(f"GraphBuilder.output, name '{name}'", "a name that is taken", "a unique name")
        if updates is not None:
            done = [p.updates for p, _ in self._outputs]
            free = [p.name for p in self._inputs if p.role == "state" and p.name not in done]
            if updates not in free:
                raise UsageError(
                    f"GraphBuilder.output, 'updates' of '{name}'", f"'{updates}'", f"one of {free}, states without one"
                )
        self._outputs.append((OutPort(name, updates), expr))

    def finish(self) -> Graph:
        """Close the block and return the Graph. The builder cannot be used afterwards."""
        from tilegrad.relax_ext.saved import saved_for_backward  # which reads expressions as the rules do; they import this file

        result = self._bb.emit_output(relax.Tuple([e for _, e in self._outputs]))
        block = self._bb._end_block()
        self._open = False
        func = relax.Function(self._params, relax.SeqExpr([block], result), result.ty, is_pure=True)
        func = func.with_attr("global_symbol", "main")
        mod = self._bb.get()
        mod["main"] = func
        saved = () if self.forward is None else tuple(saved_for_backward(self, self.forward))
        return Graph(relax.transform.Normalize()(mod), tuple(self._inputs), tuple(p for p, _ in self._outputs), saved)
