"""Which ATen operators are taken apart before import: all that PyTorch can, except those with a rule of our own."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from tilegrad.frontend.pytorch.table import load_rules, overload_name

_EMPTY = torch.fx.Graph()


def decompose(ep: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The functional ATen graph that the rules are for."""
    graphs = [getattr(module, "graph", _EMPTY) for module in ep.graph_module.modules()]
    present = {overload_name(n.target) for graph in graphs for n in graph.nodes}
    rules, table = load_rules(), {}
    for op, f in _whole_table().items():
        name = overload_name(op)
        # Keeping a composite operator whole costs milliseconds, so only those that occur are kept.
        if name not in rules or (_is_composite(op) and name not in present):
            table[op] = f
    with warnings.catch_warnings():  # PyTorch copies its own deprecated tree types
        warnings.filterwarnings("ignore", message=".*LeafSpec.*", category=FutureWarning)
        return ep.run_decompositions(table)


@cache
def _whole_table() -> dict[Any, Callable[..., Any]]:
    # PyTorch's own composites win over the registered Python versions, which may leave views that cannot be made functional.
    return {**registered(), **dict(torch.export.default_decompositions())}


def _is_composite(op: Any) -> bool:
    return op.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)


@cache
def registered() -> dict[Any, Callable[..., Any]]:
    """PyTorch's registered decompositions of operators without a rule; what ``aot_autograd`` takes."""
    import torch._refs  # noqa: F401  (registers)
    from torch._decomp import decomposition_table

    rules = load_rules()
    return {op: f for op, f in decomposition_table.items() if overload_name(op) not in rules}
