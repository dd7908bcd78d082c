"""The checker itself: wrong gradients must be caught, and the list of operators must be complete."""

from __future__ import annotations

import pytest

from tests.gradients.checker import Arg, Case, check
from tests.gradients.test_rules import TABLES
from tilegrad._base.tvm import ir, relax
from tilegrad.relax_ext.vjp import RULES, WITHOUT, ZERO

R = relax.op
SAMPLE = [
    Case("relax.tanh", R.tanh, (Arg((3, 4)),)),
    Case("relax.matmul", R.matmul, (Arg((3, 4)), Arg((4, 2)))),
    Case("relax.nn.softmax", R.nn.softmax, (Arg((3, 4)),)),
]
WRONG = {
    "sign": lambda g: R.negative(g),
    "factor 1.05": lambda g: R.multiply(g, relax.const(1.05, "float64")),
    "factor 1.00001": lambda g: R.multiply(g, relax.const(1.00001, "float64")),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_gradient_is_caught(wrong: str) -> None:
    for outcome in check(SAMPLE, transform=WRONG[wrong]).values():
        assert outcome.error is None
        assert outcome.mismatch(1) > 10 * SAMPLE[0].tol


def test_the_second_order_is_checked_on_its_own() -> None:
    """A rule that is right but is written with a constant where it must depend on its inputs passes only the first order."""
    from tilegrad.relax_ext import ops

    for outcome in check(SAMPLE, transform=lambda g: ops.stop_gradient(g)).values():
        assert outcome.mismatch(1) < SAMPLE[0].tol
        assert outcome.error is not None or outcome.mismatch(2) > 10 * SAMPLE[0].tol


def operators() -> list[str]:
    """Every operator there is: Relax's and our own."""
    return sorted(n for n in ir.Op.list_op_names() if n.startswith(("relax.", "tilegrad.")) and ".test_" not in n)


def test_every_operator_has_a_rule_or_a_reason() -> None:
    named = {**RULES, **ZERO, **WITHOUT}
    assert [op for op in operators() if op not in named] == []


def test_no_rule_is_orphaned_or_doubly_declared() -> None:
    assert [op for op in (*RULES, *ZERO, *WITHOUT) if op not in operators()] == []
    assert not set(RULES) & set(ZERO) and not set(RULES) & set(WITHOUT) and not set(ZERO) & set(WITHOUT)


def test_every_rule_is_documented_and_checked() -> None:
    checked = {case.op for cases in TABLES.values() for case in cases}
    assert [r.op for r in RULES.values() if not r.doc] == []
    assert [op for op in RULES if op not in checked] == []
