"""Which ATen operators are taken apart before import: all that PyTorch can, except those with a rule of our own."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from tilegrad.frontend.pytorch.table import load_rules, overload_name


def decompose(ep: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The functional ATen graph that the rules are for."""
    return ep.run_decompositions(dict(export_table()))


@cache
def export_table() -> dict[Any, Callable[..., Any]]:
    """For ``ExportedProgram.run_decompositions``: composite operators are kept where a rule exists."""
    # PyTorch's own composites win over the registered Python versions, which may leave views that cannot be made functional.
    table = {**registered(), **dict(torch.export.default_decompositions())}
    return {op: f for op, f in table.items() if overload_name(op) not in load_rules()}


@cache
def registered() -> dict[Any, Callable[..., Any]]:
    """PyTorch's registered decompositions of operators without a rule; what ``aot_autograd`` takes."""
    import torch._refs  # noqa: F401  (registers)
    from torch._decomp import decomposition_table

    rules = load_rules()
    return {op: f for op, f in decomposition_table.items() if overload_name(op) not in rules}
