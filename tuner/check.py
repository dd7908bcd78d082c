"""Inputs for a kernel and the comparison of its results with a reference. NumPy only: the runner imports it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tilegrad.runtime.program import numpy_dtype

# Relative tolerance by element type: an order of magnitude above what sums of 10^5 terms in another order differ by.
_TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
DISCRETE_MISMATCH = 1e-3
"""Share of integer or boolean elements that may differ: a rounding may decide a comparison or a tie the other way."""


def inputs(shapes: Sequence[tuple[tuple[int, ...], str]], seed: int = 0, positive: bool = False) -> list[np.ndarray]:
    """Random arrays for (shape, dtype): floats in [-1, 1) (scalars, and all if ``positive``, in [0.1, 1)); integers 0 and 1.

    bfloat16 arrays hold bits in uint16.
    """
    rng = np.random.default_rng(seed)
    least = min((d for shape, dtype in shapes for d in shape if "float" in dtype), default=1)
    out = []
    for shape, dtype in shapes:
        size = int(np.prod(shape, dtype=np.int64))
        if dtype == "bool":
            x = rng.integers(0, 2, shape).astype(bool)
        elif "float" in dtype:
            low = 0.1 if positive or size == 1 else -1.0
            x = rng.uniform(low, 1.0, shape).astype(np.float32 if dtype == "bfloat16" else dtype)
            if dtype == "bfloat16":
                x = (x.view(np.uint32) >> 16).astype(np.uint16)
        else:
            x = rng.integers(0, min(2, least), shape).astype(numpy_dtype(dtype))
        out.append(np.asarray(x))
    return out


def widen(x: np.ndarray, dtype: str) -> np.ndarray:
    """Floats as float64 (bfloat16 from its bits); anything else as it is."""
    if dtype == "bfloat16":
        return (x.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return x.astype(np.float64) if "float" in dtype else x


def difference(got: np.ndarray, expected: np.ndarray, dtype: str) -> str | None:
    """None when ``got`` (in its own dtype) agrees with the float64 reference; otherwise what is wrong, in words.

    A float may be off by the dtype's tolerance times (its size + the root mean square of the finite results).
    """
    if "float" not in dtype:
        wrong = np.count_nonzero(got != expected) / max(got.size, 1)
        return None if wrong <= DISCRETE_MISMATCH else f"{wrong:.1%} of the elements differ"
    x = widen(got, dtype)
    if _near(x, expected, _TOLERANCE[dtype]):
        return None
    finite = np.isfinite(expected)
    if not np.array_equal(np.isnan(x), np.isnan(expected)):
        return f"NaN in {np.count_nonzero(np.isnan(x))} places, {np.count_nonzero(np.isnan(expected))} expected"
    scale = float(np.sqrt(np.mean(np.square(expected[finite])))) if finite.any() else 0.0
    with np.errstate(invalid="ignore"):
        error = np.abs(x - expected)[finite]
        excess = error > _TOLERANCE[dtype] * (np.abs(expected[finite]) + scale)
    if not np.array_equal(x[~finite & ~np.isnan(expected)], expected[~finite & ~np.isnan(expected)]):
        return "infinities in other places than expected"
    if excess.any() or not np.isfinite(x[finite]).all():
        return f"{np.count_nonzero(excess)} of {x.size} elements differ, by up to {error.max():.3g} (typical size {scale:.3g})"
    return None


def _near(x: np.ndarray, expected: np.ndarray, tolerance: float) -> bool:
    """Whether everything is finite and off by less than what an element of size 0 may be: enough, and two passes."""
    with np.errstate(all="ignore"):
        scale = float(np.sqrt(np.mean(np.square(expected)))) if expected.size else 0.0
        return math.isfinite(scale) and bool(np.max(np.abs(x - expected), initial=0.0) <= tolerance * scale)
