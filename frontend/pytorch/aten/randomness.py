"""Random numbers: counter-based (``relax_ext.ops.random``), so that a seed gives the same bits everywhere.

The state (``lowering.RandomState``) is the seed and how many runs there have been. Every random operator of a
program is a stream of its own, numbered in program order.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tilegrad.frontend.pytorch.lowering import Lowering
from tilegrad.frontend.pytorch.table import aten, refuse
from tilegrad.relax_ext import ops
from tilegrad.relax_ext.vjp.values import F, Value


def _key(k: Lowering) -> Value:
    """The key of a stream of its own."""
    state, stream = k.random.draw()
    return k.call(ops.random_key, state, stream=stream)


def uniform(k: Lowering, shape: tuple[int, ...], dtype: str) -> Value:
    """Uniform in [0, 1)."""
    return k.value(k.call(ops.random_uniform, _key(k), shape=tuple(shape), dtype="float32"), dtype)


def dropped(k: Lowering, x: Value, p: float) -> tuple[Value, Value]:
    """``x`` with each element zero with probability ``p`` and the rest scaled by 1 / (1 - p); and the mask of those kept."""
    if p == 0:
        return x, k.full(x.shape, True, "bool")
    key = _key(k)
    kept = F.greater_equal(k.call(ops.random_uniform, key, shape=x.shape, dtype="float32"), float(np.float32(p)))
    return k.call(ops.dropout, x, key, rate=float(p)), kept


@aten("dropout")
def dropout(k: Lowering, x: Value, p: float, train: bool) -> Value:
    return dropped(k, x, p)[0] if train else x


@aten("native_dropout")
def native_dropout(k: Lowering, x: Value, p: float, train: bool | None) -> list[Value]:
    return list(dropped(k, x, p)) if train or train is None else [x, k.full(x.shape, True, "bool")]


@aten("rand", "rand_like")
def rand(k: Lowering, *args: Any, **kwargs: Any) -> Value:
    return uniform(k, k.out.shape, k.out.dtype)


@aten("randn", "randn_like")
def randn(k: Lowering, *args: Any, **kwargs: Any) -> Value:
    """Box and Muller's transform."""
    radius = F.sqrt(F.log(1.0 - uniform(k, k.out.shape, "float32")) * -2.0)
    return k.value(radius * F.cos(uniform(k, k.out.shape, "float32") * (2 * math.pi)), k.out.dtype)


@aten("bernoulli", "bernoulli.p")
def bernoulli(k: Lowering, x: Value, p: float | None = None, generator: Any = None) -> Value:
    drawn = uniform(k, k.out.shape, "float32")
    return k.value(F.less(drawn, float(p) if p is not None else k.value(x, "float32")), k.out.dtype)


@aten("randint", "randint.low", "randint_like", "randint_like.low_dtype")
def randint(k: Lowering, *args: Any, **kwargs: Any) -> Value:
    bounds = [a for a in args if isinstance(a, int)]
    low, high = (0, bounds[0]) if len(bounds) == 1 else (bounds[0], bounds[1])
    drawn = F.floor(uniform(k, k.out.shape, "float32") * float(high - low)).astype("int64") + low
    return k.value(drawn, k.out.dtype)


refuse("draw the numbers outside the model and pass them in", "multinomial", "normal.Tensor_Tensor", "poisson", "_standard_gamma")
