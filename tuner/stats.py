"""Comparing measured times: spread, confidence and significance. Pure functions over lists of seconds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

Z95 = 1.96
"""Two-sided 95 % quantile of the normal distribution."""

LEAST_SPREAD = 0.005
"""Relative standard deviation assumed at the least: clocks, and a single sample, show none of their own."""


def spread(costs: Sequence[float]) -> float:
    """Robust standard deviation in seconds: 1.4826 times the median absolute deviation, never below LEAST_SPREAD."""
    middle = statistics.median(costs)
    mad = statistics.median([abs(c - middle) for c in costs])
    return max(1.4826 * mad, LEAST_SPREAD * middle)


def standard_error(costs: Sequence[float]) -> float:
    """Standard error of the median in seconds: 1.2533 times spread / sqrt(n) (the normal distribution's)."""
    return 1.2533 * spread(costs) / math.sqrt(len(costs))


def settled(costs: Sequence[float], relative: float) -> bool:
    """Whether the 95 % half-width of the median is within ``relative`` of it; at least three samples."""
    return len(costs) >= 3 and Z95 * standard_error(costs) <= relative * statistics.median(costs)


def faster(a: Sequence[float], b: Sequence[float], margin: float = 0.0) -> bool:
    """Whether ``a`` is significantly faster than ``b``: medians apart by more than their 95 % spread and ``margin`` of b."""
    gap = statistics.median(b) - statistics.median(a)
    return gap > max(Z95 * math.hypot(standard_error(a), standard_error(b)), margin * statistics.median(b))
