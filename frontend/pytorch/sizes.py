"""Graphs whose sizes PyTorch left open (a second batch size makes it do so): one static graph for each set of sizes met."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tilegrad._base.errors import ModelImportError, TilegradError

Function = Callable[..., Any]

MOST_SETS = 64
"""Sets of sizes with a library of their own; a number that changes with every call would compile without end."""


def has_open_sizes(gm: torch.fx.GraphModule) -> bool:
    """Whether an input is a number that is not known yet, or a tensor with such a size."""
    return any(_open(n.meta.get("val")) for n in gm.graph.nodes if n.op == "placeholder")


def _open(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return any(not isinstance(d, int) for d in (*value.shape, *value.stride()))
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)


class BySizes:
    """A function made by ``compiled(inputs)`` for every set of sizes, when one is first met.

    ``left(reason)`` gives what runs the sets that cannot be compiled, and those beyond ``MOST_SETS``.
    """

    def __init__(self, gm: torch.fx.GraphModule, compiled: Callable[[Sequence[Any]], Function], left: Function) -> None:
        self._compiled, self._left = compiled, left
        values = [n.meta.get("val") for n in gm.graph.nodes if n.op == "placeholder"]
        self._deciding = [(i, isinstance(v, torch.Tensor)) for i, v in enumerate(values) if _open(v)]
        self._known: dict[Any, Function] = {}
        self._rest: Function | None = None

    def __call__(self, *args: Any) -> Any:
        """Run once."""
        key = tuple(tuple(args[i].shape) if tensor else args[i] for i, tensor in self._deciding)
        return (self._known.get(key) or self._rest or self._make(key, args))(*args)

    def _make(self, key: Any, args: Sequence[Any]) -> Function:
        if len(self._known) == MOST_SETS:
            self._rest = self._left(
                ModelImportError(
                    "torch.compile",
                    f"more than {MOST_SETS} sets of sizes and numbers",
                    "a few that come again",
                    "Pad to a few sizes, and pass a number that changes as a tensor.",
                )  # fmt: skip
            )
            return self._rest
        try:
            self._known[key] = self._compiled(args)
        except TilegradError as e:
            self._known[key] = self._left(e)
        return self._known[key]


def with_sizes(gm: torch.fx.GraphModule, args: Sequence[Any]) -> torch.fx.GraphModule:
    """The graph for inputs of the sizes of ``args``: arithmetic of sizes is done, every tensor's type is static.

    Raises ModelImportError where a size depends on values.
    """
    from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode

    try:
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            return _with_sizes(gm, [mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in args])
    except (DataDependentOutputException, DynamicOutputShapeException) as e:
        raise ModelImportError(
            "torch.compile", f"{e.func}, whose result's size depends on values", "sizes that follow from the inputs' sizes",
            "Use a mask with torch.where.",
        ) from e  # fmt: skip


def _with_sizes(gm: torch.fx.GraphModule, args: Sequence[Any]) -> torch.fx.GraphModule:
    graph, rest = torch.fx.Graph(), iter(args)
    values: dict[torch.fx.Node, Any] = {}
    written: dict[torch.fx.Node, torch.fx.Node] = {}

    def write(node: torch.fx.Node) -> None:
        written[node] = graph.node_copy(node, lambda n: written.get(n, values[n]))
        if node.op != "output":
            written[node].meta["val"] = values[node]

    for node in gm.graph.nodes:
        if node.op == "placeholder":
            values[node] = next(rest)
            write(node)
        elif node.op == "get_attr":
            values[node] = node.meta.get("val")
            write(node)
        elif node.op == "output":
            write(node)
        else:
            values[node] = node.target(
                *torch.fx.map_arg(node.args, values.__getitem__), **torch.fx.map_arg(node.kwargs, values.__getitem__)
            )
            if _has_tensor(values[node]):  # the others are sizes, or statements about them
                write(node)
    return torch.fx.GraphModule(gm, graph)


def _has_tensor(value: Any) -> bool:
    return any(isinstance(v, torch.Tensor) for v in (value if isinstance(value, list | tuple) else [value]))
