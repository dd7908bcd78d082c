"""The last check: the finalists inside the whole program, in turns, with the caches their neighbours leave."""

from __future__ import annotations

import json
import logging
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilegrad.tuner import stats
from tilegrad.tuner.task import Task

if TYPE_CHECKING:
    from tilegrad._base.target import Target
    from tilegrad.runtime.program import Program
    from tilegrad.tuner.runner import LocalRunner

log = logging.getLogger(__name__)

MARGIN = 0.02
"""A winner that is slower than another inside the program by more than this, and by more than the spread, is replaced."""
REPRODUCES = 1.2
"""A record whose cost is exceeded by this factor inside the program is reported."""


@dataclass(frozen=True)
class InProgram:
    """Seconds of one task's calls, summed over a run of every entry, a tuple of rounds for each finalist."""

    runs: tuple[tuple[float, ...], ...]
    calls: int

    @property
    def pick(self) -> int:
        """The first finalist, unless another is significantly faster here."""
        best = min(range(len(self.runs)), key=lambda i: statistics.median(self.runs[i]))
        return best if stats.faster(self.runs[best], self.runs[0], MARGIN) else 0

    @property
    def per_call_s(self) -> float:
        """Median seconds of one call of the finalist that is kept."""
        return statistics.median(self.runs[self.pick]) / self.calls


Finalists = Mapping[str, Sequence[Mapping[str, Any]]]
"""Configs by task key."""


class ProgramCheck:
    """Builds the programs once for each rank of finalists and profiles all in turns at the runner.

    ``results`` holds what was measured, by task key, after a call. A call returns the position of the finalist to keep,
    by task key; it ends after about ``seconds``: with fewer rounds, or none, where they are few.
    """

    def __init__(self, programs: Mapping[str, Program], target: Target, runner: LocalRunner, folder: Path) -> None:
        self._programs, self._target, self._runner, self._folder = dict(programs), target, runner, folder
        self.results: dict[str, InProgram] = {}

    def __call__(self, finalists: Finalists, seconds: float | None = None) -> dict[str, int]:
        from tilegrad import schedules

        end = math.inf if seconds is None else time.monotonic() + seconds
        kernels = {name: func for p in self._programs.values() for name, func in p.kernels.items()}
        keys: dict[str, str] = {}
        for name, func in kernels.items():
            template, workload = schedules.task_of(func)
            keys[name] = Task(template, workload, func, self._target).key
        paths = []
        for rank in range(max(len(configs) for configs in finalists.values())):
            scheduled = {n: schedules.schedule(f, self._target, _config(finalists, keys[n], rank)) for n, f in kernels.items()}
            paths.append(self._build(f"finalists{rank}", scheduled))
            if time.monotonic() > end:
                log.warning("no time to compare inside the whole program; the verdicts stand as measured alone")
                return {}
        profiles = self._runner.profile(self._target.threads, paths, None if seconds is None else end - time.monotonic())
        if profiles is None:
            log.info("the whole program could not be profiled; the verdicts stand as measured alone")
            return {}
        self.results = in_program(profiles, keys, finalists)
        return {key: found.pick for key, found in self.results.items()}

    def _build(self, label: str, scheduled: Mapping[str, Any]) -> str:
        from tilegrad import runtime

        library = runtime.build(self._programs, scheduled, self._target)
        path = self._folder / f"{label}.json"
        path.write_text(json.dumps({"library": str(library.path), "manifest": library.manifest}))
        return str(path)


def _config(finalists: Finalists, key: str, rank: int) -> dict[str, Any] | None:
    """The finalist of a rank, the last where there are fewer; None, the default, for a task without any."""
    configs = finalists.get(key)
    return dict(configs[min(rank, len(configs) - 1)]) if configs else None


Profile = Sequence[Sequence[tuple[str, float]]]
"""Rounds of (kernel, seconds) of every call of every entry, in order."""


def in_program(profiles: Sequence[Profile], keys: Mapping[str, str], finalists: Finalists) -> dict[str, InProgram]:
    """Sum the calls of each task that has finalists, round by round; ``profiles`` has one entry for each rank."""
    sums: list[dict[str, list[float]]] = []
    calls: dict[str, int] = {}
    for profile in profiles:
        totals: dict[str, list[float]] = {}
        for turn in profile:
            here: dict[str, float] = {}
            calls = {}
            for kernel, seconds in turn:
                key = keys[kernel]
                here[key] = here.get(key, 0.0) + seconds
                calls[key] = calls.get(key, 0) + 1
            for key, total in here.items():
                totals.setdefault(key, []).append(total)
        sums.append(totals)
    return {
        key: InProgram(tuple(tuple(totals[key]) for totals in sums[: len(configs)]), calls[key])
        for key, configs in finalists.items()
        if key in calls
    }
