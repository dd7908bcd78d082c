"""Initial values in place, with PyTorch's distributions, drawn from the seeded generator of ``random``."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from tilegrad._base.errors import UsageError
from tilegrad.frontend.arguments import check_all
from tilegrad.frontend.random import generator
from tilegrad.frontend.tensor import Tensor

Mode = Literal["fan_in", "fan_out"]


def fans(shape: tuple[int, ...]) -> tuple[int, int]:
    """(fan in, fan out) of a weight [out, in, *kernel]. Raises UsageError below two axes."""
    if len(shape) < 2:
        raise UsageError("fans", f"shape {shape}", "a weight of at least two axes")
    field = math.prod(shape[2:])
    return shape[1] * field, shape[0] * field


def gain(nonlinearity: str, a: float = math.sqrt(5)) -> float:
    """The factor that keeps variance through a nonlinearity."""
    table = {"linear": 1.0, "conv": 1.0, "sigmoid": 1.0, "tanh": 5 / 3, "relu": math.sqrt(2), "selu": 0.75}
    if nonlinearity == "leaky_relu":
        return math.sqrt(2 / (1 + a * a))
    if nonlinearity not in table:
        raise UsageError("gain", repr(nonlinearity), ", ".join([*table, "leaky_relu"]))
    return table[nonlinearity]


def uniform_(t: Tensor, low: float = 0.0, high: float = 1.0) -> Tensor:
    """Uniform in [low, high)."""
    if low > high:
        raise UsageError("uniform_, argument 'high'", f"{high} with low {low}", "at least low")
    return t.assign_(generator().uniform(low, high, t.shape))


def normal_(t: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    """Normal."""
    if std < 0:
        raise UsageError("normal_, argument 'std'", str(std), "0 or more")
    return t.assign_(generator().normal(mean, std, t.shape))


def trunc_normal_(t: Tensor, mean: float = 0.0, std: float = 1.0, low: float = -2.0, high: float = 2.0) -> Tensor:
    """Normal, drawn again until within [low, high]."""
    if std < 0 or not low < high:
        raise UsageError("trunc_normal_", f"std {std}, low {low}, high {high}", "std of 0 or more, low below high")
    values = generator().normal(mean, std, t.shape)
    while (bad := (values < low) | (values > high)).any():
        values[bad] = generator().normal(mean, std, int(bad.sum()))
    return t.assign_(values)


def constant_(t: Tensor, value: float) -> Tensor:
    """``value`` everywhere."""
    return t.assign_(np.full(t.shape, value))


def zeros_(t: Tensor) -> Tensor:
    """Zeros."""
    return constant_(t, 0.0)


def ones_(t: Tensor) -> Tensor:
    """Ones."""
    return constant_(t, 1.0)


def kaiming_uniform_(t: Tensor, a: float = 0.0, mode: Mode = "fan_in", nonlinearity: str = "leaky_relu") -> Tensor:
    """Uniform within ``gain * sqrt(3 / fan)`` (He et al. 2015)."""
    bound = gain(nonlinearity, a) * math.sqrt(3 / fans(t.shape)[mode == "fan_out"])
    return uniform_(t, -bound, bound)


def kaiming_normal_(t: Tensor, a: float = 0.0, mode: Mode = "fan_in", nonlinearity: str = "leaky_relu") -> Tensor:
    """Normal with standard deviation ``gain / sqrt(fan)`` (He et al. 2015)."""
    return normal_(t, 0.0, gain(nonlinearity, a) / math.sqrt(fans(t.shape)[mode == "fan_out"]))


def xavier_uniform_(t: Tensor, scale: float = 1.0) -> Tensor:
    """Uniform within ``scale * sqrt(6 / (fan in + fan out))`` (Glorot and Bengio 2010)."""
    bound = scale * math.sqrt(6 / sum(fans(t.shape)))
    return uniform_(t, -bound, bound)


def xavier_normal_(t: Tensor, scale: float = 1.0) -> Tensor:
    """Normal with standard deviation ``scale * sqrt(2 / (fan in + fan out))``."""
    return normal_(t, 0.0, scale * math.sqrt(2 / sum(fans(t.shape))))


def orthogonal_(t: Tensor, scale: float = 1.0) -> Tensor:
    """Orthogonal rows or columns of the weight as a matrix [out, rest]."""
    fans(t.shape)
    rows, cols = t.shape[0], math.prod(t.shape[1:])
    q, r = np.linalg.qr(generator().standard_normal((max(rows, cols), min(rows, cols))))
    q = q * np.sign(np.diag(r))
    return t.assign_(scale * (q if rows >= cols else q.T).reshape(t.shape))


check_all(globals(), [name for name in globals() if name.endswith("_") and not name.startswith("_")])
