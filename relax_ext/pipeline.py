"""Graph -> Program: the whole way down the graph side, as one list of steps."""

from __future__ import annotations

from tilegrad._base.tvm import relax
from tilegrad.relax_ext.fold_transposes import fold_transposes
from tilegrad.relax_ext.fuse import fuse
from tilegrad.relax_ext.graph import Graph
from tilegrad.relax_ext.legalize import legalize
from tilegrad.relax_ext.plan import plan
from tilegrad.runtime.program import Program

PHASES = (
    ("simplify", relax.transform.DeadCodeElimination()),
    ("fold transposes", fold_transposes),
    ("legalize", legalize),
    ("fuse", fuse),
)
"""(name, IRModule -> IRModule) in order; what ``explain`` prints the module after."""


def lower(graph: Graph, name: str = "main") -> Program:
    """The Program of a Graph. Raises UnsupportedOperatorError for operators without a legalization, all at once."""
    mod = graph.module
    for _, phase in PHASES:
        mod = phase(mod)
    return plan(name, mod, graph)
