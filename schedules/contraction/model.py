"""Which configs are legal, what each should cost, and which one to take without measuring.

The model counts cycles of one core for the busiest thread, in the manner of BLIS: the micro-kernel against its loads,
packing, the traffic of sums between K blocks, and the last level that each operand streams from. It is a prior for the
tuner and the whole of the untuned choice, so one mechanism: ``default`` is the cheapest of ``space`` by ``estimate``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from tilegrad._base.target import Target
from tilegrad.schedules.contraction.plan import Plan, Size, ceildiv, element_bytes, registers
from tilegrad.schedules.template import Config, Workload

CYCLES_PER_SECOND = 2.5e9
LATENCY = 5
"""Cycles of a multiply-add: fewer accumulators than this leave the unit idle."""
TILE_OVERHEAD = 40
"""Cycles to enter and leave a micro-kernel, whatever its size."""
LAUNCH = 12_000
"""Cycles to wake the threads and to wait for them."""
PACK = {"N": 0.45, "T": 1.1, "S": 2.5, "X": 2.5, "P": 1.2, "G": 1.0}
"""Cycles to pack one element of B, by its layout (float32)."""
PACK_A = {"N": 1.6, "T": 1.2, "S": 2.0, "X": 2.5, "P": 2.5, "G": 3.0}


def size_of(fields: Mapping[str, Any]) -> Size:
    """The extents that a workload's fields name."""
    batch, m, segments, n, k = (int(fields.get(x, 1)) for x in ("batch", "m", "segments", "n", "k"))
    return Size(batch, m, segments, n // segments, k, accumulator(fields["dtypes"][0]))


def accumulator(short: str) -> str:
    """The accumulator's type for operands of a short name such as f32, bf16, i8."""
    return {"f64": "float64"}.get(short, "float32" if "f" in short else "int64" if short == "i64" else "int32")


def direct(fields: Mapping[str, Any], plan: Plan) -> tuple[bool, bool]:
    """Whether the micro-kernel may read A and B in place."""
    a, b = fields["layout"][0], fields["layout"][1]
    return a in "NTS", b == "N" and not plan.tail


def space(workload: Workload, target: Target) -> list[Config]:
    """All legal configs, in a stable order: micro-tiles by the register file, blocks by the caches, splits by the threads."""
    return [dict(c) for c in _space(workload.key, target)]


@lru_cache(maxsize=256)
def _space(key: str, target: Target) -> tuple[Config, ...]:
    fields = json.loads(key)
    size = size_of(fields)
    lanes = max(1, target.vector_bytes // element_bytes(size.acc))
    out: dict[str, Config] = {}
    for mr, vectors in _tiles(target, size, lanes):
        for kc in _distinct((128, 192, 256, 384, 512, 1024), size.k):
            for nc in _distinct((128, 256, 512, 2048), max(lanes, size.segments * ceildiv(size.n, lanes) * lanes)):
                for mc in _distinct((96, 192, 768), size.m):
                    for split in _splits(size, target, mr, vectors * lanes, kc):
                        base: Config = {"mr": mr, "nr": vectors * lanes, "kc": kc, "nc": nc, "mc": mc, "split": list(split)}
                        plan = Plan(size, base, target)
                        can_a, can_b = direct(fields, plan)
                        seen = (plan.mr, plan.nr, plan.kc, plan.nc, plan.mc, plan.splits)
                        for pa in (False, True) if can_a and size.m > 1 else (not can_a,):
                            for pb in (False, True) if can_b else (True,):
                                out.setdefault(f"{seen}{pa}{pb}", {**base, "pack_a": pa, "pack_b": pb})
    return tuple(out.values())


def _tiles(target: Target, size: Size, lanes: int) -> list[tuple[int, int]]:
    """(rows, vectors) of micro-kernels that fit the registers and use them well."""
    have = target.vector_registers
    best = {16: [(6, 2), (4, 2), (3, 3), (10, 1)], 32: [(14, 2), (12, 2), (8, 3), (9, 3), (6, 4)]}[have]
    wide = max(1, have - 6)
    out = []
    total = size.segments * ceildiv(size.n, lanes)
    for mr, vectors in best:
        mr, vectors = min(mr, size.m), min(vectors, total)
        if mr < best[0][0] and size.m < best[0][0]:  # few rows: spend the registers on columns
            vectors = min(total, max(vectors, (wide - 1) // (mr + 1)))
        if (mr, vectors) not in out and registers(mr, vectors) <= have:
            out.append((mr, vectors))
    return out


def _distinct(blocks: tuple[int, ...], limit: int) -> list[int]:
    """Block sizes up to ``limit``, which is one of them."""
    return [*(b for b in blocks if b < limit), *([limit] if limit <= 2 * blocks[-1] or len(blocks) > 4 else [])]


def _splits(size: Size, target: Target, mr: int, nr: int, kc: int) -> list[tuple[int, int, int]]:
    """Ways to cut M, N and K that give every thread work."""
    threads = target.threads
    if size.batch % threads == 0 or size.batch >= 4 * threads:
        return [(1, 1, 1)]
    tiles, panels, blocks = ceildiv(size.m, mr), ceildiv(size.segments * size.n, nr), ceildiv(size.k, kc)
    out = []
    for tm in _divisors(threads):
        for tn in _divisors(threads // tm):
            tk = threads // tm // tn
            if tm <= tiles and tn <= panels and tk <= blocks:
                out.append((tm, tn, tk))
    return out or [(min(threads, tiles), 1, 1), (1, min(threads, panels), 1)]


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def estimate(workload: Workload, config: Config, target: Target) -> float:
    """Seconds by the analytic model."""
    return sum(_cycles(workload, config, target).values()) / CYCLES_PER_SECOND


def _cycles(workload: Workload, config: Config, target: Target) -> dict[str, float]:
    """Cycles of the busiest thread, by cause."""
    size = size_of(workload.fields)
    p = Plan(size, config, target)
    layout, elem = workload.fields["layout"], element_bytes(size.acc)
    per_thread = ceildiv(p.units, target.threads)
    tiles, panels = p.unit_tiles, p.unit_panels
    k_unit = min(size.k, p.kc * p.unit_k_blocks)
    rows = size.m / p.tiles
    columns = p.total_vectors / p.panels
    # the micro-kernel: multiply-adds against loads, and against their own latency
    fma = max(rows * columns, float(LATENCY))
    loads = columns + rows * 0.6
    panel_bytes, a_bytes = p.kc * p.nr * elem, p.mc * p.mr * p.kc * elem
    b_miss = 0.0 if panel_bytes <= 0.75 * target.l1_bytes else 0.12 * columns * elem / 4
    if not config["pack_b"]:
        row = size.n * elem
        conflict = row % 4096 == 0 or (row % 2048 == 0 and p.kc > 64)
        reuse = 1.0 if conflict else max(1.0, 0.25 * tiles)
        b_miss = max(b_miss, (3.0 if conflict else 0.8 if row > 2048 else 0.2) * columns / reuse)
    a_miss = 0.15 if a_bytes <= 0.6 * target.l2_bytes else 0.6
    if not config["pack_a"]:
        step = size.k * elem if layout[0] == "N" else size.m * elem
        a_miss += 0.1 if layout[0] == "N" else 1.5 if step > 1024 else 0.3
        a_miss += 0.5 if layout[0] == "N" and step % 4096 == 0 else 0.0
    micro = (max(fma, loads) + b_miss + a_miss) * k_unit * tiles * panels
    overhead = (TILE_OVERHEAD + rows * columns * 3.0) * tiles * panels
    if p.k_blocks > 1:
        overhead += rows * columns * 3.0 * (p.unit_k_blocks - 1) * tiles * panels * 2
    # packing
    n_unit = panels * p.nr
    repeat = 1
    pack_b = PACK[layout[1]] * elem / 4 * k_unit * n_unit * repeat if config["pack_b"] else 0.0
    pack_a = 0.0
    if config["pack_a"]:
        pack_a = PACK_A[layout[0]] * elem / 4 * size.batch * size.m * size.k / target.threads + LAUNCH
    # A is read again for every N block, from wherever it fits
    a_total = size.m * k_unit * elem
    again = ceildiv(panels, p.nc) * a_total / (16 if a_total <= target.l3_bytes / 2 else 4)
    epilogue = len([e for e in workload.fields["epilogue"].split(",") if e]) * 0.6 * tiles * rows * n_unit * elem / 4 / 4
    reduce = 0.0
    if p.splits[2] > 1:
        reduce = LAUNCH + size.batch * size.m * size.segments * size.n * elem / 4 * (p.splits[2] + 1) * 0.6 / target.threads
    return {
        "micro": micro * per_thread,
        "overhead": overhead * per_thread,
        "pack_b": pack_b * per_thread,
        "pack_a": pack_a,
        "stream_a": again * per_thread,
        "epilogue": epilogue * per_thread,
        "reduce": reduce,
        "launch": float(LAUNCH if p.threads > 1 else 0),
    }


@lru_cache(maxsize=1024)
def _default(key: str, target: Target) -> Config:
    fields = json.loads(key)
    workload = Workload(fields.pop("op"), fields)
    return min(_space(key, target), key=lambda c: estimate(workload, c, target))


def default(workload: Workload, target: Target) -> Config:
    """The cheapest legal config by the model."""
    return dict(_default(workload.key, target))


def features(workload: Workload, config: Config, target: Target) -> np.ndarray:
    """Sizes, blocks and the model's terms, in logarithms: float32, one width for every contraction."""
    size = size_of(workload.fields)
    p = Plan(size, config, target)
    elem = element_bytes(size.acc)
    cycles = _cycles(workload, config, target)
    amounts = [
        size.batch, size.m, size.segments, size.n, size.k, p.mr, p.vectors, p.kc, p.nc, p.mc, *p.splits, p.units,
        p.tiles, p.panels, p.k_blocks,
        p.kc * p.nr * elem, p.mc * p.mr * p.kc * elem, p.kc * p.nc * p.nr * elem, size.n * elem, size.k * elem,
        *cycles.values(), sum(cycles.values()), workload.flops, workload.bytes,
    ]  # fmt: skip
    ratios = [
        size.m / (p.tiles * p.mr), size.n / (p.segment_vectors * p.lanes), p.total_vectors / (p.panels * p.vectors),
        p.units / (ceildiv(p.units, target.threads) * target.threads), size.k / (p.kc * p.k_blocks),
        float(config["pack_a"]), float(config["pack_b"]),
        *(float(workload.fields["layout"][i] == x) for i in (0, 1) for x in "NTGP"),
        float(size.n * elem % 4096 == 0), float(size.k * elem % 4096 == 0), float(target.threads),
    ]  # fmt: skip
    return np.array([math.log2(1 + max(0.0, float(a))) for a in amounts] + ratios, dtype=np.float32)
