"""Graph -> Program: the whole way down the graph side, as one list of steps."""

from __future__ import annotations

from collections.abc import Callable

from tilegrad._base.tvm import relax, tvm
from tilegrad.relax_ext.drop_empty import drop_empty
from tilegrad.relax_ext.fold_transposes import fold_transposes
from tilegrad.relax_ext.fuse import fuse
from tilegrad.relax_ext.graph import Graph
from tilegrad.relax_ext.join_pieces import join_pieces
from tilegrad.relax_ext.join_products import join_products
from tilegrad.relax_ext.legalize import legalize
from tilegrad.relax_ext.literals import literals
from tilegrad.relax_ext.plan import plan
from tilegrad.relax_ext.saved import report
from tilegrad.relax_ext.share import share
from tilegrad.runtime.program import Program

Phase = Callable[[tvm.IRModule], tvm.IRModule]

PHASES: tuple[tuple[str, Phase], ...] = (
    ("simplify", relax.transform.DeadCodeElimination()),
    ("drop empty", drop_empty),
    ("share", share),
    ("join pieces", join_pieces),
    ("fold transposes", fold_transposes),
    ("join products", join_products),
    ("legalize", legalize),
    ("literals", literals),
    ("fuse", fuse),
)
"""(name, IRModule -> IRModule) in order; what ``explain`` prints the module after."""


def lower(graph: Graph, name: str = "main", phases: tuple[tuple[str, Phase], ...] = PHASES) -> Program:
    """The Program of a Graph. Raises UnsupportedOperatorError for operators without a legalization, all at once."""
    mod = graph.module
    for _, phase in phases:
        mod = phase(mod)
    return plan(name, mod, graph)


def explain(graph: Graph, name: str = "main") -> str:
    """The Graph, what its backward pass keeps, the module after each phase, and the Program, as text."""
    parts, mod = [("graph", graph.text())], graph.module
    if graph.saved:
        parts.append(("kept for the backward pass, in bytes", f"{report(graph.saved)}\n"))
    for title, phase in PHASES:
        mod = phase(mod)
        parts.append((title, f"{mod.script()}\n"))
    parts.append(("program", plan(name, mod, graph).text()))
    return "\n".join(f"# ---- {title} ----\n{body}" for title, body in parts)
