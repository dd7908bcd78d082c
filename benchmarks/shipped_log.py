"""Tunes the benchmarks' workloads for x86-64 with AVX2, or AVX-512, and writes the log that ships with the package.

    python -m benchmarks.shipped_log [--level avx2] [--models mlp lenet ...] [--gemm] [--conv] [--seconds 600]

Training steps of ``benchmarks.train_step``, products of ``benchmarks.gemm``, convolutions of ``benchmarks.conv``; seconds
are for each model and each set. Goes on where the shipped log ends, and keeps what gains GAIN. Any machine that runs such code
can do it; records name the CPU they were measured on.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import conv, gemm
from benchmarks.models import ours
from benchmarks.models.tasks import TASKS
from tilegrad import schedules, tuner, tuning_logs
from tilegrad._base.target import Target
from tilegrad.tuning_logs import Line, Verdict, tools

LEVELS = {"avx2": "x86-64-v3", "avx512": "x86-64-v4"}
THREADS = 2
EFFORT = "quick"
GAIN, LEAST_S = 1.03, 2e-6
"""A workload ships where its config is this much faster than the default, and the default takes that long."""


def log_of(level: str) -> Path:
    """The log that ships for a level."""
    return Path(tuning_logs.__file__).with_name(f"x86_64_{level}.jsonl")


def target_of(level: str) -> Target:
    """This machine without what machines of the level lack."""
    here, least = Target.native(THREADS), Target.parse(LEVELS[level], THREADS)
    return replace(here, features=tuple(f for f in here.features if f in least.features))


def step_of(name: str, target: Target) -> Any:
    """The training step of a model, without any log's configs."""
    return ours.compiled_step(name, ours.net_of(name), [], THREADS, target)


def products() -> Iterator[Any]:
    """The kernels of ``benchmarks.gemm``."""
    for m, n, k in (shape for group in gemm.SHAPES.values() for shape in group):
        for layout in gemm.LAYOUTS:
            yield gemm.product_kernel(m, n, k, layout)


def convolutions() -> Iterator[Any]:
    """The kernels of ``benchmarks.conv``."""
    return (conv.kernel(case) for _, case in conv.cases([]))


def tasks(kernels: Iterable[Any], target: Target) -> list[tuner.Task]:
    """Kernels by themselves."""
    return [tuner.Task(*schedules.task_of(func), func, target) for func in kernels]


def worth(lines: Sequence[Line], gain: float) -> list[Line]:
    """The lines of workloads whose verdict is faster than the default by ``gain`` at least: defaults need no record."""

    def gains(v: Verdict) -> bool:
        return v.default_s is not None and v.default_s >= max(LEAST_S, gain * v.cost_s)

    keep = {tools.key_of(v) for v in lines if isinstance(v, Verdict) and gains(v)}
    return [line for line in lines if tools.key_of(line) in keep]


def main() -> None:
    """Tune, prune, leave out what gains too little."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--level", choices=sorted(LEVELS), default="avx2")
    parser.add_argument("--models", nargs="*", choices=sorted(TASKS), default=[])
    parser.add_argument("--gemm", action="store_true")
    parser.add_argument("--conv", action="store_true")
    parser.add_argument("--seconds", type=float, default=None)
    args = parser.parse_args()
    target, shipped = target_of(args.level), log_of(args.level)
    work = [step_of(name, target) for name in args.models]
    work += [tasks(kernels(), target) for asked, kernels in ((args.gemm, products), (args.conv, convolutions)) if asked]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.jsonl"
        known = list(tuning_logs.read(shipped).lines) if shipped.exists() else []
        log.write_text("".join(f"{line.line()}\n" for line in known))
        for what in work:
            print(tuner.tune(what, budget_s=args.seconds, effort=EFFORT, log=log).text(), flush=True)
            lines = worth(tools.prune(tuning_logs.read(log).lines), GAIN)
            shipped.write_text("".join(f"{line.line()}\n" for line in lines))


if __name__ == "__main__":
    main()
