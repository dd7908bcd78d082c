"""Tunes the benchmarks' workloads for x86-64 with AVX2, or AVX-512, and writes the log that ships with the package.

    python -m benchmarks.shipped_log [--level avx2] [--models mlp lenet ...] [--gemm] [--conv] [--seconds 600]

Kernels of the training steps of ``benchmarks.train_step``, products of ``benchmarks.gemm``, convolutions of
``benchmarks.conv``, equal workloads once; trials go where they may save most. Goes on where the shipped log ends. Any
machine that runs such code can do it; records name the CPU they were measured on.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import conv, gemm
from benchmarks.models import ours
from benchmarks.models.tasks import TASKS
from tilegrad import tuner, tuning_logs
from tilegrad._base.target import Target
from tilegrad.tuning_logs import tools

LEVELS = {"avx2": "x86-64-v3", "avx512": "x86-64-v4"}
THREADS = 2
EFFORT = "quick"


def log_of(level: str) -> Path:
    """The log that ships for a level."""
    return Path(tuning_logs.__file__).with_name(f"x86_64_{level}.jsonl")


def target_of(level: str) -> Target:
    """This machine without what machines of the level lack."""
    here, least = Target.native(THREADS), Target.parse(LEVELS[level], THREADS)
    return replace(here, features=tuple(f for f in here.features if f in least.features))


def of_model(name: str, target: Target) -> list[tuner.Task]:
    """The kernels of a training step."""
    return tuner.tasks_of(ours.compiled_step(name, ours.net_of(name), [], THREADS).programs, target)


def of_kernels(kernels: Iterator[Any], target: Target) -> list[tuner.Task]:
    """Kernels by themselves."""
    from tilegrad.schedules import task_of

    return [tuner.Task(*task_of(func), func, target) for func in kernels]


def main() -> None:
    """Tune and prune."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--level", choices=sorted(LEVELS), default="avx2")
    parser.add_argument("--models", nargs="*", choices=sorted(TASKS), default=[])
    parser.add_argument("--gemm", action="store_true")
    parser.add_argument("--conv", action="store_true")
    parser.add_argument("--seconds", type=float, default=None)
    args = parser.parse_args()
    target, shipped = target_of(args.level), log_of(args.level)
    tasks = [t for name in args.models for t in of_model(name, target)]
    if args.gemm:
        shapes = [(shape, layout) for group in gemm.SHAPES.values() for shape in group for layout in gemm.LAYOUTS]
        tasks += of_kernels((gemm.product_kernel(m, n, k, layout) for (m, n, k), layout in shapes), target)
    if args.conv:
        tasks += of_kernels((conv.kernel(case) for _, case in conv.cases([])), target)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.jsonl"
        known = list(tuning_logs.read(shipped).lines) if shipped.exists() else []
        log.write_text("".join(f"{line.line()}\n" for line in known))
        report = tuner.tune(tasks, budget_s=args.seconds, effort=EFFORT, log=log)
        print(report.text())
        lines = tools.prune(tuning_logs.read(log).lines)
    shipped.write_text("".join(f"{line.line()}\n" for line in lines))


if __name__ == "__main__":
    main()
