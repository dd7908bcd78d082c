"""Search: which config to try next. Default and hints, analytic top, then model and coordinate descent in turn."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from tilegrad.tuner import stats
from tilegrad.tuner.model import CostModel, Rows
from tilegrad.tuner.task import Space
from tilegrad.tuning_logs import Record, canonical

HINTS = 3
"""Configs of earlier runs and near shapes tried right after the default."""
ANALYTIC_TOP = 4
CENTRES = 3
"""Coordinate descent starts again from this many of the best before it gives up."""
HALF_LIFE = 8
"""Trials without an improvement of 1 % after which half as much gain is expected."""
OPTIMISM = 0.3
"""Share of the time that a fresh task is expected to save."""
FOREIGN_WEIGHT = 0.3
"""How much a trial of another workload counts beside one of this."""
FAILURE = math.log(4.0)
"""A failed config is learned as this much slower than expected."""
NOT_LEARNED = ("run_timeout", "compile_timeout")
"""A busy machine causes these too: they say nothing certain about a config."""


class Search:
    """The strategy of tilegrad: a seed and a history of results determine every proposal.

    ``model`` None means coordinate descent in the analytic order alone. ``related`` returns rows of other
    workloads; it is asked anew at each fit, so that tasks of one session learn from each other.
    """

    def __init__(
        self,
        space: Space,
        *,
        seed: int = 0,
        hints: Iterable[dict] = (),
        model: CostModel | None = None,
        related: Callable[[], Rows] = Rows,
    ) -> None:
        self.space, self.model, self._related = space, model, related
        self._rng = np.random.default_rng(seed)
        self._proposed: set[int] = set()
        self._results: dict[int, Record] = {}
        self._centre: int | None = None
        self._spent: set[int] = set()
        self._best = math.inf
        self._since = 0
        self._first = self._opening(hints) if len(space) else []

    def _opening(self, hints: Iterable[dict]) -> list[int]:
        near = [self.space.index[k] for k in map(canonical, hints) if k in self.space.index]
        top = np.argsort(self.space.estimates, kind="stable")
        out = dict.fromkeys([self.space.default, *near[:HINTS]])
        for i in top[: ANALYTIC_TOP + 1]:
            if len(out) < 1 + HINTS + ANALYTIC_TOP:
                out[int(i)] = None
        return list(out)

    # --- results ---

    def observe(self, index: int, record: Record) -> None:
        """Take in the result of a proposal."""
        self._proposed.add(index)
        self._results[index] = record
        self._since += 1
        if record.cost_s < 0.99 * self._best:
            self._since = 0
        self._best = min(self._best, record.cost_s)

    def rows(self, weight: float = 1.0) -> Rows:
        """Training rows of this workload's trials so far."""
        rows, reference = Rows(), self._reference()
        if reference is None:
            return rows
        for i, r in self._results.items():
            if r.status == "ok":
                rows.add(self.space.features[i], math.log(r.cost_s) - math.log(self.space.estimates[i]) - reference, weight)
            elif r.status not in NOT_LEARNED:
                rows.add(self.space.features[i], FAILURE, weight)
        return rows

    def _reference(self) -> float | None:
        """Log residual of the default, or of the fastest where the default failed."""
        ok = [i for i, r in self._results.items() if r.status == "ok"]
        if not ok:
            return None
        i = self.space.default if self.space.default in ok else min(ok, key=lambda j: self._results[j].cost_s)
        return math.log(self._results[i].cost_s) - math.log(self.space.estimates[i])

    # --- proposals ---

    def propose(self, count: int) -> list[int]:
        """Up to ``count`` new indices: the opening, then half neighbours of the centre and half the model's choice."""
        opening = [i for i in self._first if i not in self._proposed][:count]
        if opening:
            return self._take(opening)
        free = [i for i in range(len(self.space)) if i not in self._proposed]
        if not free:
            return []
        scores = self.scores()
        ranked = sorted(free, key=lambda i: (scores[i], i))
        near = self._neighbours(scores)
        if self.model is None:
            return self._take(_unique([*near, *ranked], count))
        chosen = _unique([*near[: count // 2], *ranked[: max(1, count - count // 2 - 1)]], count)
        upper = ranked[: max(count, len(ranked) // 4)]
        chosen = _unique([*chosen, upper[int(self._rng.integers(len(upper)))], *ranked], count)
        return self._take(chosen)

    def _take(self, indices: list[int]) -> list[int]:
        self._proposed.update(indices)
        return indices

    def scores(self) -> np.ndarray:
        """float64[n]: expected log cost of every config, up to a constant."""
        prior = np.log(self.space.estimates)
        if self.model is None:
            return prior
        own, rows = self.rows(), self._related()
        for x, y, w in zip(own.x, own.y, own.w, strict=True):
            rows.add(x, y, w)
        if len(rows):
            self.model.fit(rows)
        return prior + self.model.predict(self.space.features)

    def _neighbours(self, scores: np.ndarray) -> list[int]:
        """Untried neighbours of the centre, adjacent and promising first; moves the centre when it may."""
        ok = sorted((i for i, r in self._results.items() if r.costs_s), key=lambda i: (self._results[i].cost_s, i))
        if not ok:
            return []
        if self._centre is None or self._centre not in ok:
            self._centre = ok[0]
        elif self._significantly(ok[0], self._centre):
            self._centre = ok[0]
        for centre in [self._centre, *ok[:CENTRES]]:
            if centre in self._spent:
                continue
            steps = self.space.neighbours(centre)
            free = [i for i in steps if i not in self._proposed]
            if free:
                return sorted(free, key=lambda i: (steps[i], scores[i], i))
            self._spent.add(centre)
        return []

    def _significantly(self, a: int, b: int) -> bool:
        costs_a, costs_b = self._results[a].costs_s, self._results[b].costs_s
        return bool(costs_a and costs_b and stats.faster(costs_a, costs_b))

    def gain(self) -> float:
        """Share of the best time that more trials may save: falls by half with every HALF_LIFE trials in vain."""
        if len(self._proposed) >= len(self.space):
            return 0.0
        return OPTIMISM * 0.5 ** (self._since / HALF_LIFE)


def _unique(indices: Sequence[int], count: int) -> list[int]:
    return list(dict.fromkeys(indices))[:count]
