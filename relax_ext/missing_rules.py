"""The one error for operators on a differentiated path that have no rule."""

from __future__ import annotations

from collections.abc import Iterable

from tilegrad._base.errors import UnsupportedOperatorError
from tilegrad._base.tvm import ir, relax
from tilegrad.relax_ext import region as regions
from tilegrad.relax_ext.graph import GraphBuilder
from tilegrad.relax_ext.vjp import RULES, WITHOUT
from tilegrad.relax_ext.vjp.expressions import op_name

_LINES_SHOWN = 5


def raise_if_rules_are_missing(builder: GraphBuilder, bindings: Iterable[tuple[relax.Var, relax.Expr]]) -> None:
    """Raise one UnsupportedOperatorError that lists every operator of ``bindings`` without a rule, with its source lines."""
    missing: dict[str, list[str]] = {}
    exempt = regions.own_inputs(builder.regions)
    for var, expr in bindings:
        known = isinstance(expr, (relax.Tuple, relax.TupleGetItem, relax.Var)) or (
            isinstance(expr, ir.Call) and op_name(expr) in RULES
        )
        if not known and var not in exempt:
            name = op_name(expr) if isinstance(expr, ir.Call) else type(expr).__name__
            missing.setdefault(name, []).append(builder.where.get(var, ""))
    if missing:
        raise UnsupportedOperatorError(
            "gradient",
            f"{len(missing)} operator(s) without a VJP rule:\n"
            + "\n".join(_line(op, lines) for op, lines in sorted(missing.items())),
            "operators of docs/gradients.md",
            "Add a rule with @vjp_rule('<operator>') from tilegrad.relax_ext.vjp, wrap the computation in custom_vjp, "
            "or cut the path with stop_gradient",
        )


def _line(op: str, lines: list[str]) -> str:
    seen = list(dict.fromkeys(line for line in lines if line))
    at = (
        (", at " + ", ".join(seen[:_LINES_SHOWN]) + (f" and {len(seen) - _LINES_SHOWN} more" if len(seen) > _LINES_SHOWN else ""))
        if seen
        else ""
    )
    reason = f" ({WITHOUT[op]})" if op in WITHOUT else ""
    return f"  {op}{reason}: {len(lines)} call(s){at}"
