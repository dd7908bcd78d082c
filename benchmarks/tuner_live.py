"""Tuning from nothing for a minute a workload, then the result against NumPy and a stored MetaSchedule best.

    python -m benchmarks.tuner_live --json [--quick]

``benchmarks/metaschedule.json`` holds, per workload, the best seconds MetaSchedule found, its trials and how that was done;
it is comparable only on the machine it names. ``first_trial_s`` counts from the start of tuning, imports aside.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import sweeps
from benchmarks.common import Arena, Contestant, arguments, emit, machine
from tilegrad.runtime.arrays import aligned, empty

STORED = Path(__file__).with_name("metaschedule.json")
WORKLOADS: dict[str, tuple[tuple[int, int], tuple[int, int], bool]] = {
    "square_1024": ((1024, 1024), (1024, 1024), False),
    "nt_128x512x784": ((128, 784), (512, 784), True),
    "skinny_16x1024x1024": ((16, 1024), (1024, 1024), False),
}
"""Shapes of both operands and whether the second is transposed."""


def _operands(name: str) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [aligned(rng.uniform(-1, 1, s).astype(np.float32)) for s in WORKLOADS[name][:2]]


def _task(name: str, threads: int) -> Any:
    from tilegrad import schedules
    from tilegrad._base.target import Target
    from tilegrad.tuner import Task

    a, b, turned = WORKLOADS[name]
    func = sweeps.product(a, b, turn_b=turned)()
    template, workload = schedules.task_of(func)
    return Task(template, workload, func, Target.native(threads))


def ours(name: str, log: str, threads: int) -> Callable[[], Any]:
    """The kernel with the log's config, through the runtime."""
    from tilegrad import runtime, schedules
    from tilegrad.tuner._build_worker import one_call
    from tilegrad.tuning_logs import Records

    task = _task(name, threads)
    config = Records.load(log).choose(task.template, task.workload, task.target).config
    scheduled = schedules.schedule(task.func, task.target, config)
    library = runtime.build({"run": one_call(task.func, 1)}, {"kernel": scheduled}, task.target)
    a, b, turned = WORKLOADS[name]
    x, y = _operands(name)
    out = empty((a[0], b[0] if turned else b[1]), np.dtype(np.float32))
    return library.context(threads).prepare("run", {"x0": x, "x1": y, "x2": out})


def numpy(name: str) -> Callable[[], Any]:
    """NumPy's own BLAS, into a reused result."""
    x, y = _operands(name)
    y = y.T if WORKLOADS[name][2] else y
    out = empty((x.shape[0], y.shape[1]), np.dtype(np.float32))
    return lambda: np.matmul(x, y, out=out)


def row_of(name: str, budget_s: float, threads: int, log: Path) -> dict[str, Any]:
    """Tune one workload and race the result."""
    from tilegrad import tuner

    first: list[float] = []
    task = _task(name, threads)
    start = time.monotonic()

    def listen(event: Any) -> None:
        if event.kind == "trial" and not first:
            first.append(time.monotonic() - start)

    report = tuner.tune([task], budget_s=budget_s, log=log, progress=listen)
    seconds = time.monotonic() - start
    contestants = [
        Contestant("ours", "benchmarks.tuner_live:ours", {"name": name, "log": str(log), "threads": threads}),
        Contestant("numpy", "benchmarks.tuner_live:numpy", {"name": name}),
    ]
    with Arena(contestants, threads) as arena:
        result = arena.race(rounds=5)
    best = report.tasks[0].row
    row = {"workload": name, "ours_ms": result.ms["ours"], "numpy_ms": result.ms["numpy"]}
    row |= {"gflops": round(task.workload.flops / result.ms["ours"] / 1e6, 2), "ours_vs_numpy": result.ratio("ours", "numpy")}
    row |= {"of_default": best.of_default, "trials": report.trials, "errors": report.errors, "done": best.done}
    row |= {"first_trial_s": round(first[0], 2), "trials_per_s": round(report.trials / seconds, 2)}
    stored = metaschedule_ms(name)
    return row | {"ours_vs_metaschedule": round(stored / result.ms["ours"], 3) if stored else None}


def metaschedule_ms(name: str) -> float | None:
    """MetaSchedule's stored best in milliseconds, where it was found on a machine like this one."""
    stored = json.loads(STORED.read_text()) if STORED.exists() else {}
    here = machine()
    alike = all(stored.get("machine", {}).get(k) == here[k] for k in ("cpu", "cores", "features"))
    return stored["best_ms"].get(name) if alike else None


def run(budget_s: float, threads: int) -> list[dict[str, Any]]:
    """Rows and the summary."""
    os.environ.pop("TILEGRAD_LOG", None)
    with tempfile.TemporaryDirectory() as folder:
        rows = [row_of(n, budget_s, threads, Path(folder) / f"{n}.jsonl") for n in WORKLOADS]
    against = [r["ours_vs_metaschedule"] for r in rows if r["ours_vs_metaschedule"]]
    summary: dict[str, Any] = {
        "worst_vs_metaschedule": min(against, default=None),
        "worst_vs_numpy": min(r["ours_vs_numpy"] for r in rows),
        "first_trial_s": max(r["first_trial_s"] for r in rows),
        "trials_per_s": min(r["trials_per_s"] for r in rows),
        "budget_s": budget_s,
        "missing": [] if against else ["metaschedule: benchmarks/metaschedule.json is of another machine"],
    }
    return [*rows, {"summary": summary}]


def main() -> None:
    """Command line."""
    args = arguments(__doc__ or "")
    for row in run(15.0 if args.quick else 60.0, args.threads):
        emit(row | ({"machine": machine()} if "summary" in row else {}), args.json)


if __name__ == "__main__":
    main()
