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


# name: (expression, the instructions that compare: the sets that are as few as can be, none where any will do)
CASES: dict[str, tuple[Callable[[Any, Any], Any], tuple[set[str], ...]]] = {
    # Without mask registers LLVM makes a selection against zero a comparison and an AND.
    "relu": (lambda a, b: tirx.Max(a, number(0)), ({"vmaxps"}, {"vcmpnltps"})),
    "clip": (lambda a, b: tirx.Min(tirx.Max(number(-1), a), number(1)), ({"vmaxps", "vminps"},)),
    "maximum": (lambda a, b: tirx.Max(a, b), ()),
    "differs": (lambda a, b: tirx.Select(tirx.NE(a, b), a, number(0)), ()),
    "not less": (lambda a, b: tirx.Select(tirx.Not(tirx.LT(a, b)), a, number(0)), ()),
}


@pytest.mark.parametrize("name", CASES)
def test_stays_vector_code(name: str) -> None:
    f, least = CASES[name]
    x, y = tensor(4096, name="x"), tensor(4096, name="y")
    assembly = Kernel([x, y], te.compute((4096,), lambda i: f(x[i], y[i]), name="z")).assembly
    packed = set(re.findall(r"\bv(?:max|min|cmp\w*)ps\b", assembly))
    assert packed in least or (packed and not least)
    assert not re.findall(r"\bv(?:max|min|cmp\w*)ss\b|\bvucomiss\b", assembly)
