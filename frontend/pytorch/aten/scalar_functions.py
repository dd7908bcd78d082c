"""Elementwise functions that Relax lacks, written in those it has: log1p, expm1, erfc, erfinv, lgamma, digamma, ..."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilegrad.frontend.pytorch.aten.pointwise import expm1_of
from tilegrad.frontend.pytorch.lowering import Lowering
from tilegrad.frontend.pytorch.table import aten
from tilegrad.relax_ext.vjp.values import F, Value


@aten("log2")
def log2(k: Lowering, x: Value) -> Value:
    return k.narrow(F.log(k.wide(x)) * (1 / math.log(2)))


@aten("log10")
def log10(k: Lowering, x: Value) -> Value:
    return k.narrow(F.log(k.wide(x)) * (1 / math.log(10)))


@aten("exp2")
def exp2(k: Lowering, x: Value) -> Value:
    return k.narrow(F.exp(k.wide(x) * math.log(2)))


@aten("expm1")
def expm1(k: Lowering, x: Value) -> Value:
    wide = k.wide(x)
    # The identity would be inf * 1 - fine - but loses a digit for large x, where exp(x) - 1 is exact enough.
    return k.narrow(F.where(F.greater(F.abs(wide), 1.0), F.exp(wide) - 1.0, expm1_of(k, wide)))


def log1p_of(k: Lowering, x: Value) -> Value:
    """log(1 + x) = 2 atanh(x / (2 + x)) near zero."""
    near = F.less(F.abs(x), 0.5)
    small = F.where(near, x, x.zeros_like())
    large = F.where(near, x.zeros_like(), x)
    return F.where(near, F.atanh(small / (small + 2.0)) * 2.0, F.log(large + 1.0))


@aten("log1p")
def log1p(k: Lowering, x: Value) -> Value:
    return k.narrow(log1p_of(k, k.wide(x)))


def polynomial(x: Value, coefficients: Sequence[float]) -> Value:
    """Horner's scheme, highest power first."""
    result = x * 0.0 + coefficients[0]
    for c in coefficients[1:]:
        result = result * x + c
    return result
