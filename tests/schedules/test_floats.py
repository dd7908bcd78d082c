"""Comparisons and maxima that see NaN are still vector code. Their values: tests/relax_ext/test_floats.py."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.schedules.kernels import TARGET, Kernel, tensor
from tilegrad._base.tvm import te, tirx

pytestmark = pytest.mark.skipif("x86_64" not in str(TARGET.tvm), reason="platform: reads x86 assembly")


def number(value: float) -> Any:
    return tirx.const(value, "float32")


# name: (expression, the instructions that compare, where there is a least set of them)
CASES: dict[str, tuple[Callable[[Any, Any], Any], set[str] | None]] = {
    "relu": (lambda a, b: tirx.Max(a, number(0)), {"vmaxps"}),
    "clip": (lambda a, b: tirx.Min(tirx.Max(number(-1), a), number(1)), {"vmaxps", "vminps"}),
    "maximum": (lambda a, b: tirx.Max(a, b), None),
    "differs": (lambda a, b: tirx.Select(tirx.NE(a, b), a, number(0)), None),
    "not less": (lambda a, b: tirx.Select(tirx.Not(tirx.LT(a, b)), a, number(0)), None),
}


@pytest.mark.parametrize("name", CASES)
def test_stays_vector_code(name: str) -> None:
    f, least = CASES[name]
    x, y = tensor(4096, name="x"), tensor(4096, name="y")
    assembly = Kernel([x, y], te.compute((4096,), lambda i: f(x[i], y[i]), name="z")).assembly
    packed = set(re.findall(r"\bv(?:max|min|cmp\w*)ps\b", assembly))
    assert packed == least or (packed and least is None)
    assert not re.findall(r"\bv(?:max|min|cmp\w*)ss\b|\bvucomiss\b", assembly)
