"""Counter-based random numbers: element i of stream s in run r of a seed is one function of (i, s, r, seed), everywhere.

Philox-2x32-7: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011), with the least number of
rounds that passes BigCrush there. ``random_key`` mixes
seed, run and stream into a key once; ``random_uniform`` and ``dropout`` then run the counter i under that key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilegrad._base.tvm import te, tirx
from tilegrad.relax_ext.ops.register import register, tensor

Ints = tuple[int, ...]
_MULTIPLIER, _WEYL, _ROUNDS = 0xD256D193, 0x9E3779B9, 7
_MASK = 0xFFFFFFFF


def _word(value: Any) -> Any:
    """A 32-bit word. Words live in uint64, masked: TVM's range analysis fails on casts that truncate."""
    return tirx.const(value, "uint64") if isinstance(value, int) else tirx.bitwise_and(tirx.Cast("uint64", value), _word(_MASK))


def _philox(x0: Any, x1: Any, key: Any) -> tuple[Any, Any]:
    """The rounds on the counter (x0, x1). Each round reads a word at most twice, so the expression stays small."""
    for r in range(_ROUNDS):
        product = x0 * _word(_MULTIPLIER)
        bumped = _word(key + _word(r * _WEYL & _MASK))
        x0, x1 = tirx.bitwise_xor(tirx.bitwise_xor(product >> _word(32), bumped), x1), _word(product)
    return x0, x1


def _random_key(state: te.Tensor, stream: int) -> te.Tensor:
    """The key (two words) of one stream of random numbers in one run, from the state (seed, run)."""
    seed = tirx.bitwise_xor(_word(state(0)), _word(state(0) >> tirx.const(32, "int64")))
    words = _philox(_word(state(1)), _word(stream), seed)
    return te.compute((2,), lambda i: tirx.Cast("int64", tirx.Select(i == 0, *words)), name="random_key")


def _uniform(key: te.Tensor, place: Any) -> Any:
    """The top 24 bits of the word for one place, in [0, 1)."""
    bits = _philox(_word(place), _word(key(1)), _word(key(0)))[0] >> _word(8)
    return tirx.Cast("float32", tirx.Cast("int32", bits)) * tirx.const(2.0**-24, "float32")


def _elements(shape: Ints, name: str, element: Callable[..., Any]) -> te.Tensor:
    """A tensor whose element function gets its row-major number first."""

    def at(*index: Any) -> Any:
        place: Any = 0
        for i, extent in zip(index, shape, strict=True):
            place = place * extent + i
        return element(place, *index)

    return te.compute(shape, at, name=name)


def _random_uniform(key: te.Tensor, shape: Ints, dtype: str) -> te.Tensor:
    """Uniform numbers in [0, 1) under a key, 24 bits each."""
    return _elements(shape, "random_uniform", lambda place, *_: _uniform(key, place).astype(dtype))


def _dropout(x: te.Tensor, key: te.Tensor, rate: float) -> te.Tensor:
    """x / (1 - rate) where the place's uniform number is at least rate, else 0; its own transpose, so no mask is kept."""
    shape = tuple(int(d) for d in x.shape)
    scale = tirx.const(1.0 / (1.0 - rate) if rate < 1 else 0.0, x.dtype)

    def element(place: Any, *index: Any) -> Any:
        kept = _uniform(key, place) >= tirx.const(rate, "float32")
        return tirx.Select(kept, x(*index) * scale, tirx.const(0, x.dtype))

    return _elements(shape, "dropout", element)


random_key = register("tilegrad.random_key", lambda state, **_: tensor((2,), "int64"), _random_key)
random_uniform = register("tilegrad.random_uniform", lambda key, *, shape, dtype: tensor(shape, dtype), _random_uniform)
dropout = register("tilegrad.dropout", lambda x, key, **_: x, _dropout)
