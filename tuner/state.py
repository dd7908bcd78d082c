"""State: what a session knows about one task."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from tilegrad.tuner.events import Row
from tilegrad.tuner.interfaces import Strategy
from tilegrad.tuner.task import Space, Task
from tilegrad.tuning_logs import Record, Verdict


@dataclass
class State:
    """What a session knows about one task."""

    index: int
    task: Task
    space: Space
    strategy: Strategy
    known: dict[str, Record]
    roofline_s: float | None
    results: dict[int, Record] = field(default_factory=dict)
    best_s: float = math.inf
    paths: dict[int, str] = field(default_factory=dict)
    measured: int = 0
    done: str | None = None
    verdict: Verdict | None = None
    reference_s: float | None = None
    error: str = ""

    def take(self, i: int, record: Record) -> None:
        """Note the result of a trial, new or recalled."""
        self.results[i] = record
        self.best_s = min(self.best_s, record.cost_s)

    @property
    def trials(self) -> int:
        """Trials so far; those of earlier sessions count."""
        return max(len(self.results), self.verdict.trials if self.verdict else 0)

    @property
    def measured_s(self) -> float:
        """Seconds of the fastest trial, of an earlier session's verdict where that settles the task; 0 before any succeeded."""
        found = self.verdict.cost_s if self.verdict else self.best_s
        return found if math.isfinite(found) else 0.0

    @property
    def known_s(self) -> float:
        """Seconds of a run as far as they are known: the fastest trial's, before that the analytic model's."""
        if math.isfinite(self.best_s) or not len(self.space):
            return self.best_s
        return float(self.space.estimates[self.space.default])

    @property
    def saving(self) -> float:
        """Seconds per run of the model that more trials may save."""
        share = self.strategy.gain()
        if self.roofline_s:
            share = min(share, max(0.0, 1.0 - self.roofline_s / self.known_s))
        return self.task.weight * self.known_s * share

    @property
    def won_s(self) -> float:
        """Seconds per run of the model that the fastest trial saves over the default's; all of its time where that failed."""
        default = self.results.get(self.space.default)
        return self.task.weight * ((default.cost_s if default and default.costs_s else 2 * self.best_s) - self.best_s)

    def row(self) -> Row:
        last = next(reversed(self.results.values()), None)
        default = self.results.get(self.space.default)
        default_s = default.cost_s if default and default.costs_s else None
        best_s = self.best_s if math.isfinite(self.best_s) else None
        if self.verdict is not None:
            default_s, best_s = self.verdict.default_s, self.verdict.cost_s
        trials = self.trials
        errors = sum(r.status != "ok" for r in (self.results or self.known).values())
        last_s = last.cost_s if last and last.costs_s else None
        return Row(
            self.index, self.task.name, self.task.weight, trials, errors, last_s, default_s, best_s, self.task.gflops(best_s),
            self.task.gflops(last_s), self.roofline_s / best_s if self.roofline_s and best_s else None, self.done,
        )  # fmt: skip
