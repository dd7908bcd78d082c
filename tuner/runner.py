"""LocalRunner: one separate process that loads, checks and times candidates. A crash or hang there costs one trial."""

from __future__ import annotations

import fcntl
import logging
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from tilegrad._base.target import Target
from tilegrad.tuner._pipe import Process, WorkerDied, WorkerTimeout
from tilegrad.tuner.interfaces import Outcome
from tilegrad.tuner.peak import compile_peak
from tilegrad.tuner.task import Task

log = logging.getLogger(__name__)

REFERENCE_EVERY = 4
"""The reference kernel is timed before every so many candidates."""
RECYCLE = 300
"""Candidates after which the process is replaced, with all the libraries it has loaded."""
PROFILE_TIMEOUT_S = 120.0
COLD_INTENSITY = 2.0
"""Floating-point operations per byte below which a kernel waits for memory."""


def mode_of(task: Task) -> Literal["hot", "cold"]:
    """Cold (caches emptied before each run) for kernels that stream more than the L2 cache holds and compute little."""
    w, target = task.workload, task.target
    streams = w.bytes > target.l2_bytes * target.threads and w.flops < COLD_INTENSITY * w.bytes
    return "cold" if streams else "hot"


@contextmanager
def alone() -> Iterator[None]:
    """Wait for other tuning sessions of this user on this machine: they measure in turns, never at the same time."""
    path = Path(tempfile.gettempdir()) / f"tilegrad-measuring-{os.getuid()}.lock"
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class LocalRunner:
    """Measures on this machine, in a process without TVM that is pinned to the task's cores.

    ``reference`` gives the NPZ of inputs and expected results of a task. ``timeout_s`` bounds one candidate.
    """

    def __init__(self, reference: Callable[[Task], Path], timeout_s: float = 15.0) -> None:
        self._reference, self._timeout_s = reference, timeout_s
        self._process: Process | None = Process("tilegrad.tuner._run_worker", {"OMP_NUM_THREADS": "1"})
        self._task: tuple[str, int] | None = None
        self._count = 0

    def _alive(self) -> Process:
        """The process; a new one where the last has died or loaded many libraries."""
        if self._process is None or not self._process.alive or self._count >= RECYCLE:
            if self._process is not None:
                self._process.kill()
            self._process, self._task, self._count = Process("tilegrad.tuner._run_worker", {"OMP_NUM_THREADS": "1"}), None, 0
        return self._process

    def _ask(self, task: Task, do: str, timeout_s: float, **arguments: Any) -> dict[str, Any]:
        """A request to a process that knows the task."""
        process = self._alive()
        if self._task != (task.key, task.target.threads):
            about = {"threads": task.target.threads, "mode": mode_of(task), "flush_bytes": 2 * task.target.l3_bytes}
            answer = process.ask("task", 60.0, reference=str(self._reference(task)), **about)
            if answer["status"] != "ok":
                raise WorkerDied(answer.get("error", ""))
            self._task = (task.key, task.target.threads)
        self._count += 1
        with alone():
            return process.ask(do, timeout_s, **arguments)

    def _outcome(self, task: Task, do: str, path: str, **arguments: Any) -> Outcome:
        try:
            answer = self._ask(task, do, self._timeout_s, path=path, **arguments)
        except WorkerTimeout as e:
            return Outcome("run_timeout", None, str(e))
        except WorkerDied as e:
            return Outcome("crash", None, str(e))
        if answer["status"] == "ok":
            return Outcome("ok", tuple(answer["costs_s"]))
        return Outcome("wrong_answer" if answer["status"] == "wrong_answer" else "crash", None, answer.get("error", ""))

    def measure(self, task: Task, paths: Sequence[str], reference: str | None, best_s: float | None) -> Iterator[Outcome]:
        """Check and time each library, the reference kernel before every fourth."""
        for i, path in enumerate(paths):
            drift = None
            if reference is not None and i % REFERENCE_EVERY == 0 and path != reference:
                timed = self._outcome(task, "glance", reference)
                drift = min(timed.costs_s) if timed.costs_s else None
            outcome = self._outcome(task, "measure", path, best_s=best_s)
            if outcome.costs_s:
                best_s = min(best_s if best_s is not None else math.inf, *outcome.costs_s)
            yield Outcome(outcome.status, outcome.costs_s, outcome.error, drift)

    def compare(self, task: Task, paths: Sequence[str], seconds: float | None = None) -> list[Outcome]:
        """Time libraries in turns. Where the process dies, all of them count as not compared."""
        try:
            answer = self._ask(task, "compare", self._timeout_s * (1 + len(paths)), paths=list(paths), seconds=seconds)
        except (WorkerTimeout, WorkerDied) as e:
            return [Outcome("crash", None, str(e))] * len(paths)
        if answer["status"] != "ok":
            return [Outcome("crash", None, answer.get("error", ""))] * len(paths)
        return [Outcome("ok", tuple(costs)) for costs in answer["costs_s"]]

    def profile(
        self, threads: int, paths: Sequence[str], seconds: float | None = None
    ) -> list[list[list[tuple[str, float]]]] | None:
        """Per library and round, (kernel, seconds) of every call of a whole program; None where it does not run."""
        try:
            process = self._alive()
            with alone():
                answer = process.ask("profile", PROFILE_TIMEOUT_S, paths=list(paths), threads=threads, seconds=seconds)
        except (WorkerTimeout, WorkerDied) as e:
            answer = {"status": "crash", "error": str(e)}
        self._task = None  # the process may have taken other cores
        if answer["status"] != "ok":
            log.warning("the whole program does not run at the runner: %s", answer.get("error", ""))
            return None
        return [[[(str(k), float(s)) for k, s in turn] for turn in rounds] for rounds in answer["rounds"]]

    def peak(self, target: Target, folder: Path) -> float | None:
        """Floating-point operations a second of one core; None where it cannot be measured."""
        library = compile_peak(target, folder)
        try:
            answer = self._alive().ask("peak", 20.0, path=str(library)) if library else {"status": "unknown"}
        except (WorkerTimeout, WorkerDied):
            return None
        return float(answer["flops_s"]) if answer["status"] == "ok" else None

    def close(self) -> None:
        """Kill the process. Twice is fine."""
        if self._process is not None:
            self._process.kill()
            self._process = None
