"""Loss curves for a terminal: one line of bars a curve, on a common logarithmic scale."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

BARS = "▁▂▃▄▅▆▇█"


def per_epoch(losses: Sequence[float], steps: int) -> list[float]:
    """Mean loss of every ``steps`` steps."""
    return [sum(losses[i : i + steps]) / steps for i in range(0, len(losses) - steps + 1, steps)]


def draw(curves: Mapping[str, Sequence[float]]) -> list[str]:
    """One line a curve: name, bars, first and last value. Values must be positive."""
    values = [math.log(max(v, 1e-12)) for curve in curves.values() for v in curve]
    low, high = min(values), max(values)
    width = max(map(len, curves))

    def bar(v: float) -> str:
        share = (math.log(max(v, 1e-12)) - low) / (high - low) if high > low else 0.0
        return BARS[round(share * (len(BARS) - 1))]

    return [f"{name:{width}}  {''.join(map(bar, c))}  {c[0]:.4f} -> {c[-1]:.5f}" for name, c in curves.items()]
