"""Attention as one kernel against its parts (two batched products and a softmax) and PyTorch, forward and with gradients.

    python -m benchmarks.attention --json [--quick]

A shape is [batch, heads, queries, keys, width, causal]. ``grad`` is forward and backward together, on one thread pool each.
Rates are milliseconds; the summary has geometric means and the worst of the ratios over shapes and directions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.common import Arena, Contestant, arguments, emit, machine
from tilegrad.runtime.arrays import aligned

SHAPES = {
    "bert_mini": [8, 4, 128, 128, 64, False],
    "gpt_nano": [8, 6, 128, 128, 32, True],
    "minilm": [8, 12, 64, 64, 32, False],
    "long": [1, 8, 1024, 1024, 64, True],
    "vit": [4, 6, 197, 197, 64, False],
    "odd": [2, 3, 127, 61, 40, False],
    "short": [16, 4, 7, 17, 32, False],
    "one_query": [8, 8, 1, 512, 64, False],
}
QUICK = ("bert_mini", "gpt_nano", "short")
DIRECTIONS = ("forward", "grad")


def arrays(name: str) -> list[np.ndarray]:
    """q, k, v and the result's cotangent."""
    b, h, m, n, d, _ = SHAPES[name]
    rng = np.random.default_rng(0)
    return [aligned(rng.standard_normal((b, h, x, d), dtype=np.float32)) for x in (m, n, n, m)]


def ours(name: str, direction: str, threads: int, composed: bool = False) -> Callable[[], Any]:
    """A compiled library's entry; ``composed`` from matmul, softmax, matmul."""
    from tilegrad._base.tvm import relax
    from tilegrad.relax_ext.driver import build_graphs
    from tilegrad.relax_ext.gradient import vjp
    from tilegrad.relax_ext.graph import GraphBuilder
    from tilegrad.relax_ext.vjp.attention import attend
    from tilegrad.relax_ext.vjp.values import F, Tape

    given = arrays(name)
    m, n, d, causal = SHAPES[name][2:]
    builder = GraphBuilder()
    ports = [builder.input(x, a.shape, "float32") for x, a in zip("qkvg", given, strict=True)]
    tape = Tape(builder)
    q, k, v, _ = (tape.value(p) for p in ports)
    if composed:
        scores = F.matmul(q, k.mT) * (1 / math.sqrt(d))
        if causal:
            seen = tape.value(relax.const(np.tril(np.ones((m, n), bool))))
            scores = F.where(seen, scores, -math.inf)
        out = F.matmul(F.softmax(scores, -1), v)
    else:
        out = attend(q, k, v, diagonal=0 if causal else None)[0]
    tape.flush([out.expr])
    builder.output("out", out.expr)
    if direction == "grad":
        for x, g in zip("qkv", vjp(builder, [out.expr], ports[3:], ports[:3]), strict=True):
            builder.output(f"d{x}", g)
    build = build_graphs({"main": builder.finish()}, num_threads=threads, logs=[])
    return build.library.context(threads).prepare("main", dict(zip("qkvg", given, strict=True)))


def pytorch(name: str, direction: str, threads: int) -> Callable[[], Any]:
    """PyTorch's scaled_dot_product_attention."""
    import torch

    torch.set_num_threads(threads)
    q, k, v, g = map(torch.from_numpy, arrays(name))
    causal = SHAPES[name][-1]
    attention = torch.nn.functional.scaled_dot_product_attention
    if direction == "forward":
        return torch.no_grad()(lambda: attention(q, k, v, is_causal=causal))
    for x in (q, k, v):
        x.requires_grad_()
    return lambda: torch.autograd.grad(attention(q, k, v, is_causal=causal), (q, k, v), g)


def main() -> None:
    """Print a row for every shape and direction, and the summary."""
    args = arguments(str(__doc__), shape={"nargs": "*", "choices": list(SHAPES), "help": "only these"})
    ratios: dict[str, list[float]] = {"torch": [], "composed": []}
    for name in args.shape or (QUICK if args.quick else SHAPES):
        for direction in DIRECTIONS:
            common = {"name": name, "direction": direction, "threads": args.threads}
            contestants = [
                Contestant("ours", "benchmarks.attention:ours", common),
                Contestant("composed", "benchmarks.attention:ours", {**common, "composed": True}),
                Contestant("torch", "benchmarks.attention:pytorch", common),
            ]
            with Arena(contestants, args.threads) as arena:
                result = arena.race(rounds=3 if args.quick else 5, turn_s=0.1 if args.quick else 0.3)
                missing = arena.missing
            row: dict[str, Any] = {"shape": name, "direction": direction, "ms": result.ms, "missing": missing}
            for peer in (p for p in ratios if p in result.ms):
                row[f"vs_{peer}"] = result.ratio("ours", peer)
                ratios[peer].append(row[f"vs_{peer}"])
            emit(row, args.json)
    summary: dict[str, Any] = {}
    for peer, found in ratios.items():
        summary[f"geomean_vs_{peer}"] = round(math.exp(sum(map(math.log, found)) / len(found)), 3) if found else None
        summary[f"worst_vs_{peer}"] = min(found, default=None)
    emit({"summary": {**summary, "machine": machine()}}, args.json)


if __name__ == "__main__":
    main()
