"""Session: the tuning loop over tasks. Proposes, builds, measures, keeps every trial, and gives a verdict per task."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Literal, Protocol

from tilegrad._base.errors import TuningError
from tilegrad.tuner import stats
from tilegrad.tuner.database import record_target
from tilegrad.tuner.events import Event, Listener
from tilegrad.tuner.interfaces import Builder, Database, Outcome, Runner, Strategy
from tilegrad.tuner.report import Report, TaskResult
from tilegrad.tuner.state import State
from tilegrad.tuner.task import Space, Task
from tilegrad.tuning_logs import Record, Verdict

BATCH = 8
CONTENDERS = 6
"""At most this many of the fastest are compared with the default in interleaved rounds at the end."""
FINALISTS = 3
"""At most this many of them, the default included, are compared once more inside the whole program."""
CONTENDING = 1.5
"""Only configs within this factor of the fastest are compared."""
DRIFT = 0.05
"""A trial whose reference kernel ran this much slower or faster than at first is measured once more."""
HOPELESS = 2 * BATCH
"""A task none of whose first trials succeeded is given up."""
RESERVE, MOST_RESERVE = 0.1, 0.3
"""Share of a time budget that is kept for the final comparisons: the first, and more for many tasks, up to the second."""
COMPARISON_S = 1.0
"""Seconds that are kept for the comparison of one task."""
NEGLIGIBLE = 3e-4
"""A task that takes less than this share of the time of those measured is not searched: its default is measured."""
TRIAL_S = 0.5
"""About what a trial takes: few seconds are spread over the tasks as few trials are."""
LEAST_COMPARISON_S = 0.2
"""With less than this for a task, its trials decide."""


@dataclass(frozen=True)
class Limits:
    """When to stop: trials of all tasks together or of each (those in the log count), seconds of this session,
    expected gain, share of the roofline."""

    trials: int | None = None
    trials_per_task: int | None = None
    seconds: float | None = None
    min_gain: float = 0.01
    roofline: float = 0.97


class Recheck(Protocol):
    """Compares the finalists of each task, the winner first, inside the whole program, in ``seconds`` (None: as long as
    it takes). Returns, by task key, the position of the one to keep."""

    def __call__(self, finalists: Mapping[str, Sequence[Mapping[str, Any]]], seconds: float | None) -> Mapping[str, int]: ...


class Session:
    """One run over some tasks. Everything that touches the world is injected.

    ``strategy`` makes the strategy of a task from its space; ``roofline`` gives the least seconds a task can take,
    or None.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        builder: Builder,
        runner: Runner,
        database: Database,
        strategy: Callable[[Space], Strategy],
        limits: Limits = Limits(),
        *,
        listener: Listener | None = None,
        roofline: Callable[[Task], float | None] = lambda task: None,
        recheck: Recheck | None = None,
        clock: Callable[[], float] = time.monotonic,
        run: str = "",
        seed: int = 0,
        mode: Callable[[Task], Literal["hot", "cold"]] = lambda task: "hot",
        versions: Mapping[str, str] | None = None,
    ) -> None:
        self._builder, self._runner, self._database, self._limits = builder, runner, database, limits
        self._listener, self._recheck, self._clock, self._mode = listener, recheck, clock, mode
        self._run, self._seed, self._versions = run, seed, dict(versions or {})
        self._start = clock()
        self._states = []
        self._fresh = 0
        for i, task in enumerate({t.key: t for t in tasks}.values()):
            space = Space(task, database.recorded(task))
            self._states.append(State(i, task, space, strategy(space), database.recall(task), roofline(task)))

    # --- the loop ---

    def run(self) -> Report:
        """Tune until a limit is met. Raises TuningError when not a single trial of any task succeeded.

        KeyboardInterrupt stops everything at once and still writes the best of each task; the report says so.
        """
        interrupted = False
        try:
            self._emit("start", rows=True)
            self._search()
            self._conclude()
        except KeyboardInterrupt:
            interrupted = True
            self._close()
            self._settle_interrupted()
        finally:
            self._close()
        self._emit("end", rows=True)
        report = Report(tuple(self._result(s) for s in self._states), self._elapsed(), interrupted=interrupted)
        if not interrupted and self._states and all(t.row.best_s is None for t in report.tasks):
            if not report.trials and any(s.done == "budget" for s in self._states):
                raise TuningError("tune", f"a budget of {self._limits.seconds} s, over before the first trial", "more seconds")
            first = next((s.error for s in self._states if s.error), "no legal config")
            got = f"{report.trials} trials, none of which succeeded; the first: {first}"
            raise TuningError("tune", got, "at least one that works")
        return report

    def _search(self) -> None:
        for s in self._states:
            verdict = self._database.verdict(s.task)
            if verdict is not None and verdict.done in ("converged", "exhausted", "roofline"):
                s.verdict, s.done = verdict, verdict.done
            elif not len(s.space):
                s.done, s.error = "empty", "the space of legal configs is empty"
        # Few trials are spread: every task measures its default before any goes on.
        share = max(1, self._affordable() // max(1, len(self._states)))
        for s in sorted(self._states, key=lambda s: (-s.saving if len(s.space) else 0.0, s.index)):
            if s.done is None and not self._stop():
                self._round(s, 1 if self._negligible(s, self._total_s()) else share)
        while not self._stop():
            open_states = [s for s in self._states if s.done is None]
            if not open_states:
                return
            self._round(max(open_states, key=lambda s: (s.saving, -s.index)))

    def _affordable(self) -> int:
        """Trials that the limits leave room for; a batch a task at the most."""
        limits, most = self._limits, BATCH * len(self._states)
        by_time = most if limits.seconds is None else int((limits.seconds - self._reserve(limits.seconds)) / TRIAL_S)
        return min(most, by_time, limits.trials or most)

    def _stop(self) -> bool:
        """Whether a limit of the whole session is met; marks the tasks that it ends."""
        limits = self._limits
        reason = None
        if limits.trials is not None and sum(s.trials for s in self._states) >= limits.trials:
            reason = "trials"
        elif limits.seconds is not None and self._elapsed() >= limits.seconds - self._reserve(limits.seconds):
            reason = "budget"
        total = self._total_s()
        for s in self._states:
            if s.done is None:
                s.done = reason or self._finished(s, total)
        return reason is not None

    def _reserve(self, budget: float) -> float:
        """Seconds of the budget that the end will need."""
        open_tasks = sum(s.measured > 0 for s in self._states)
        return min(max(RESERVE * budget, COMPARISON_S * open_tasks), MOST_RESERVE * budget)

    def _left(self) -> float | None:
        """Seconds until the budget is used up; None without one."""
        return None if self._limits.seconds is None else max(0.0, self._limits.seconds - self._elapsed())

    def _finished(self, s: State, total_s: float) -> str | None:
        if self._limits.trials_per_task is not None and len(s.results) >= self._limits.trials_per_task:
            return "trials"
        if len(s.results) >= HOPELESS and math.isinf(s.best_s):
            return "failed"
        if s.results and s.roofline_s and s.roofline_s >= self._limits.roofline * s.best_s:
            return "roofline"
        if math.isfinite(s.best_s) and self._negligible(s, total_s):
            return "negligible"
        if s.results and s.strategy.gain() < self._limits.min_gain:
            return "converged" if len(s.results) < len(s.space) else "exhausted"
        return None

    def _total_s(self) -> float:
        """Seconds of a run in the tasks that have been measured."""
        return sum(s.task.weight * s.measured_s for s in self._states)

    @staticmethod
    def _negligible(s: State, total_s: float) -> bool:
        """Whether nothing that this task may save would be seen in the time of all."""
        return s.task.weight * s.known_s < NEGLIGIBLE * total_s

    def _round(self, s: State, most: int = BATCH) -> None:
        """One batch of one task."""
        room = min(BATCH, most)
        if self._limits.trials is not None:
            room = min(room, self._limits.trials - sum(t.trials for t in self._states))
        if self._limits.trials_per_task is not None:
            room = min(room, self._limits.trials_per_task - len(s.results))
        batch = s.strategy.propose(room) if room > 0 else []
        if not batch:
            s.done = "exhausted" if room > 0 else "trials"
            return
        # Recalled trials answer at once; results are taken in by the order of the proposal, so that a resumed
        # session sees the same history as one that was never interrupted.
        fresh = [i for i in batch if s.space.keys[i] not in s.known]
        if self._limits.trials is not None:  # where a replay differs, what is in the log counts all the same
            left = max(0, self._limits.trials - sum(len(t.known) for t in self._states))
            batch = [i for i in batch if i not in fresh[left:]]
            fresh = fresh[:left]
        if not batch:
            s.done = "trials"
            return
        for i in batch:
            if s.space.keys[i] in s.known:
                s.take(i, s.known[s.space.keys[i]])
        if fresh:
            self._try(s, fresh)
        for i in batch:
            s.strategy.observe(i, s.results[i])

    def _try(self, s: State, indices: list[int]) -> None:
        """Build and measure configs; every finished trial is kept before the next one starts."""
        good: list[int] = []
        default = s.results.get(s.space.default)
        reference = [s.space.default] if default and default.costs_s and s.space.default not in s.paths else []  # recalled
        wanted = [*reference, *indices]
        for i, built in zip(wanted, self._builder.build(s.task, [s.space.configs[i] for i in wanted]), strict=True):
            if built.path is not None:
                s.paths[i] = built.path
            if i in reference:
                continue
            if built.path is None:
                self._keep(s, i, Outcome(built.status, None, built.error))
            else:
                good.append(i)
        again = []
        for i, outcome in self._measure(s, good):
            if self._drifted(s, outcome):
                again.append(i)
            else:
                self._keep(s, i, outcome)
        if again:
            self._emit("notice", s, text=f"the machine's speed drifted; measuring {len(again)} trials again")
            s.reference_s = None
            for i, outcome in self._measure(s, again):
                self._drifted(s, outcome)
                self._keep(s, i, outcome)

    def _measure(self, s: State, indices: list[int]) -> Any:
        best = s.best_s if math.isfinite(s.best_s) else None
        reference = s.paths.get(s.space.default)
        outcomes = self._runner.measure(s.task, [s.paths[i] for i in indices], reference, best) if indices else ()
        return zip(indices, outcomes, strict=True)

    def _drifted(self, s: State, outcome: Outcome) -> bool:
        if outcome.reference_s is None:
            return False
        if s.reference_s is None:
            s.reference_s = outcome.reference_s
        return abs(outcome.reference_s / s.reference_s - 1.0) > DRIFT

    def _keep(self, s: State, i: int, outcome: Outcome) -> None:
        w, costs = s.task.workload.json(), _rounded(outcome.costs_s)
        record = Record(
            s.task.template.name, w, record_target(s.task.target, w), s.space.configs[i], outcome.status, costs,
            self._mode(s.task), _now(), self._run, self._seed, self._versions, outcome.error[:500],
        )  # fmt: skip
        self._database.append(record)
        s.known[s.space.keys[i]] = record
        s.take(i, record)
        s.measured += 1
        self._fresh += 1
        if outcome.status != "ok" and not s.error:
            s.error = f"{outcome.status}: {outcome.error}"
        self._emit("trial", s, status=outcome.status)

    # --- verdicts ---

    def _conclude(self) -> None:
        """Compare the fastest with the default in interleaved rounds and write a verdict for every task that has news."""
        finals: dict[str, tuple[State, list[int], Mapping[int, tuple[float, ...]]]] = {}
        news = []
        for s in self._states:
            earlier = self._database.verdict(s.task)
            if earlier is not None and not s.measured and earlier.done is not None:
                s.verdict, s.done = earlier, s.done or earlier.done
            elif math.isfinite(s.best_s):
                news.append(s)
        news.sort(key=lambda s: (-s.won_s, s.index))  # where time is short, first what matters most
        for n, s in enumerate(news):
            left = self._left()
            if left is not None:
                left /= (len(news) - n) * (2 if self._recheck is not None else 1)
            costs = self._compared(s, left)
            finals[s.task.key] = (s, self._finalists(s, costs), costs)
        picks: Mapping[str, int] = {}
        if self._recheck is not None and finals:
            picks = self._recheck({k: [s.space.configs[i] for i in order] for k, (s, order, _) in finals.items()}, self._left())
        for key, (s, order, compared) in finals.items():
            i = order[picks.get(key, 0)]
            if i != order[0]:
                kept = "the default" if i == s.space.default else "another config"
                self._emit("notice", s, text=f"the winner is not the fastest inside the whole program; {kept} is kept")
            s.verdict = self._verdict(s, i, compared, s.done)
            self._database.append(s.verdict)
            self._emit("task", s)

    def _compared(self, s: State, seconds: float | None) -> dict[int, tuple[float, ...]]:
        """Costs of the default and the contenders, measured side by side; the trials' own costs where that fails, or where
        ``seconds`` are too few."""
        ok = sorted((i for i, r in s.results.items() if r.costs_s), key=lambda i: (s.results[i].cost_s, i))
        top = [i for i in ok if s.results[i].cost_s <= CONTENDING * s.best_s][:CONTENDERS]
        if s.space.default in ok and s.space.default not in top:
            top.append(s.space.default)
        apart = {i: costs for i in top if (costs := s.results[i].costs_s)}
        if len(top) < 2 or (seconds is not None and seconds < LEAST_COMPARISON_S):
            return apart
        missing = [i for i in top if i not in s.paths]
        if missing:
            for i, built in zip(missing, self._builder.build(s.task, [s.space.configs[i] for i in missing]), strict=True):
                if built.path is not None:
                    s.paths[i] = built.path
        top = [i for i in top if i in s.paths]
        outcomes = self._runner.compare(s.task, [s.paths[i] for i in top], seconds) if top else []
        return {i: costs for i, o in zip(top, outcomes, strict=True) if (costs := _rounded(o.costs_s))} or apart

    def _winner(self, s: State, costs: Mapping[int, tuple[float, ...]]) -> int:
        """The fastest, if it beats the default by more than the spread; otherwise the default."""
        winner = min(costs, key=lambda i: (statistics.median(costs[i]), i))
        default = costs.get(s.space.default)
        return s.space.default if default is not None and not stats.faster(costs[winner], default) else winner

    def _finalists(self, s: State, costs: Mapping[int, tuple[float, ...]]) -> list[int]:
        """The winner first; then the default and what is not significantly slower than the winner, FINALISTS in all. Nothing
        that is slower than the default."""
        winner = self._winner(s, costs)
        most = statistics.median(costs.get(s.space.default, costs[winner]))
        level = [i for i in costs if not stats.faster(costs[winner], costs[i]) and statistics.median(costs[i]) <= most]
        level.sort(key=lambda i: (statistics.median(costs[i]), i))
        default = [s.space.default] if s.space.default in costs else []
        return list(dict.fromkeys([winner, *default, *level]))[:FINALISTS]

    def _verdict(self, s: State, i: int, costs: Mapping[int, tuple[float, ...]], done: str | None) -> Verdict:
        w, default = s.task.workload.json(), costs.get(s.space.default)
        target, mode = record_target(s.task.target, w), self._mode(s.task)
        return Verdict(
            s.task.template.name, w, target, s.space.configs[i], statistics.median(costs[i]),
            statistics.median(default) if default else None, len(s.results), done, mode, _now(), self._run,
        )  # fmt: skip

    def _settle_interrupted(self) -> None:
        for s in self._states:
            costs = {i: r.costs_s for i, r in s.results.items() if r.costs_s}
            if s.measured and costs:
                s.done = None
                s.verdict = self._verdict(s, self._winner(s, costs), costs, None)
                self._database.append(s.verdict)

    # --- telling ---

    def _result(self, s: State) -> TaskResult:
        config = s.verdict.config if s.verdict else None
        costs = tuple(r.cost_s if r.costs_s else None for r in s.results.values())
        return TaskResult(s.row(), s.task.template.name, s.task.workload.json(), config, costs, s.error)

    def _elapsed(self) -> float:
        return self._clock() - self._start

    def _eta(self) -> float | None:
        elapsed, limits = self._elapsed(), self._limits
        left = [] if limits.seconds is None else [max(0.0, limits.seconds - elapsed)]
        total = limits.trials
        if total is None and limits.trials_per_task is not None:
            total = sum(min(limits.trials_per_task, len(s.space)) for s in self._states if s.done is None)
            total += sum(len(s.results) for s in self._states if s.done is not None)
        if total is not None and self._fresh:
            left.append((total - sum(len(s.results) for s in self._states)) * elapsed / self._fresh)
        return max(0.0, min(left)) if left else None

    def _emit(self, kind: Any, s: State | None = None, *, rows: bool = False, status: str = "", text: str = "") -> None:
        if self._listener is not None:
            every = tuple(t.row() for t in self._states) if rows else ()
            self._listener(Event(kind, s.row() if s else None, every, status, text, self._elapsed(), self._eta()))

    def _close(self) -> None:
        self._builder.close()
        self._runner.close()


def _rounded(costs: tuple[float, ...] | None) -> tuple[float, ...] | None:
    """Six digits, so that logs stay readable; rounded before use, so that a resumed run sees the same numbers."""
    return tuple(float(f"{c:.6g}") for c in costs) if costs else None


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
