"""Maxima and minima as PyTorch's: NaN when an operand is (TIR's max and min return either operand)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilegrad._base.tvm import te, topi
from tilegrad.schedules import math


def relu(x: te.Tensor) -> te.Tensor:
    """y = max(x, 0); NaN stays NaN."""
    return te.compute(x.shape, lambda *i: math.relu(x(*i)), name="relu")


def maximum(x: te.Tensor, y: te.Tensor) -> te.Tensor:
    """The larger of two, broadcast against each other."""
    return _binary(x, y, math.maximum, "maximum")


def minimum(x: te.Tensor, y: te.Tensor) -> te.Tensor:
    """The smaller of two, broadcast against each other."""
    return _binary(x, y, math.minimum, "minimum")


def _binary(x: te.Tensor, y: te.Tensor, function: Callable[[Any, Any], Any], name: str) -> te.Tensor:
    shape = topi.add(x, y).shape
    a, b = topi.broadcast_to(x, shape), topi.broadcast_to(y, shape)
    return te.compute(shape, lambda *i: function(a(*i), b(*i)), name=name)
