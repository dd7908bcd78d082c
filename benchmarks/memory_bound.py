"""Everything that is not a contraction: norms, softmax, losses, movement, pooling, dropout, the optimizer's update.

    python -m benchmarks.memory_bound --json [--quick] [--rows softmax_1024x1024,adam]

Against PyTorch at equal threads, each in its own process, and against a copy of 256 MB measured here. ``gb_s`` is the
compulsory traffic (inputs once, outputs once) over our time; ``bandwidth_fraction`` that over the copy's. Small rows stay in
the last-level cache between calls for both, so that their fraction may exceed 1.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.common import Arena, Contestant, arguments, emit, machine
from benchmarks.memory_bound_rows import QUICK, ROWS, arrays, graph


def ours(row: str, threads: int) -> Callable[[], Any]:
    """The row's kernels, compiled without a log."""
    from tilegrad.relax_ext.driver import build_graphs

    build = build_graphs({"f": graph(ROWS[row])}, logs=[], num_threads=threads)
    return build.library.context(threads).prepare("f", arrays(ROWS[row]))


def pytorch(row: str, threads: int) -> Callable[[], Any]:
    """PyTorch's own call."""
    import torch

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    tensors = {k: torch.from_numpy(v) for k, v in arrays(ROWS[row]).items()}

    class Inputs:
        def __getattr__(self, name: str) -> Any:
            return tensors[name]

    return ROWS[row].torch(torch, Inputs())


def copy(threads: int) -> Callable[[], Any]:
    """A copy of 128 MB to 128 MB, divided among threads."""
    from concurrent.futures import ThreadPoolExecutor

    source = np.ones(1 << 25, np.float32)
    target = np.zeros_like(source)
    pool = ThreadPoolExecutor(threads)
    ends = np.linspace(0, len(source), threads + 1).astype(int)
    spans = [slice(a, b) for a, b in zip(ends[:-1], ends[1:], strict=True)]

    def run() -> None:
        list(pool.map(lambda s: np.copyto(target[s], source[s]), spans))

    return run


def compulsory_bytes(row: str) -> int:
    """Inputs once and outputs once."""
    main = graph(ROWS[row]).main
    sizes = [a.nbytes for a in arrays(ROWS[row]).values()]
    for ty in main.ret_ty.fields:
        sizes.append(4 * math.prod(int(d) for d in ty.shape))
    return sum(sizes)


def main() -> None:
    """Print the rows and the summary."""
    args = arguments(__doc__ or "", rows={"default": None, "help": "comma-separated names; default all"})
    names = args.rows.split(",") if args.rows else list(QUICK if args.quick else ROWS)
    turn, rounds = (0.1, 5) if args.quick else (0.2, 5)
    with Arena([Contestant("copy", "benchmarks.memory_bound:copy", {"threads": args.threads})], args.threads) as arena:
        bandwidth = 2**28 / arena.race(rounds, turn).ms["copy"] / 1e6
    ratios: dict[str, float] = {}
    fractions: list[float] = []
    for name in names:
        options = {"row": name, "threads": args.threads}
        contestants = [Contestant(n, f"benchmarks.memory_bound:{n}", options) for n in ("ours", "pytorch")]
        with Arena(contestants, args.threads) as arena:
            result, missing = arena.race(rounds, turn), arena.missing
        rate = compulsory_bytes(name) / result.ms["ours"] / 1e6
        row = {"row": name, "ours_ms": result.ms["ours"], "gb_s": round(rate, 2), "spread": result.spread("ours")}
        if "pytorch" in result.ms:
            ratios[name] = result.ratio("ours", "pytorch")
            row |= {"torch_ms": result.ms["pytorch"], "ours_vs_torch": ratios[name]}
        row |= {"missing": missing} if missing else {}
        if ROWS[name].limited:
            fractions.append(rate / bandwidth)
            row["bandwidth_fraction"] = round(rate / bandwidth, 3)
        emit(row, args.json)
    summary: dict[str, Any] = {"copy_gb_s": round(bandwidth, 2), "threads": args.threads, **machine()}
    if ratios:
        summary["geomean_vs_torch"] = round(math.exp(statistics.fmean(map(math.log, ratios.values()))), 3)
        summary["worst_vs_torch"] = min(ratios.values())
        summary["worst_row"] = min(ratios, key=lambda k: ratios[k])
    if fractions:
        summary["bandwidth_fraction"] = round(statistics.median(fractions), 3)
    emit({"summary": summary}, args.json)


if __name__ == "__main__":
    main()
