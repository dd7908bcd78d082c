"""The last check: the winners inside the whole program, beside the defaults, with the caches their neighbours leave."""

from __future__ import annotations

import json
import logging
import statistics
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
"""A winner that is slower than the default inside the program by more than this, and by more than the spread, is dropped."""
REPRODUCES = 1.2
"""A record whose cost is exceeded by this factor inside the program is reported."""


@dataclass(frozen=True)
class InProgram:
    """Seconds of one task's calls, summed over a run of every entry: with the default config and with the winner."""

    default_s: tuple[float, ...]
    winner_s: tuple[float, ...]
    calls: int

    @property
    def worse(self) -> bool:
        """Whether the winner is significantly slower than the default here."""
        return stats.faster(self.default_s, self.winner_s, MARGIN)

    @property
    def per_call_s(self) -> float:
        """Median seconds of one call with the winner."""
        return statistics.median(self.winner_s) / self.calls


class ProgramCheck:
    """Builds the programs twice, with defaults and with winners, and profiles both in turns at the runner.

    ``results`` holds what was measured, by task key, after a call. Called with the winners' configs by task key it
    returns the keys of those that are slower than the default inside the program.
    """

    def __init__(self, programs: Mapping[str, Program], target: Target, runner: LocalRunner, folder: Path) -> None:
        self._programs, self._target, self._runner, self._folder = dict(programs), target, runner, folder
        self.results: dict[str, InProgram] = {}

    def __call__(self, chosen: Mapping[str, Mapping[str, Any]]) -> set[str]:
        from tilegrad import schedules

        kernels = {name: func for p in self._programs.values() for name, func in p.kernels.items()}
        keys: dict[str, str] = {}
        for name, func in kernels.items():
            template, workload = schedules.task_of(func)
            keys[name] = Task(template, workload, func, self._target).key
        paths = []
        for label, configs in (("defaults", {}), ("winners", chosen)):
            scheduled = {n: schedules.schedule(f, self._target, _config(configs, keys[n])) for n, f in kernels.items()}
            paths.append(self._build(label, scheduled))
        profiles = self._runner.profile(self._target.threads, paths)
        if profiles is None:
            log.info("the whole program could not be profiled; the verdicts stand as measured alone")
            return set()
        self.results = in_program(profiles, keys, chosen)
        return {key for key, found in self.results.items() if found.worse}

    def _build(self, label: str, scheduled: Mapping[str, Any]) -> str:
        from tilegrad import runtime

        library = runtime.build(self._programs, scheduled, self._target)
        path = self._folder / f"{label}.json"
        path.write_text(json.dumps({"library": str(library.path), "manifest": library.manifest}))
        return str(path)


def _config(configs: Mapping[str, Mapping[str, Any]], key: str) -> dict[str, Any] | None:
    return dict(configs[key]) if key in configs else None


Profile = Sequence[Sequence[tuple[str, float]]]
"""Rounds of (kernel, seconds) of every call of every entry, in order."""


def in_program(profiles: Sequence[Profile], keys: Mapping[str, str], chosen: Mapping[str, Any]) -> dict[str, InProgram]:
    """Sum the calls of each chosen task, round by round, for the default and the winner."""
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
    default, winner = sums
    return {k: InProgram(tuple(default[k]), tuple(winner[k]), calls[k]) for k in winner if k in chosen}
