"""MetaSchedule's best on this machine for the workloads of ``benchmarks.tuner_live``, kept in ``metaschedule.json``.

    python -m benchmarks.metaschedule [NAME ...] [--trials 96]

Upstream's tuner as it is, but for its time limits: a worker imports TVM's tensor intrinsics first, which takes longer than
the 30 s it is given. The TOP fastest of its trials are measured again in turns, and the best of those is stored. About ten
minutes a workload on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from datetime import datetime, timezone
from typing import Any

import numpy as np

from benchmarks.common import machine
from benchmarks.tuner_live import STORED, WORKLOADS

THREADS = 2
TIMEOUT_S = 600.0
TOP = 8
ROUNDS = 7


def target_of() -> Any:
    """This machine's features, as tilegrad's own kernels are compiled for, with the number of cores MetaSchedule asks for."""
    from tilegrad._base.target import Target
    from tilegrad._base.tvm import tvm

    spec = json.loads(str(Target.native(THREADS).tvm))
    return tvm.target.Target({**spec, "num-cores": THREADS})


def matmul(name: str) -> Any:
    """The workload as an unscheduled TIR module, one sum of products."""
    from tilegrad._base.tvm import te, tvm

    a, b, turned = WORKLOADS[name]
    x, y = te.placeholder(a, "float32", name="x"), te.placeholder(b, "float32", name="y")
    k = te.reduce_axis((0, a[1]), name="k")
    shape = (a[0], b[0] if turned else b[1])
    out = te.compute(shape, lambda i, j: te.sum(x[i, k] * (y[j, k] if turned else y[k, j]), axis=k), name="out")
    return tvm.IRModule({"main": te.create_prim_func([x, y, out]).with_attr("global_symbol", "main")})


def fastest(name: str, trials: int) -> tuple[list[Any], int]:
    """The TOP fastest schedules of a search, built, and how many trials worked."""
    from tilegrad._base.tvm import s_tir, tvm

    ms, target = s_tir.meta_schedule, target_of()
    with tempfile.TemporaryDirectory() as folder:
        database = ms.tir_integration.tune_tir(
            mod=matmul(name),
            target=target,
            work_dir=folder,
            max_trials_global=trials,
            num_trials_per_iter=32,
            builder=ms.builder.LocalBuilder(max_workers=THREADS, timeout_sec=TIMEOUT_S),
            runner=ms.runner.LocalRunner(timeout_sec=TIMEOUT_S),
            num_tuning_cores=THREADS,
            seed=0,
        )
        records = database.get_all_tuning_records()
    worked = [r for r in records if r.run_secs and max(float(s) for s in r.run_secs) < 1e9]
    worked.sort(key=lambda r: statistics.median(float(s) for s in r.run_secs))
    built = []
    for record in worked[:TOP]:
        schedule = s_tir.Schedule(record.workload.mod)
        record.trace.apply_to_schedule(schedule, remove_postproc=False)
        built.append(tvm.compile(schedule.mod, target=target).jit())
    return built, len(records)


def best_ms(name: str, built: list[Any]) -> float:
    """Median milliseconds of the fastest, measured in turns."""
    from tilegrad._base.tvm import tvm

    a, b, turned = WORKLOADS[name]
    rng = np.random.default_rng(0)
    shapes = (a, b, (a[0], b[0] if turned else b[1]))
    arrays = [tvm.runtime.tensor(rng.uniform(-1, 1, s).astype(np.float32)) for s in shapes]
    timers = [m.time_evaluator("main", tvm.cpu(), number=1, repeat=1, min_repeat_ms=50) for m in built]
    costs: list[list[float]] = [[] for _ in built]
    for _ in range(ROUNDS):
        for cost, timer in zip(costs, timers, strict=True):
            cost.append(timer(*arrays).mean)
    return 1e3 * min(statistics.median(c) for c in costs)


def main() -> None:
    """Search the workloads named and store their best."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--trials", type=int, default=96)
    args = parser.parse_args()
    os.environ["TVM_NUM_THREADS"] = str(THREADS)  # before TVM is imported
    stored = json.loads(STORED.read_text()) if STORED.exists() else {"best_ms": {}, "made": {}}
    for name in args.names or WORKLOADS:
        start = time.monotonic()
        built, trials = fastest(name, args.trials)
        stored["best_ms"][name] = round(best_ms(name, built), 4)
        when = datetime.now(timezone.utc).date().isoformat()
        how = f"python -m benchmarks.metaschedule {name} --trials {args.trials}"
        stored["made"][name] = {"by": how, "trials": trials, "seconds": round(time.monotonic() - start), "date": when}
        stored["machine"] = machine()
        STORED.write_text(json.dumps(stored, indent=1) + "\n")
        print(name, stored["best_ms"][name], stored["made"][name], flush=True)


if __name__ == "__main__":
    main()
