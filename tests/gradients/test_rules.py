"""Every rule against central differences, first and second order."""

from __future__ import annotations

from functools import cache

import pytest

from tests.gradients import cases_elementwise, cases_movement, cases_nn, cases_own
from tests.gradients.checker import Case, Outcome, check

TABLES = {"elementwise": cases_elementwise.CASES, "movement": cases_movement.CASES, "nn": cases_nn.CASES, "own": cases_own.CASES}
CHUNK = 25


@cache
def outcomes(table: str, chunk: int) -> dict[str, Outcome]:
    """The checks of one chunk of a table, from one compiled module."""
    return check(TABLES[table][chunk * CHUNK : (chunk + 1) * CHUNK])


ROWS = [pytest.param(table, case, id=f"{table}-{case.id}") for table, cases in TABLES.items() for case in cases]


@pytest.mark.parametrize(("table", "case"), ROWS)
def test_rule_agrees_with_central_differences(table: str, case: Case) -> None:
    outcome = outcomes(table, TABLES[table].index(case) // CHUNK)[case.id]
    if outcome.error is not None:
        raise outcome.error
    for order in range(1, case.order + 1):
        assert outcome.mismatch(order) < case.tol, (order, outcome.pairs[order])


def test_ids_are_unique() -> None:
    ids = [(table, c.id) for table, cases in TABLES.items() for c in cases]
    assert len(ids) == len(set(ids))
