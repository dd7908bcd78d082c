"""Every rule against central differences, first and second order."""

from __future__ import annotations

from functools import cache

import pytest

from tests.gradients import cases_elementwise, cases_movement, cases_nn, cases_own
from tests.gradients.checker import Case, Outcome, check

TABLES = {"elementwise": cases_elementwise.CASES, "movement": cases_movement.CASES, "nn": cases_nn.CASES, "own": cases_own.CASES}
CHUNK = 25


@cache
def parts(table: str) -> list[list[Case]]:
    """A table in chunks that share a compiled module: each operator's first row and broadcasts, then the further variants."""
    seen: set[str] = set()
    first: list[Case] = []
    further: list[Case] = []
    for case in TABLES[table]:
        (further if case.op in seen and case.note != "broadcast" else first).append(case)
        seen.add(case.op)
    return [group[i : i + CHUNK] for group in (first, further) for i in range(0, len(group), CHUNK)]


def is_variant(table: str, case: Case) -> bool:
    """Whether a row repeats an operator with other attributes; those run with the long tests."""
    return case.note != "broadcast" and case is not next(c for c in TABLES[table] if c.op == case.op)


@cache
def outcomes(table: str, part: int) -> dict[str, Outcome]:
    """The checks of one part of a table, from one compiled module."""
    return check(parts(table)[part])


ROWS = [
    pytest.param(table, case, id=f"{table}-{case.id}", marks=[pytest.mark.long] if is_variant(table, case) else [])
    for table, cases in TABLES.items()
    for case in cases
]


@pytest.mark.parametrize(("table", "case"), ROWS)
def test_rule_agrees_with_central_differences(table: str, case: Case) -> None:
    part = next(i for i, cases in enumerate(parts(table)) if case in cases)
    outcome = outcomes(table, part)[case.id]
    if outcome.error is not None:
        raise outcome.error
    for order in range(1, case.order + 1):
        assert outcome.mismatch(order) < case.tol, (order, outcome.pairs[order])


def test_ids_are_unique() -> None:
    ids = [(table, c.id) for table, cases in TABLES.items() for c in cases]
    assert len(ids) == len(set(ids))
