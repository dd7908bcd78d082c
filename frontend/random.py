"""Seeded random numbers: on the host for data and initial weights (NumPy's counter-based Philox generator), and inside
programs (``uniform``, for dropout) from a state that travels with them."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from tilegrad.frontend.apply import apply
from tilegrad.frontend.arguments import check_all
from tilegrad.frontend.recording import usage
from tilegrad.frontend.tensor import Tensor, tensor
from tilegrad.runtime.program import RANDOM

_ONE_DRAW = np.array([0, 1])


STATE = RANDOM


class _Generator(threading.local):
    def __init__(self) -> None:
        self.rng = np.random.Generator(np.random.Philox(0))
        self.state: Tensor | None = None


_generator = _Generator()


def manual_seed(seed: int) -> None:
    """Start this thread's generator anew. The same seed gives the same numbers on every machine."""
    _generator.rng = np.random.Generator(np.random.Philox(seed))
    state().assign_(np.array([seed, 0]))


def state() -> Tensor:
    """This thread's state of random operators inside programs."""
    if _generator.state is None:
        _generator.state = tensor([0, 0], "int64")
    return _generator.state


def key() -> Tensor:
    """The key of one draw, made when the program runs; every run of a compiled program has new ones."""
    s = state()
    k = apply("random_key", s, attrs=(0,))
    s.assign_(s + _ONE_DRAW)
    return k


def uniform(shape: Sequence[int], dtype: str = "float32") -> Tensor:
    """Uniform in [0, 1), drawn when the program runs."""
    return apply("random_uniform", key(), attrs=(tuple(shape), dtype))


def generator() -> np.random.Generator:
    """This thread's generator."""
    return _generator.rng


def _shape(shape: tuple[int | Sequence[int], ...]) -> tuple[int, ...]:
    given = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
    if not all(isinstance(d, (int, np.integer)) and d >= 0 for d in given):  # type: ignore[union-attr]
        raise usage("random numbers, argument 'shape'", repr(given), "whole numbers of at least 0")
    return tuple(int(d) for d in given)  # type: ignore[union-attr, arg-type]


def rand(*shape: int | Sequence[int], dtype: str = "float32") -> Tensor:
    """Uniform in [0, 1)."""
    return tensor(generator().random(_shape(shape)), dtype)


def randn(*shape: int | Sequence[int], dtype: str = "float32") -> Tensor:
    """Standard normal."""
    return tensor(generator().standard_normal(_shape(shape)), dtype)


def randint(low: int, high: int, shape: Sequence[int]) -> Tensor:
    """Whole numbers from ``low`` up to but excluding ``high``, int64."""
    if low >= high:
        raise usage("randint, argument 'high'", f"{high} with low {low}", "more than low")
    return tensor(generator().integers(low, high, tuple(shape)), "int64")


def randperm(n: int) -> Tensor:
    """0 to n - 1 in random order, int64."""
    return tensor(generator().permutation(n), "int64")


check_all(globals(), "manual_seed uniform randint randperm".split())
