"""The one form of every benchmark: contestants in processes of their own, interleaved rounds, medians, JSON rows.

A contestant is ``module:function`` with keyword arguments. Its process calls the function once, untimed; what comes
back is a callable without arguments, one call of which is one unit of work. The parent then asks the processes for a
turn one after the other, round by round, with a pause between turns so that spinning thread pools have gone to sleep.

    with Arena([Contestant("ours", "benchmarks.x:ours", {...}), Contestant("torch", "benchmarks.x:torch", {...})]) as arena:
        result = arena.race(rounds=5)
    result.ms["ours"], result.ratio("ours", "torch"), result.peak_mb["torch"], arena.missing["jax"]

A contestant with ``many=True`` serves many units of work from one process, for benchmarks of many short rows: its
function returns a callable that makes the work of one unit from the keywords that ``race`` is given as ``unit``.

A ratio ``x_vs_y`` is y's time over x's: above 1 means that x is faster.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAUSE_S = 0.25
"""Between turns: longer than the thread pools of any peer spin before they sleep (OpenMP runtimes: up to 0.2 s)."""


@dataclass(frozen=True)
class Contestant:
    """``target`` is ``module:function``; ``kwargs`` must be JSON; ``env`` is added to the process's environment."""

    name: str
    target: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    many: bool = False


class Missing(Exception):
    """Raised by a contestant's function when what it needs is not installed; the text is shown in the output."""


@dataclass(frozen=True)
class Result:
    """Seconds per unit of work, one number a round; peak resident memory of each process in MiB."""

    seconds: Mapping[str, Sequence[float]]
    peak_mb: Mapping[str, float]

    @property
    def ms(self) -> dict[str, float]:
        """Median milliseconds per unit of work."""
        return {name: round(1e3 * statistics.median(s), 4) for name, s in self.seconds.items()}

    def spread(self, name: str) -> float:
        """(slowest - fastest) / median over the rounds."""
        s = self.seconds[name]
        return round((max(s) - min(s)) / statistics.median(s), 3)

    def ratio(self, ours: str, peer: str) -> float:
        """How many times faster ``ours`` is than ``peer``: the median of the rounds' ratios."""
        pairs = zip(self.seconds[ours], self.seconds[peer], strict=True)
        return round(statistics.median(y / x for x, y in pairs), 3)

    def best(self, names: Sequence[str]) -> str | None:
        """The fastest of ``names``, None when there is none."""
        present = [n for n in names if n in self.seconds]
        return min(present, key=lambda n: self.ms[n], default=None)


class Arena:
    """Starts every contestant's process and keeps it; ``missing`` says which could not start and why."""

    def __init__(self, contestants: Sequence[Contestant], threads: int) -> None:
        self.missing: dict[str, str] = {}
        self._workers: dict[str, subprocess.Popen[str]] = {}
        try:
            for c in contestants:
                self._start(c, threads)
        except BaseException:
            self.close()
            raise

    def _start(self, c: Contestant, threads: int) -> None:
        env = {k: v for k, v in os.environ.items() if k != "OPENBLAS_CORETYPE"}
        n = str(threads)
        env |= dict.fromkeys(
            ("TILEGRAD_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "TVM_NUM_THREADS"), n
        )
        env |= {"PYTHONPATH": str(ROOT), **c.env}
        command = [sys.executable, "-c", "from benchmarks.common import worker; worker()", c.target]
        command += [json.dumps(dict(c.kwargs)), json.dumps(c.many)]
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._workers[c.name] = process
        reply = _read(process, c.name)
        if "missing" in reply:
            self.missing[c.name] = reply["missing"]
            _end(self._workers.pop(c.name))

    def race(self, rounds: int = 5, turn_s: float = 0.3, unit: Mapping[str, Any] | None = None) -> Result:
        """Interleaved turns of ``turn_s`` seconds each, of one ``unit`` if the contestants serve many.

        The first round prepares and warms up; it is not counted.
        """
        seconds: dict[str, list[float]] = {name: [] for name in self._workers}
        peaks: dict[str, float] = {}
        for counted in range(rounds + 1):
            for name, worker in self._workers.items():
                time.sleep(PAUSE_S)
                assert worker.stdin is not None
                worker.stdin.write(json.dumps([turn_s, dict(unit or {})]) + "\n")
                worker.stdin.flush()
                reply = _read(worker, name)
                peaks[name] = reply["peak_mb"]
                if counted:
                    seconds[name].append(reply["seconds"])
        return Result(seconds, peaks)

    def close(self) -> None:
        """End every process."""
        while self._workers:
            _end(self._workers.popitem()[1])

    def __enter__(self) -> Arena:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _end(worker: subprocess.Popen[str]) -> None:
    """A worker ends when its standard input does."""
    assert worker.stdin is not None and worker.stdout is not None
    worker.stdin.close()
    try:
        worker.wait(10)
    except subprocess.TimeoutExpired:
        worker.kill()
        worker.wait()
    worker.stdout.close()


def _read(worker: subprocess.Popen[str], name: str) -> dict[str, Any]:
    assert worker.stdout is not None
    line = worker.stdout.readline()
    if not line:
        raise RuntimeError(f"benchmark contestant {name!r} ended with status {worker.wait()}; its error is above")
    reply: dict[str, Any] = json.loads(line)
    return reply


def take_turn(work: Callable[[], Any], turn_s: float) -> float:
    """Median seconds per call over batches of about a tenth of ``turn_s`` each; one call is the turn when it takes that long."""
    start = time.perf_counter()
    work()
    once = max(time.perf_counter() - start, 1e-7)
    if once >= turn_s:
        return once
    number = max(1, int(turn_s / 10 / once))
    batches: list[float] = []
    end = time.perf_counter() + turn_s
    while len(batches) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(number):
            work()
        batches.append((time.perf_counter() - start) / number)
    return statistics.median(batches)


def peak_mb() -> float:
    """Peak resident memory of this process in MiB. ``ru_maxrss`` would count the parent's at the time of the fork, too."""
    status = Path("/proc/self/status").read_text()
    return round(next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 2**10, 1)


def worker() -> None:
    """A contestant's process serves turns: a line with seconds in, a line of JSON out. What it prints goes to stderr."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def reply(**row: Any) -> None:
        out.write(json.dumps(row) + "\n")
        out.flush()

    module, _, function = sys.argv[1].partition(":")
    try:
        made = getattr(importlib.import_module(module), function)(**json.loads(sys.argv[2]))
        many = json.loads(sys.argv[3])
        if not many:
            made()
    except (Missing, ImportError) as e:
        reply(missing=str(e))
        return
    reply(ready=True)
    current, work = None, made
    for line in sys.stdin:
        turn_s, unit = json.loads(line)
        if many and unit != current:
            current, work = unit, made(**unit)
        seconds = take_turn(work, turn_s)
        reply(seconds=seconds, peak_mb=peak_mb())


def arguments(description: str, **options: Mapping[str, Any]) -> argparse.Namespace:
    """``--json``, ``--quick``, ``--threads`` and the benchmark's own options (name -> add_argument's keywords)."""
    from tilegrad._base.settings import usable_cores

    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="one JSON object per row, last the summary (otherwise aligned text)")
    parser.add_argument("--quick", action="store_true", help="fewer shapes and shorter turns")
    parser.add_argument("--threads", type=int, default=usable_cores(), help="threads for every contestant")
    for name, keywords in options.items():
        parser.add_argument(f"--{name.replace('_', '-')}", **dict(keywords))
    return parser.parse_args()


def emit(row: Mapping[str, Any], as_json: bool) -> None:
    """Print one row at once."""
    text = json.dumps(row) if as_json else "  ".join(f"{k}={v}" for k, v in row.items())
    print(text, flush=True)


def machine() -> dict[str, Any]:
    """What the figures were measured on, for the summary."""
    from tilegrad._base.target import Target

    t = Target.native()
    return {"cpu": t.cpu, "cores": t.threads, "features": list(t.features), "python": platform.python_version()}
