"""Matrix products against NumPy's OpenBLAS and PyTorch's MKL, each operand stored plain (N) or transposed (T).

    python -m benchmarks.gemm --json [--quick] [--log my.jsonl] [--tune 20] [--group squares ...] [--part 1/4]

``ours`` takes configs from ``--log`` (default: your log, then the shipped ones), ``untuned`` the analytic default. ``--tune``
tunes every product for so many seconds first. All rows take about eight minutes; ``--group`` and ``--part`` cut them. Packing
of both operands is inside the timed call, outputs are reused by all. ``peak_fraction_*`` compare with the machine's
multiply-add peak, measured by a register-only loop of our own in the same run, on as many threads. Rates are GFLOP/s.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import Arena, Contestant, arguments, emit, machine
from tilegrad.runtime.arrays import aligned, empty

SHAPES: dict[str, list[list[int]]] = json.loads(Path(__file__).with_name("shapes.json").read_text())["gemm"]
LAYOUTS = ("NN", "NT", "TN")
QUICK = [[256, 256, 256, "NN"], [960, 960, 960, "NN"], [1024, 1024, 1024, "NN"], [8, 4096, 1024, "NT"], [127, 255, 511, "NN"],
         [49, 512, 4608, "NN"], [128, 512, 784, "NT"], [512, 512, 128, "TN"], [64, 10, 512, "NT"]]  # fmt: skip
PEAK_FLOPS_A_CALL = 2 * 64 * 1_000_000


def operands(m: int, n: int, k: int, layout: str) -> tuple[np.ndarray, np.ndarray]:
    """float32 arrays as they lie in memory, at cache lines for every contestant."""
    rng = np.random.default_rng(0)
    a = rng.standard_normal((m, k) if layout[0] == "N" else (k, m), dtype=np.float32)
    b = rng.standard_normal((k, n) if layout[1] == "N" else (n, k), dtype=np.float32)
    return aligned(a), aligned(b)


def numpy_matmul() -> Callable[..., Callable[[], Any]]:
    """NumPy."""
    return _numpy_matmul


def _numpy_matmul(m: int, n: int, k: int, layout: str) -> Callable[[], Any]:
    a, b = operands(m, n, k, layout)
    x, y, out = a if layout[0] == "N" else a.T, b if layout[1] == "N" else b.T, empty((m, n), np.dtype(np.float32))
    return lambda: np.matmul(x, y, out=out)


def torch_matmul(threads: int) -> Callable[..., Callable[[], Any]]:
    """PyTorch."""
    import torch

    torch.set_num_threads(threads)

    def product(m: int, n: int, k: int, layout: str) -> Callable[[], Any]:
        a, b = map(torch.from_numpy, operands(m, n, k, layout))
        x, y, out = a if layout[0] == "N" else a.T, b if layout[1] == "N" else b.T, torch.empty(m, n)
        return lambda: torch.matmul(x, y, out=out)

    return product


def product_kernel(m: int, n: int, k: int, layout: str) -> Any:
    """The unscheduled kernel."""
    from tilegrad.schedules import template_named
    from tilegrad.schedules.template import Workload

    fields = {"batch": 1, "m": m, "n": n, "k": k, "layout": layout, "dtypes": ["f32"] * 3, "epilogue": ""}
    template = template_named("contraction/1")
    assert template is not None
    return template.define(Workload("matmul", fields))


def ours(threads: int, logs: list[str] | None) -> Callable[..., Callable[[], Any]]:
    """Our kernels, each called as a compiled program calls it."""
    return partial(_ours, threads=threads, logs=logs)


def _ours(m: int, n: int, k: int, layout: str, threads: int, logs: list[str] | None) -> Callable[[], Any]:
    from tilegrad import runtime, tuning_logs
    from tilegrad._base.target import Target
    from tilegrad.runtime.program import Buffer, Call, Program
    from tilegrad.schedules import schedule, task_of

    target = Target.native(threads)
    func = product_kernel(m, n, k, layout)
    template, workload = task_of(func)
    hit = tuning_logs.Records.load(logs).choose(template, workload, target)
    a, b = operands(m, n, k, layout)
    names = ("a", "b", "c")
    shapes = {"a": a.shape, "b": b.shape, "c": (m, n)}
    buffers = {x: Buffer(x, shapes[x], "float32", "output" if x == "c" else "input") for x in names}
    program = Program("main", names, buffers, (Call("kernel", names),), {"kernel": func})
    library = runtime.build({"main": program}, {"kernel": schedule(func, target, hit.config)}, target)
    return library.context(threads).prepare("main", {"a": a, "b": b, "c": empty((m, n), np.dtype(np.float32))})


def tune(shape: Sequence[Any], threads: int, budget_s: float, log: str) -> None:
    """Search for a config of one product."""
    from tilegrad import tuner
    from tilegrad._base.target import Target
    from tilegrad.schedules import task_of

    func = product_kernel(*shape)
    template, workload = task_of(func)
    tuner.tune([tuner.Task(template, workload, func, Target.native(threads))], budget_s=budget_s, log=log)


def peak(threads: int) -> Callable[[], Any]:
    """Independent multiply-adds in registers only, ``PEAK_FLOPS_A_CALL`` a thread and call for float32 vectors of any width."""
    from tilegrad import runtime
    from tilegrad._base.target import Target
    from tilegrad._base.tvm import tirx
    from tilegrad.runtime.program import Buffer, Call, Program
    from tilegrad.schedules.template import Scheduled

    target = Target.native(threads)
    lanes, chains = target.vector_bytes // 4, 12
    steps = PEAK_FLOPS_A_CALL // (2 * lanes * chains)
    out = tirx.decl_buffer((threads * chains * lanes,), "float32", "out", data_alignment=4)
    zero = tirx.const(0, "int32")
    ramp = tirx.Ramp(zero, tirx.const(1, "int32"), lanes)
    acc = [tirx.decl_buffer((lanes,), "float32", f"acc{i}") for i in range(chains)]
    t, s = tirx.Var("t", "int32"), tirx.Var("s", "int32")
    x = tirx.Broadcast(tirx.const(0.999, "float32"), lanes)

    def at(i: int) -> Any:
        return tirx.Ramp((t * chains + i) * lanes, tirx.const(1, "int32"), lanes)

    start = [tirx.BufferStore(acc[i], tirx.BufferLoad(out, [at(i)]), [ramp]) for i in range(chains)]
    step = [tirx.BufferStore(c, tirx.BufferLoad(c, [ramp]) * x + x, [ramp]) for c in acc]
    end = [tirx.BufferStore(out, tirx.BufferLoad(acc[i], [ramp]), [at(i)]) for i in range(chains)]
    loop = tirx.For(s, zero, tirx.const(steps, "int32"), tirx.ForKind.SERIAL, tirx.SeqStmt(step))
    body = tirx.SeqStmt([*(tirx.AllocBuffer(c) for c in acc), *start, loop, *end])
    func = tirx.PrimFunc([out], tirx.For(t, zero, tirx.const(threads, "int32"), tirx.ForKind.PARALLEL, body))
    func = func.with_attr({"tirx.is_scheduled": True, "tirx.noalias": True, "s_tir": True})
    buffer = Buffer("out", (threads * chains * lanes,), "float32", "output")
    program = Program("main", ("out",), {"out": buffer}, (Call("peak", ("out",)),), {"peak": func})
    library = runtime.build({"main": program}, {"peak": Scheduled(func)}, target)
    return library.context(threads).prepare("main", {"out": np.zeros(buffer.shape, np.float32)})


def peaks(threads: int) -> Callable[..., Callable[[], Any]]:
    """``peak`` whatever the product is."""
    return lambda **_: peak(threads)


def geomean(values: Sequence[float]) -> float | None:
    """The geometric mean; None of nothing."""
    return round(math.exp(sum(map(math.log, values)) / len(values)), 3) if values else None


def race(arena: Arena, shape: Sequence[Any], turn_s: float) -> dict[str, Any]:
    """One row: all contestants on one product."""
    m, n, k, layout = shape
    case = {"m": m, "n": n, "k": k, "layout": layout}
    result = arena.race(rounds=3, turn_s=turn_s, unit=case)
    best = result.best(["numpy", "torch"])
    rates = {name: round(2e-6 * m * n * k / ms, 2) if ms else None for name, ms in result.ms.items()}
    return {
        **case,
        "gflops": rates,
        "spread": {name: result.spread(name) for name in result.ms},
        "best_peer": best,
        "ratio_vs_best": result.ratio("ours", best) if best else None,
        "untuned_ratio_vs_best": result.ratio("untuned", best) if best else None,
        "untuned_vs_tuned": result.ratio("untuned", "ours"),
    }


def fractions(threads: int, logs: list[str] | None, turn_s: float) -> dict[str, Any]:
    """Our 1024 x 1024 x 1024 on all threads, and a cache-resident product on one, as fractions of the measured peak."""
    square = {"m": 1024, "n": 1024, "k": 1024, "layout": "NN"}
    small = {"m": 96, "n": 192, "k": 256, "layout": "NN"}
    own = {f"x{t}": Contestant("ours", "benchmarks.gemm:ours", {"threads": t, "logs": logs}, many=True) for t in (threads, 1)}
    ms: dict[str, float] = {}
    for t, shape, name in ((threads, square, "square"), (1, small, "small_1")):
        limit = Contestant("peak", "benchmarks.gemm:peaks", {"threads": t}, many=True)
        with Arena([own[f"x{t}"], limit], t) as arena:
            found = arena.race(rounds=5, turn_s=turn_s, unit=shape).ms
        ms |= {name: found["ours"], "peak" if name == "square" else "peak_1": found["peak"]}
    peaks = {name: 1e-6 * PEAK_FLOPS_A_CALL * t / ms[name] for name, t in (("peak", threads), ("peak_1", 1))}
    return {
        "peak_gflops": round(peaks["peak"], 1),
        "peak_fraction_1024": round(2e-6 * 1024**3 / ms["square"] / peaks["peak"], 3),
        "peak_fraction_prepacked": round(2e-6 * 96 * 192 * 256 / ms["small_1"] / peaks["peak_1"], 3),
    }


def main() -> None:
    """Print a row a product and the summary."""
    options: dict[str, dict[str, Any]] = {
        "log": {"action": "append", "help": "tuning log for `ours`; may repeat"},
        "tune": {"type": float, "default": 0.0, "help": "seconds of tuning for every product"},
        "part": {"default": "1/1", "help": "I/N: only every N-th row, from the I-th"},
        "group": {"action": "append", "choices": sorted(SHAPES), "help": "only these groups of shapes; may repeat"},
    }
    args = arguments(str(__doc__), **options)
    turn_s = 0.1 if args.quick else 0.2
    groups = args.group or list(SHAPES)
    cases = [[*s, layout] for g in groups for s in SHAPES[g] for layout in LAYOUTS]
    at, parts = map(int, args.part.split("/"))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        logs = [*(args.log or []), f"{folder}/tuned.jsonl"] if args.tune else args.log
        if args.tune:
            Path(folder, "tuned.jsonl").touch()
        contestants = [
            Contestant("ours", "benchmarks.gemm:ours", {"threads": args.threads, "logs": logs}, many=True),
            Contestant("untuned", "benchmarks.gemm:ours", {"threads": args.threads, "logs": []}, many=True),
            Contestant("numpy", "benchmarks.gemm:numpy_matmul", many=True),
            Contestant("torch", "benchmarks.gemm:torch_matmul", {"threads": args.threads}, many=True),
        ]
        with Arena(contestants, args.threads) as arena:
            for case in (QUICK if args.quick and not args.group else cases)[at - 1 :: parts]:
                if args.tune:
                    tune(case, args.threads, args.tune, logs[-1])
                rows.append({**race(arena, case, turn_s), "missing": arena.missing})
                emit(rows[-1], args.json)
        fraction = fractions(args.threads, logs, turn_s)
    ratios = [r["ratio_vs_best"] for r in rows if r["ratio_vs_best"]]
    untuned = [r["untuned_ratio_vs_best"] for r in rows if r["untuned_ratio_vs_best"]]
    summary = {
        "geomean_vs_best": geomean(ratios),
        "worst_vs_best": min(ratios, default=None),
        "untuned_geomean_vs_best": geomean(untuned),
        "untuned_worst_vs_best": min(untuned, default=None),
        "untuned_vs_tuned": geomean([r["untuned_vs_tuned"] for r in rows]),
        **fraction,
        "threads": args.threads,
        "machine": machine(),
    }
    emit({"summary": summary}, args.json)


if __name__ == "__main__":
    main()
