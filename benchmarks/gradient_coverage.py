"""Which operators have gradients, as checked here and now: ``python -m benchmarks.gradient_coverage --json``.

One row per operator: how many checks against central differences there are and how far off it was at worst. An operator
counts for an order only if every one of its checks of that order ran and passed. The denominator is every operator with a
float result that is differentiable somewhere; the others stand, with the reason, in docs/gradients.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from tests.gradients.checker import Case, Outcome, check
from tests.gradients.test_rules import CHUNK, TABLES
from tilegrad._base.tvm import ir
from tilegrad.relax_ext.vjp import RULES, WITHOUT

# What upstream's pass differentiates, by the attribute its pass looks for.
_UPSTREAM_RULE = "FPrimalGradient"
# Reasons in WITHOUT that excuse no operator from having a rule.
_OPEN = "no rule yet"


def denominator() -> list[str]:
    """Operators with a rule, and those that ought to have one."""
    return sorted({*RULES, *(op for op, reason in WITHOUT.items() if _OPEN in reason)})


def upstream_has_rule(op: str) -> bool:
    """Whether TVM itself registers a gradient for ``op``."""
    return op.startswith("relax.") and ir.Op.get(op).get_attr(_UPSTREAM_RULE) is not None


def rows(ops: Sequence[str]) -> Iterator[dict[str, Any]]:
    """One row per operator, from checks run now."""
    found: dict[str, list[tuple[Case, Outcome]]] = {}
    for cases in TABLES.values():
        chosen = [c for c in cases if c.op in ops]
        for at in range(0, len(chosen), CHUNK):
            part = chosen[at : at + CHUNK]
            outcomes = check(part)
            for case in part:
                found.setdefault(case.op, []).append((case, outcomes[case.id]))
    for op in ops:
        results = found.get(op, [])
        row: dict[str, Any] = {"operator": op, "checks": len(results), "upstream": upstream_has_rule(op)}
        for order in (1, 2):
            asked = [(c, o) for c, o in results if c.order >= order]
            passed = [o.error is None and o.mismatch(order) < c.tol for c, o in asked]
            row[f"order_{order}"] = bool(passed) and all(passed)
            row[f"error_{order}"] = max((o.mismatch(order) for _, o in asked if o.error is None), default=None)
        yield row


def summary(table: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The fractions; see the module's text for what counts."""
    n = len(table)

    def share(key: str) -> float:
        return round(sum(bool(r[key]) for r in table) / n, 4)

    return {
        "operators": n,
        "first_order": share("order_1"),
        "second_order": share("order_2"),
        "upstream_first_order": share("upstream"),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Print a line per operator and the summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object per line, the summary last")
    parser.add_argument("--quick", action="store_true", help="only the first check table")
    args = parser.parse_args(argv)
    ops = denominator()
    if args.quick:
        ops = [op for op in ops if op in {c.op for c in next(iter(TABLES.values()))}]
    table = list(rows(ops))
    for row in table:
        text = (
            json.dumps(row)
            if args.json
            else f"{row['operator']:44} first {row['order_1']!s:5} second {row['order_2']!s:5} upstream {row['upstream']}"
        )
        sys.stdout.write(text + "\n")
    total = summary(table)
    sys.stdout.write((json.dumps({"summary": total}) if args.json else str(total)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
