"""MetaSchedule's best on this machine for the workloads of ``benchmarks.tuner_live``, kept in ``metaschedule.json``.

    python -m benchmarks.metaschedule [NAME ...] [--trials 96] [--with "COMMAND ..."]

Upstream's search, cost model and build as they are, but for the import of TVM's tensor intrinsics: a product of floats has no
use of them, and it takes a minute, longer than a worker is given. Trials are measured as
upstream does (at least 100 ms each), a batch in one process of its own, so that the machine need be quiet only then: ``--with``
is put before that process's command. The TOP fastest are measured again in turns, and the best of those is stored. Five
to ten minutes a workload on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks.common import machine
from benchmarks.tuner_live import STORED, WORKLOADS

THREADS = 2
TIMEOUT_S = 600.0
TOP = 8
ROUNDS = 7
NUMBER, REPEAT_MS = 3, 100
"""Upstream's: runs in a measurement at the least, and how long it lasts at the least."""
RULES = "llvm"
"""Upstream's rules for CPUs. Those for AVX-512 and VNNI add intrinsics for products of bytes to them, nothing for floats."""


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


def build(mod: Any, target: Any, _params: Any) -> Any:
    """Upstream's ``default_build`` without its import."""
    from tilegrad._base.tvm import s_tir, tvm

    return tvm.compile(s_tir.transform.RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(mod), target=target)


def export(module: Any) -> str:
    """A shared library instead of upstream's archive, which would be linked while others are measured."""
    path = Path(tempfile.mkdtemp()) / "candidate.so"
    module.export_library(str(path))
    return str(path)


def search(name: str, trials: int, before: Sequence[str], kept: Path) -> list[tuple[float, str]]:
    """(seconds, library) of the trials that worked, the fastest first. Upstream removes what it built; the libraries are copies
    in ``kept``."""
    from benchmarks import metaschedule as own  # workers find functions by their module's name, and this may be __main__
    from tilegrad._base.tvm import s_tir, tvm

    sys.modules["tvm.s_tir.tensor_intrin"] = ModuleType("tensor_intrin")  # see above; the search imports it, too
    ms: Any = s_tir.meta_schedule
    derived_object: Any = tvm.ir.utils.derived_object
    found: list[tuple[float, str]] = []

    @derived_object
    class Future(ms.runner.PyRunnerFuture):  # type: ignore[misc]
        def __init__(self, seconds: float | None) -> None:
            super().__init__()
            self.seconds = seconds

        def done(self) -> bool:
            return True

        def result(self) -> Any:
            ok = self.seconds is not None
            return ms.runner.RunnerResult([self.seconds] if ok else None, None if ok else "it did not run")

    @derived_object
    class Apart(ms.runner.PyRunner):  # type: ignore[misc]
        def run(self, runner_inputs: Any) -> list[Any]:
            paths = [str(x.artifact_path) for x in runner_inputs]
            costs = measured(name, paths, 1, before)
            for p in paths:
                if p in costs:
                    found.append((costs[p][0], shutil.copy(p, str(kept / f"{len(found)}.so"))))
            return [Future(costs[p][0] if p in costs else None) for p in paths]

    kinds = {"sch_rules": ms.ScheduleRule, "postprocs": ms.Postproc, "mutator_probs": ms.Mutator}
    rules = {name: kind.create(RULES) for name, kind in kinds.items()}
    with tempfile.TemporaryDirectory() as folder:
        ms.tir_integration.tune_tir(
            mod=matmul(name),
            target=target_of(),
            work_dir=folder,
            max_trials_global=trials,
            num_trials_per_iter=32,
            builder=ms.builder.LocalBuilder(max_workers=THREADS, timeout_sec=TIMEOUT_S, f_build=own.build, f_export=own.export),
            runner=Apart(),
            space=ms.space_generator.PostOrderApply(**rules),
            num_tuning_cores=THREADS,
            seed=0,
        )
    return sorted(found)


def measured(name: str, paths: Sequence[str], rounds: int, before: Sequence[str]) -> dict[str, list[float]]:
    """Seconds of each library, one a round, by path; one that crashes the process is left out and the others go on."""
    found: dict[str, list[float]] = {}
    lost: set[str] = set()
    while todo := [p for p in paths if p not in found and p not in lost]:
        command = [*before, sys.executable, "-m", "benchmarks.metaschedule", name, "--rounds", str(rounds), "--measure", *todo]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        for line in done.stdout.splitlines():
            if line.startswith("{"):
                found |= json.loads(line)
        lost |= set([p for p in todo if p not in found][:1])
    return found


def measure(name: str, paths: Sequence[str], rounds: int) -> None:
    """Print the seconds of libraries, measured in turns: a line each where there is one round, else one line of all."""
    from tilegrad._base.tvm import tvm

    a, b, turned = WORKLOADS[name]
    rng = np.random.default_rng(0)
    shapes = (a, b, (a[0], b[0] if turned else b[1]))
    arrays = [tvm.runtime.tensor(rng.uniform(-1, 1, s).astype(np.float32)) for s in shapes]
    costs: dict[str, list[float]] = {p: [] for p in paths}
    timers: dict[str, Any] = {}
    for _ in range(rounds):
        for p in paths:
            if p not in timers:
                module = tvm.runtime.load_module(p)
                timers[p] = module.time_evaluator("main", tvm.cpu(), number=NUMBER, repeat=1, min_repeat_ms=REPEAT_MS)
            costs[p].append(timers[p](*arrays).mean)
            if rounds == 1:
                print(json.dumps({p: costs[p]}), flush=True)
    if rounds > 1:
        print(json.dumps(costs), flush=True)


def main() -> None:
    """Search the workloads named and store their best."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--trials", type=int, default=96)
    parser.add_argument("--with", dest="before", default="", help="command put before that of the process that measures")
    parser.add_argument("--measure", nargs="+", metavar="LIBRARY", help="only measure these (what the search itself calls)")
    parser.add_argument("--rounds", type=int, default=1)
    args = parser.parse_args()
    os.environ["TVM_NUM_THREADS"] = str(THREADS)  # before TVM is imported
    if args.measure:
        measure(args.names[0], args.measure, args.rounds)
        return
    before = shlex.split(args.before)
    for name in args.names or WORKLOADS:
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as kept:
            found = search(name, args.trials, before, Path(kept))
            if not found:
                raise SystemExit(f"{name}: none of {args.trials} trials ran")
            again = measured(name, [p for _, p in found[:TOP]], ROUNDS, before)
        stored = json.loads(STORED.read_text()) if STORED.exists() else {}
        if stored.get("machine") != machine():
            stored = {"best_ms": {}, "made": {}, "machine": machine()}
        stored["best_ms"][name] = round(1e3 * min(statistics.median(c) for c in again.values()), 4)
        when = datetime.now(timezone.utc).date().isoformat()
        how = f"python -m benchmarks.metaschedule {name} --trials {args.trials}"
        stored["made"][name] = {"by": how, "trials": len(found), "seconds": round(time.monotonic() - start), "date": when}
        STORED.write_text(json.dumps(stored, indent=1) + "\n")
        print(name, stored["best_ms"][name], stored["made"][name], flush=True)


if __name__ == "__main__":
    main()
