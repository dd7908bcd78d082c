"""The regularised incomplete gamma functions P(a, x) and Q(a, x) = 1 - P, by Gauss-Legendre quadrature in float64.

Both integrals are those of DLMF 8.2, in variables that make the integrand smooth and its tail exponential:
below a + 1, t = x exp(-v) gives P(a, x) = x^a exp(-x) / Gamma(a) times the integral of exp(-a v + x (1 - exp(-v))); above,
t = x + s gives Q(a, x) = x^(a-1) exp(-x) / Gamma(a) times the integral of exp(-s) (1 + s / x)^(a-1).
"""

from __future__ import annotations

import numpy as np

from tilegrad.frontend.pytorch.aten.scalar_functions import lgamma_of
from tilegrad.frontend.pytorch.lowering import Lowering
from tilegrad.frontend.pytorch.table import aten
from tilegrad.relax_ext.vjp.values import F, Value

NODES = 64
_TAIL = 40.0
"""The integrand's exponent where integration ends: exp(-40) is 4e-18."""


def _integral(k: Lowering, exponent: Value, weights: np.ndarray) -> Value:
    return F.sum(F.exp(exponent) * k.constant(weights), [exponent.ndim - 1], False)


def _lower(k: Lowering, a: Value, x: Value, nodes: np.ndarray, weights: np.ndarray) -> Value:
    """P where x < a + 1, from P(a + 2, x), whose integrand has one scale however small a is."""
    power = F.exp(a * F.log(x) - x - lgamma_of(k, a + 1.0))  # x^a exp(-x) / Gamma(a + 1)
    b = a + 2.0
    end = _TAIL / b + F.sqrt(2.0 * _TAIL / b)
    v = end.reshape((*end.shape, 1)) * k.constant(nodes)
    inner = x.reshape((*x.shape, 1)) * (1.0 - F.exp(-v)) - b.reshape((*b.shape, 1)) * v
    return power * (x / (a + 1.0) * (x * end * _integral(k, inner, weights) + 1.0) + 1.0)


def _upper(k: Lowering, a: Value, x: Value, nodes: np.ndarray, weights: np.ndarray) -> Value:
    """Q where x >= a + 1."""
    end = _TAIL + 10.0 * F.sqrt(a)
    s = end.reshape((*end.shape, 1)) * k.constant(nodes)
    inner = (a - 1.0).reshape((*a.shape, 1)) * F.log(s / x.reshape((*x.shape, 1)) + 1.0) - s
    return F.exp((a - 1.0) * F.log(x) - x - lgamma_of(k, a)) * end * _integral(k, inner, weights)


def _both(k: Lowering, a: Value, x: Value) -> tuple[Value, Value]:
    """(P, Q) of the result's shape in float64."""
    a, x = (k.value(v, "float64").broadcast_to(k.out.shape) for v in (a, x))
    one, nan = k.number(1, "float64"), k.number(np.nan, "float64")
    zero = k.number(0, "float64")
    proper = F.logical_and(F.logical_and(F.greater(a, 0.0), F.greater(x, 0.0)), F.logical_and(F.isfinite(a), F.isfinite(x)))
    low = F.less(x, a + 1.0)
    points, weights = np.polynomial.legendre.leggauss(NODES)
    points, weights = (points + 1) / 2, weights / 2
    below, above = F.logical_and(proper, low), F.logical_and(proper, F.logical_not(low))
    p = _lower(k, F.where(below, a, one), F.where(below, x, one), points, weights)
    q = _upper(k, F.where(above, a, one), F.where(above, x, 3.0 * one), points, weights)
    # outside: NaN below zero and where both are 0 or infinite; else P is 0 for x = 0 and for infinite a, and 1 else
    undefined = F.logical_or(F.less(a, 0.0), F.less(x, 0.0))
    undefined = F.logical_or(undefined, F.logical_or(F.isnan(a), F.isnan(x)))
    undefined = F.logical_or(undefined, F.logical_and(F.equal(a, x), F.logical_not(proper)))
    none = F.logical_or(F.equal(x, 0.0), F.isinf(a))
    edge = F.where(undefined, nan, F.where(none, zero, one))
    edges = F.where(proper, zero, edge)
    lower = F.where(proper, F.where(low, p, 1.0 - q), edges)
    return lower, F.where(proper, F.where(low, 1.0 - p, q), 1.0 - edges)


@aten("igamma", "prims::igamma")
def igamma(k: Lowering, a: Value, x: Value) -> Value:
    return k.narrow(_both(k, a, x)[0])


@aten("igammac", "prims::igammac")
def igammac(k: Lowering, a: Value, x: Value) -> Value:
    return k.narrow(_both(k, a, x)[1])
