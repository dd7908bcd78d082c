"""Random numbers: counter-based (Threefry 2x32, 20 rounds), so that a seed gives the same bits everywhere.

The state (``lowering.RandomState``) is the seed and how many runs there have been. Every random operator of a
program is a stream of its own, numbered in program order.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tilegrad.frontend.pytorch.lowering import Lowering
from tilegrad.frontend.pytorch.table import aten, refuse
from tilegrad.relax_ext.vjp.values import F, Value

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
_MASK = 0xFFFFFFFF


def random_bits(k: Lowering, n: int) -> Value:
    """``n`` independent 32-bit words, as int64."""
    state, stream = k.random.draw()
    seed, runs = (F.strided_slice(state, [0], [i], [i + 1], [1]) for i in (0, 1))
    key0 = F.bitwise_and(seed, k.number(_MASK, "int64"))
    key1 = F.bitwise_and(runs, k.number(_MASK, "int64"))
    return _threefry(k, key0, key1, k.arange(n), k.full((n,), stream, "int64"))


def _threefry(k: Lowering, key0: Value, key1: Value, x0: Value, x1: Value) -> Value:
    """The first word of Threefry-2x32-20 (Salmon et al. 2011), 32-bit words held in int64."""

    def word(v: Value) -> Value:
        return F.bitwise_and(v, k.number(_MASK, "int64"))

    def rotated(v: Value, by: int) -> Value:
        return word(F.bitwise_or(F.left_shift(v, k.number(by, "int64")), F.right_shift(v, k.number(32 - by, "int64"))))

    keys = [key0, key1, F.bitwise_xor(F.bitwise_xor(key0, key1), k.number(_PARITY, "int64"))]
    x0, x1 = word(x0 + keys[0]), word(x1 + keys[1])
    for group in range(5):
        for by in _ROTATIONS[group % 2]:
            x0 = word(x0 + x1)
            x1 = F.bitwise_xor(rotated(x1, by), x0)
        x0 = word(x0 + keys[(group + 1) % 3])
        x1 = word(x1 + keys[(group + 2) % 3] + (group + 1))
    return x0


def uniform(k: Lowering, shape: tuple[int, ...], dtype: str) -> Value:
    """Uniform in [0, 1): 24 random bits."""
    bits = F.right_shift(random_bits(k, math.prod(shape)), k.number(8, "int64"))
    return k.value((bits.astype("float32") * (2.0**-24)).reshape(shape), dtype)


def dropped(k: Lowering, x: Value, p: float) -> tuple[Value, Value]:
    """``x`` with each element zero with probability ``p`` and the rest scaled by 1 / (1 - p); and the mask of those kept."""
    if p == 0:
        return x, k.full(x.shape, True, "bool")
    if p == 1:
        return x * 0.0, k.full(x.shape, False, "bool")
    kept = F.greater_equal(uniform(k, x.shape, "float32"), float(np.float32(p)))
    return F.where(kept, x * (1 / (1 - p)), k.number(0, x.dtype)), kept


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
    words = random_bits(k, math.prod(k.out.shape)).reshape(k.out.shape)
    return k.value(F.floor_mod(words, k.number(high - low, "int64")) + low, k.out.dtype)


refuse("draw the numbers outside the model and pass them in", "multinomial", "normal.Tensor_Tensor", "poisson", "_standard_gamma")
