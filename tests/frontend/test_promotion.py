"""Dtypes of every operator on every pair of dtypes, ranks and Python numbers: PyTorch's. Nothing is computed."""

from __future__ import annotations

import itertools
import operator

import pytest

import tilegrad as tg
from tilegrad._base.errors import DTypeError

torch = pytest.importorskip("torch")

DTYPES = "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64".split()
OPERATORS = {
    f.__name__: f
    for f in (
        *(operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow),
        *(operator.eq, operator.lt, operator.ge, operator.and_, operator.or_, operator.xor),
    )
}


def theirs(dtype, shape):
    return torch.ones(shape, dtype=getattr(torch, dtype))


def ours(dtype, shape):
    return tg.ones(shape, dtype=dtype)


def dtype_of(operation):
    """The result's dtype, or "refused"."""
    try:
        return str(operation().dtype).removeprefix("torch.")
    except (RuntimeError, DTypeError):
        return "refused"


def test_comparisons_with_numbers_that_the_dtype_does_not_hold():
    x = tg.tensor([0, 200], "uint8")
    assert (x > 300).tolist() == [False, False] and (x > -1).tolist() == [True, True] and (300 != x).tolist() == [True, True]
    assert (tg.tensor([5], "int64") < 2**70).tolist() == [True]


def test_arithmetic_of_booleans_is_logic():
    a, b = tg.tensor([True, True, False]), tg.tensor([True, False, False])
    assert (a + b).tolist() == [True, True, False] and (a * b).tolist() == [True, False, False]
    assert tg.maximum(a, b).tolist() == [True, True, False] and tg.minimum(a, b).tolist() == [True, False, False]


LENIENT = "sub"
"""PyTorch refuses to subtract a boolean from a number; here it counts as 0 or 1, as in NumPy."""


@pytest.mark.parametrize("name", OPERATORS)
def test_two_arrays(name):
    f = OPERATORS[name]
    for a, b in itertools.product(DTYPES, DTYPES):
        for s, t in itertools.product([(2,), ()], [(2,), ()]):
            want = dtype_of(lambda a=a, b=b, s=s, t=t: f(theirs(a, s), theirs(b, t)))
            got = dtype_of(lambda a=a, b=b, s=s, t=t: f(ours(a, s), ours(b, t)))
            if name == LENIENT and (a == "bool") != (b == "bool"):
                continue
            assert got == want, f"{a}{list(s)} {name} {b}{list(t)}"


@pytest.mark.parametrize("name", OPERATORS)
def test_an_array_and_a_number(name):
    f = OPERATORS[name]
    for a, n in itertools.product(DTYPES, [True, 2, 2.5, -1]):
        for ordered in (lambda x, n=n: f(x, n), lambda x, n=n: f(n, x)):
            if name == LENIENT and (a == "bool") != isinstance(n, bool):
                continue
            if (name, a, n) == ("pow", "bool", True):  # only this one number is taken by PyTorch
                continue
            if a == "uint8" and n == -1 and name not in ("eq", "lt", "ge"):  # PyTorch wraps around; here it is refused
                continue
            want = dtype_of(lambda a=a, f=ordered: f(theirs(a, (2,))))
            assert dtype_of(lambda a=a, f=ordered: f(ours(a, (2,)))) == want, f"{a} {name} {n}"
