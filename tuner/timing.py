"""How long to measure: as many repeats as a stated confidence needs. Pure logic over an injected timer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tilegrad.tuner import stats

Timer = Callable[[int], float]
"""Runs a kernel that many times in a row and returns the seconds of one run."""

SERIES_S = 0.010
"""One repeat lasts at least this long, so that clocks and wake-ups do not count."""
LEAST, MOST = 5, 25
"""Repeats of a candidate that is worth measuring."""
CONFIDENCE = 0.01
"""Wanted half-width of the median's 95 % interval, relative."""
LONG_S = 0.25
"""Time after which a candidate is measured well enough, once it has three repeats: the best are compared again at the end."""
CLEARLY_SLOWER = 2.0
"""A candidate this much slower than the best needs no more than two repeats."""
SLOWER = 1.05
"""One whose fastest repeat is this much slower needs no more than three: it is not the best, and by how much need not be known
to a percent."""
ROUNDS_LEAST, ROUNDS_MOST = 5, 15
COMPARE_S = 4.0
"""Seconds that a comparison may take, once it has ROUNDS_LEAST rounds."""


def number_for(seconds: float, hot: bool) -> int:
    """Runs in a repeat; one where caches are emptied before each run."""
    return max(1, min(100_000, math.ceil(SERIES_S / max(seconds, 1e-9)))) if hot else 1


def measure(timer: Timer, best_s: float | None, hot: bool = True) -> list[float]:
    """Seconds per run, one for each repeat."""
    first = timer(1)
    number = number_for(first, hot)
    if best_s is not None and first > CLEARLY_SLOWER * best_s and number * first > 2 * SERIES_S:
        return [first, timer(1)]
    costs = [timer(number)]
    if best_s is not None and costs[0] > CLEARLY_SLOWER * best_s:
        return [*costs, timer(number)]
    spent = number * costs[0]
    while len(costs) < MOST and not (len(costs) >= LEAST and stats.settled(costs, CONFIDENCE)):
        if len(costs) >= 3 and (spent > LONG_S or (best_s is not None and min(costs) > SLOWER * best_s)):
            break
        costs.append(timer(number))
        spent += number * costs[-1]
    return costs


def glance(timer: Timer, hot: bool = True) -> list[float]:
    """Seconds per run of LEAST repeats, or of fewer that take LONG_S: enough to see that the machine's speed has changed."""
    number = number_for(timer(1), hot)
    costs: list[float] = []
    while len(costs) < LEAST and number * math.fsum(costs) < LONG_S:
        costs.append(timer(number))
    return costs


def compare(timers: Sequence[Timer], hot: bool = True, seconds: float | None = None) -> list[list[float]]:
    """Seconds per run of several kernels, measured in turns; every other round in reverse, so that drift meets all alike.

    ``seconds`` (COMPARE_S at the most, and by default) is what it may take, once there are ROUNDS_LEAST rounds.
    """
    limit = COMPARE_S if seconds is None else min(seconds, COMPARE_S)
    numbers = [number_for(timer(1), hot) for timer in timers]
    costs: list[list[float]] = [[] for _ in timers]
    spent = 0.0
    for turn in range(ROUNDS_MOST):
        if turn >= ROUNDS_LEAST and spent > limit:
            break
        order = range(len(timers)) if turn % 2 == 0 else range(len(timers) - 1, -1, -1)
        for i in order:
            if hot:
                timers[i](1)  # the others were there in between
            costs[i].append(timers[i](numbers[i]))
            spent += numbers[i] * costs[i][-1]
    return costs
