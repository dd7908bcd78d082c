"""Counter-based random numbers in Relax: Threefry-2x32-20 (Salmon et al. 2011). The same seed gives the same bits everywhere."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilegrad._base.tvm import relax

R = relax.op
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
_MASK = 0xFFFFFFFF


def _int(value: int) -> Any:
    return relax.const(value, "int64")


def _word(x: Any) -> Any:
    return R.bitwise_and(x, _int(_MASK))


def _rotated(x: Any, by: int) -> Any:
    return _word(R.bitwise_or(R.left_shift(x, _int(by)), R.right_shift(x, _int(32 - by))))


def threefry(key0: Any, key1: Any, x0: Any, x1: Any) -> Any:
    """The first output word; 32-bit words held in int64."""
    keys = [key0, key1, R.bitwise_xor(R.bitwise_xor(key0, key1), _int(_PARITY))]
    x0, x1 = _word(R.add(x0, keys[0])), _word(R.add(x1, keys[1]))
    for group in range(5):
        for by in _ROTATIONS[group % 2]:
            x0 = _word(R.add(x0, x1))
            x1 = R.bitwise_xor(_rotated(x1, by), x0)
        x0 = _word(R.add(x0, keys[(group + 1) % 3]))
        x1 = _word(R.add(R.add(x1, keys[(group + 2) % 3]), _int(group + 1)))
    return x0


def uniform(state: Any, stream: int, shape: tuple[int, ...], dtype: str) -> Any:
    """Uniform in [0, 1) from 24 random bits. ``state``: int64[2], the seed and the number of draws so far."""
    size = int(np.prod(shape, dtype=np.int64))
    seed, runs = (_word(R.strided_slice(state, [0], [i], [i + 1], [1])) for i in (0, 1))
    bits = threefry(seed, runs, R.arange(0, size, 1, "int64"), _int(stream))
    number = R.multiply(R.astype(R.right_shift(bits, _int(8)), "float32"), relax.const(2.0**-24, "float32"))
    number = number if dtype == "float32" else R.astype(number, dtype)
    return R.reshape(number, shape)
