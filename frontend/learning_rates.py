"""Learning rates as plain functions of the step, counted from 0: ``opt.lr = cosine(i, peak=1e-3, steps=1000, warmup=50)``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence


def cosine(step: int, peak: float, steps: int, warmup: int = 0, final: float = 0.0) -> float:
    """Up to ``peak`` in a line over ``warmup`` steps, then half a cosine down to ``final`` at ``steps``, where it stays."""
    return _warmed(step, peak, steps, warmup, final, lambda t: (1 + math.cos(math.pi * t)) / 2)


def linear(step: int, peak: float, steps: int, warmup: int = 0, final: float = 0.0) -> float:
    """Up to ``peak`` in a line over ``warmup`` steps, then in a line down to ``final`` at ``steps``, where it stays."""
    return _warmed(step, peak, steps, warmup, final, lambda t: 1 - t)


def exponential(step: int, start: float, factor: float) -> float:
    """``start`` times ``factor`` for every step."""
    return start * factor**step


def piecewise(step: int, start: float, milestones: Sequence[int], factor: float = 0.1) -> float:
    """``start`` times ``factor`` for every milestone that is reached."""
    return start * factor ** sum(step >= m for m in milestones)


def _warmed(step: int, peak: float, steps: int, warmup: int, final: float, fall: Callable[[float], float]) -> float:
    if step < warmup:
        return peak * (step + 1) / warmup
    t = min((step - warmup) / max(steps - warmup, 1), 1.0)
    return final + (peak - final) * fall(t)
