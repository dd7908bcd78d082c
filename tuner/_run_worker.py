"""The process that measures: loads each candidate with the project's own runtime. ctypes and NumPy, no TVM.

Started as ``python -m tilegrad.tuner._run_worker``; speaks JSON lines as ``_pipe`` does.
"""

from __future__ import annotations

import json
import math
import os
import resource
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from tilegrad.runtime.arrays import aligned
from tilegrad.runtime.library import Context, Library
from tilegrad.runtime.program import numpy_dtype
from tilegrad.tuner import timing
from tilegrad.tuner._pipe import serve
from tilegrad.tuner.check import difference, inputs
from tilegrad.tuner.peak import peak_of

SAMPLE_S = 50e-6
"""Shorter samples would time the clock."""
ATTEMPTS, DISTURBED = 2, 1.01
"""A series during which the system took a core away is made again where it is this much slower than the fastest so far."""
PROFILE_LEAST, PROFILE_ROUNDS, PROFILE_RUNS = 3, 9, 5
PRIORITY = -15
"""Nice value while measuring, where it is allowed."""


class WrongAnswer(Exception):
    """A result differs from the reference."""


class Worker:
    """The task at hand: inputs, reference results, thread count, cache mode."""

    def __init__(self) -> None:
        self._inputs: list[np.ndarray] = []
        self._expected: list[np.ndarray] = []
        self._threads, self._hot = 1, True
        self._flush: np.ndarray | None = None
        self._cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []

    def task(self, reference: str, threads: int, mode: str, flush_bytes: int) -> dict[str, Any]:
        """Load the arrays of a task and take the cores that it is to run on."""
        with np.load(reference) as file:
            self._inputs = [aligned(file[f"in{i}"]) for i in range(sum(n.startswith("in") for n in file.files))]
            self._expected = [file[f"out{i}"] for i in range(sum(n.startswith("out") for n in file.files))]
        self._threads, self._hot = threads, mode == "hot"
        self._flush = None if self._hot else np.zeros(flush_bytes // 8)
        self._pin(threads)
        return {"status": "ok"}

    def measure(self, path: str, best_s: float | None = None) -> dict[str, Any]:
        """Check and time one candidate."""
        with self._open(path) as candidate:
            candidate.check(self._expected)
            costs = timing.measure(candidate.timer, best_s, self._hot)
            candidate.check(self._expected)
        return {"status": "ok", "costs_s": costs}

    def glance(self, path: str) -> dict[str, Any]:
        """Time one that was measured before, briefly."""
        with self._open(path) as candidate:
            return {"status": "ok", "costs_s": timing.glance(candidate.timer, self._hot)}

    def compare(self, paths: list[str], seconds: float | None = None) -> dict[str, Any]:
        """Time several candidates in turns, for about ``seconds``."""
        candidates = [self._open(p) for p in paths]
        try:
            costs = timing.compare([c.timer for c in candidates], self._hot, seconds)
        finally:
            for c in candidates:
                c.close()
        return {"status": "ok", "costs_s": costs}

    def profile(self, paths: list[str], threads: int, seconds: float | None = None) -> dict[str, Any]:
        """Time every call of whole libraries, library by library in turns; for about ``seconds``, three rounds at least."""
        end = math.inf if seconds is None else time.monotonic() + seconds
        programs = []
        for path in paths:
            self._pin(threads)
            before = threads_here()
            programs.append(WholeProgram(load(path).context(threads)))
            programs[-1].profile()
            one_core_each(threads_here() - before, self._cores[:threads])
        rounds: list[list[list[tuple[str, float]]]] = [[] for _ in programs]
        for turn in range(PROFILE_ROUNDS):
            if turn >= PROFILE_LEAST and time.monotonic() > end:
                break
            for i in range(len(programs)) if turn % 2 == 0 else reversed(range(len(programs))):
                rounds[i].append(programs[i].profile())
        for program in programs:
            program.context.close()
        return {"status": "ok", "rounds": rounds}

    def _pin(self, threads: int) -> None:
        """Keep to as many cores as there are threads; those that a candidate starts inherit it."""
        with suppress(AttributeError, OSError):  # Linux only
            os.sched_setaffinity(0, self._cores[:threads])

    def _open(self, path: str) -> Candidate:
        before = threads_here()
        candidate = Candidate(load(path).context(self._threads), self._inputs, self._flush)
        candidate.run()
        one_core_each(threads_here() - before, self._cores[: self._threads])
        return candidate


def threads_here() -> set[int]:
    """Kernel's numbers of this process's threads; empty where the system does not tell."""
    with suppress(OSError):
        return {int(t) for t in os.listdir("/proc/self/task")}
    return set()


def one_core_each(threads: set[int], cores: list[int]) -> None:
    """Keep a candidate's threads apart, this one on the first core: two on one core measure the scheduler."""
    with suppress(AttributeError, OSError):
        for thread, core in zip([0, *sorted(threads)], cores, strict=False):
            os.sched_setaffinity(thread, {core})


def load(path: str) -> Library:
    """The library that a candidate's JSON file describes."""
    described = json.loads(Path(path).read_text())
    return Library(Path(described["library"]), described["manifest"])


class WholeProgram:
    """All entries of a library, on seeded inputs and states that stay zero."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self._args = {}
        for entry, ports in context.library.entries.items():
            given = [p for p in ports if p.role == "input"]
            arrays = inputs([(p.shape, p.dtype) for p in given])
            self._args[entry] = {p.name: aligned(x) for p, x in zip(given, arrays, strict=True)}

    def profile(self) -> list[tuple[str, float]]:
        """(kernel, seconds) of every call of every entry, each the median of a few runs."""
        return [call for entry, args in self._args.items() for call in self.context.profile(entry, args, PROFILE_RUNS)]


class Candidate:
    """A loaded library with arrays for its one entry."""

    def __init__(self, context: Context, inputs: list[np.ndarray], flush: np.ndarray | None) -> None:
        self._context, self._flush, self._once, self._fastest = context, flush, 0.0, math.inf
        ports = context.library.entries["run"]
        self._dtypes = [p.dtype for p in ports[len(inputs) :]]
        self.args = {p.name: x for p, x in zip(ports, inputs, strict=False)}
        self._outputs = [aligned(np.zeros(p.shape, numpy_dtype(p.dtype))) for p in ports[len(inputs) :]]
        self.args |= {p.name: x for p, x in zip(ports[len(inputs) :], self._outputs, strict=True)}
        self._prepared = context.prepare("run", self.args)

    def run(self) -> None:
        """Run once."""
        self._prepared()

    def check(self, expected: list[np.ndarray]) -> None:
        """Run once on outputs full of nonsense. Raises WrongAnswer."""
        for x in self._outputs:
            spoil(x)
        self._context.run("run", self.args)
        for i, (x, y, dtype) in enumerate(zip(self._outputs, expected, self._dtypes, strict=True)):
            wrong = difference(x, y, dtype)
            if wrong:
                raise WrongAnswer(f"output {i}: {wrong}")

    def timer(self, number: int) -> float:
        """Seconds of one of ``number`` runs; caches are emptied first in cold mode.

        What disturbs a run only lengthens it: the lower quartile of short samples counts, and a series that was disturbed is
        made again, once: the median of the series stands a few that are not.
        """
        for _ in range(ATTEMPTS):
            before = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
            value = float(np.quantile(self._samples(number), 0.25))
            if value <= DISTURBED * self._fastest or resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw == before:
                break
        self._fastest = min(self._fastest, value)
        return value

    def _samples(self, number: int) -> list[float]:
        """Seconds of one run, of samples that last at least SAMPLE_S each."""
        if self._flush is not None:
            self._flush += 1.0
            start = time.perf_counter()
            self._prepared()
            return [time.perf_counter() - start]
        inner = min(number, math.ceil(SAMPLE_S / self._once)) if self._once else 1
        costs = self._context.benchmark("run", self.args, inner, math.ceil(number / inner), warm_up=False)
        self._once = min(costs)
        return costs

    def close(self) -> None:
        """Stop the candidate's threads."""
        self._context.close()

    def __enter__(self) -> Candidate:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def spoil(x: np.ndarray) -> None:
    """Fill with what no kernel computes: NaN, -1, True."""
    x.reshape(-1).view(np.uint8)[...] = 0xFF if x.dtype != bool else 1


def answering(worker: Worker, path: str, best_s: float | None = None) -> dict[str, Any]:
    """``measure`` with a wrong result as a status."""
    try:
        return worker.measure(path, best_s)
    except WrongAnswer as e:
        return {"status": "wrong_answer", "error": str(e)}


def peak(path: str) -> dict[str, Any]:
    """Floating-point operations a second of one core."""
    return {"status": "ok", "flops_s": peak_of(path)}


if __name__ == "__main__":
    with suppress(OSError):  # where memory runs out, this process goes first
        Path("/proc/self/oom_score_adj").write_text("1000")
    with suppress(OSError, AttributeError):  # where it is allowed: other programs shall not lengthen what is measured
        os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)
        Path("/proc/self/autogroup").write_text(str(PRIORITY))  # Linux weighs whole sessions first, and this is one
    main = Worker()
    serve(
        {
            "task": main.task,
            "measure": lambda **kw: answering(main, **kw),
            "glance": main.glance,
            "compare": main.compare,
            "profile": main.profile,
            "peak": peak,
        }
    )
