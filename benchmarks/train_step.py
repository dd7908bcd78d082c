"""A whole training step (forward, backward, optimizer) against PyTorch and JAX, and its loss curve against PyTorch's.

    python -m benchmarks.train_step --model lenet --json [--quick] [--log my.jsonl] [--via torch.compile]

Models, batches and optimizers: ``benchmarks/models/tasks.py``; float32, cross entropy. All contestants start from the same
weights and train on the same batch. ``ours`` uses ``--log`` (default: your log, then the shipped ones), ``untuned`` no log. Both
are compiled and exported first, in a process of their own, and then run as they would be deployed: loaded without TVM.
``--via torch.compile`` adds ``via``: PyTorch's own model through ``torch.compile(backend="tilegrad")``.

``curve_max_rel_diff`` compares 20 losses of ours with PyTorch's (largest relative difference). Rounding differences grow where
training is chaotic: where the curves differ by more than roundings of the loss, ``curve_error`` compares both with PyTorch's
curve in float64, and ``curve_as_good`` asks that ours is no further from it than ``CURVE_FACTOR`` times PyTorch's own.
``compile_s`` is our compile time from an empty cache.
``peak_mb`` is the peak resident memory of the process that trains, ``compile_peak_mb`` of the one that compiled.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, Arena, Contestant, arguments, emit, machine, peak_mb
from benchmarks.models.tasks import TASKS, save_weights

WEIGHTS = "initial.safetensors"
CURVE = 20
"""Steps of a loss curve."""
CURVE_FACTOR = 3.0
"""Two runs in float32 that differ in the order of their sums alone end this far apart at times."""
CURVE_NOISE = 1e-6
"""Errors below are a few roundings of the loss itself."""


def prepare(model: str, folder: str, threads: int, logs: list[str] | None) -> dict[str, Any]:
    """Compile and export our step to ``folder`` and write its initial weights beside. Runs in its own process."""
    import tilegrad as tg
    from benchmarks.models import ours as own
    from tilegrad.relax_ext import report

    tg.manual_seed(0)
    net = own.net_of(model)
    weights = net.state_dict()
    start = time.perf_counter()
    step = own.compiled_step(model, net, logs, threads)
    seconds = time.perf_counter() - start
    step.export(folder)
    save_weights(Path(folder).parent / WEIGHTS, weights)
    program = step.programs["step"]
    memory = report.memory(program)
    return {
        "compile_s": round(seconds, 2),
        "compile_peak_mb": peak_mb(),
        "calls": len(program.calls),
        "kernels": len(program.kernels),
        "temporaries_mb": round(memory.arena_bytes / 2**20, 2),
        "memory_vs_bound": round(memory.overhead, 3),
        "memory_peak": f"call {memory.peak_call} of {len(program.calls)}, {memory.peak_kernel}",
    }


def ours(model: str, folder: str) -> Callable[[], float]:
    """The exported step, loaded."""
    import tilegrad as tg

    step = tg.load(folder)
    x, y = TASKS[model].batch()
    return lambda: float(step(x, y))


def pytorch(model: str, weights: str, threads: int, backend: str | None = None, dtype: str = "float32") -> Callable[[], float]:
    """PyTorch, eager or through torch.compile with the named backend."""
    from benchmarks.models.pytorch import training

    return training(model, Path(weights), threads, backend, dtype)


def jitted_jax(model: str, weights: str) -> Callable[[], float]:
    """JAX, one jitted step."""
    from benchmarks.models.jaxnets import training

    return training(model, Path(weights))


def losses(function: str, kwargs: dict[str, Any]) -> list[float]:
    """The first losses of a contestant."""
    step = globals()[function](**kwargs)
    return [step() for _ in range(CURVE)]


def _apart(function: str, *args: Any, **env: str) -> Any:
    """What a function of this module returns, run in a process of its own."""
    code = (
        "import json, sys; from benchmarks import train_step\n"
        "print(json.dumps(getattr(train_step, sys.argv[1])(*json.loads(sys.argv[2]))))"
    )
    command = [sys.executable, "-c", code, function, json.dumps(args)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    done = subprocess.run(command, cwd=ROOT, env=env, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def curves(own: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """The columns about loss curves; empty when PyTorch is missing."""
    try:
        import torch  # noqa: F401
    except ImportError:
        return {}
    ours, torchs = _apart("losses", "ours", own), _apart("losses", "pytorch", theirs)
    if (difference := _difference(ours, torchs)) <= CURVE_NOISE:
        return {"curve_max_rel_diff": difference, "curve_as_good": True}
    return compared(ours, torchs, _apart("losses", "pytorch", {**theirs, "dtype": "float64"}))


def compared(ours: Sequence[float], torch: Sequence[float], exact: Sequence[float]) -> dict[str, Any]:
    """Largest relative differences of loss curves, and whether ours is as near to the exact one as PyTorch's."""
    error = {"ours": _difference(ours, exact), "torch": _difference(torch, exact)}
    as_good = error["ours"] <= max(CURVE_FACTOR * error["torch"], CURVE_NOISE)
    return {"curve_max_rel_diff": _difference(ours, torch), "curve_error": error, "curve_as_good": as_good}


def _difference(a: Sequence[float], b: Sequence[float]) -> float:
    return max(abs(x - y) / abs(y) for x, y in zip(a, b, strict=True))


def main() -> None:
    """Print one row and the summary."""
    options: dict[str, dict[str, Any]] = {
        "model": {"choices": sorted(TASKS), "default": "mlp", "help": "which network"},
        "log": {"action": "append", "help": "tuning log for `ours`; may repeat"},
        "via": {"choices": ["torch.compile"], "help": "also PyTorch's model with our backend"},
    }
    args = arguments(str(__doc__), **options)
    n, model = args.threads, args.model
    peers = ["torch", "torch.compile", "jax"][: 1 if args.quick else 3]
    with tempfile.TemporaryDirectory() as tmp:
        compiled = _apart("prepare", model, f"{tmp}/ours", n, args.log, TILEGRAD_CACHE_DIR=f"{tmp}/cache")
        _apart("prepare", model, f"{tmp}/untuned", n, [], TILEGRAD_CACHE_DIR=f"{tmp}/cache")
        given = {"model": model, "weights": f"{tmp}/{WEIGHTS}"}
        in_torch = {**given, "threads": n}
        own = {
            k: Contestant(k, "benchmarks.train_step:ours", {"model": model, "folder": f"{tmp}/{k}"}) for k in ("ours", "untuned")
        }
        theirs = {
            "torch": Contestant("torch", "benchmarks.train_step:pytorch", in_torch),
            "torch.compile": Contestant("torch.compile", "benchmarks.train_step:pytorch", {**in_torch, "backend": "inductor"}),
            "jax": Contestant("jax", "benchmarks.train_step:jitted_jax", given),
        }
        via = [Contestant("via", "benchmarks.train_step:pytorch", {**in_torch, "backend": "tilegrad"})] if args.via else []
        curve = curves(own["ours"].kwargs, in_torch)
        with Arena([*own.values(), *(theirs[p] for p in peers), *via], n) as arena:
            result = arena.race(rounds=5, turn_s=0.1 if args.quick else 0.5)
            missing = arena.missing
    best = result.best(peers)
    row = {
        "model": model,
        "about": TASKS[model].about,
        "optimizer": TASKS[model].optimizer,
        "threads": n,
        "ours_ms": result.ms["ours"],
        "untuned_ms": result.ms["untuned"],
        "peers_ms": {k: v for k, v in result.ms.items() if k in peers},
        "ratio_vs_best": result.ratio("ours", best) if best else None,
        "untuned_ratio_vs_best": result.ratio("untuned", best) if best else None,
        **curve,
        "spread": {k: result.spread(k) for k in result.ms},
        "peak_mb": result.peak_mb["ours"],
        "peers_peak_mb": {k: v for k, v in result.peak_mb.items() if k in peers},
        **compiled,
        "missing": missing,
    }
    if "via" in result.ms:
        row |= {"via_ms": result.ms["via"]}
        if "torch.compile" in result.ms:
            row |= {"via_vs_inductor": result.ratio("via", "torch.compile")}
    emit(row, args.json)
    keys = ("model", "ours_ms", "untuned_ms", "ratio_vs_best", "untuned_ratio_vs_best", *curve, "compile_s")
    emit({"summary": {**{k: row[k] for k in keys}, "best_peer": best, "machine": machine()}}, args.json)


if __name__ == "__main__":
    main()
