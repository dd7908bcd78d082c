"""Which configs are legal, what each should cost, and which one to take without measuring.

Cycles of one core for the busiest thread: the multiply-adds of a tile against its loads, the strip's copies, and the
image's way from the level of memory that holds it. ``default`` is the cheapest of ``space``.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from tilegrad._base.target import Target
from tilegrad.schedules.contraction.model import CYCLES_PER_SECOND, LATENCY, LAUNCH, accumulator, bandwidth
from tilegrad.schedules.contraction.plan import ceildiv, element_bytes
from tilegrad.schedules.template import Config, Workload
from tilegrad.schedules.window.plan import MOST_UNROLLED, Plan, Shape, shape_of

TILE_OVERHEAD = 24
"""Cycles to enter and leave a tile."""
ROW_OVERHEAD = 12
"""Cycles to begin a row of the strip."""
ROOM = 6
"""Registers that a tile must leave for weights, or for the accumulators of taps."""
COPY = 2.5
"""Cycles to copy a vector to the strip."""
PASSES = 0.3
"""How much of the strip's way to the first level is not hidden behind multiply-adds, where it passes again and again."""


def _shape(workload: Workload) -> Shape:
    return shape_of(workload.fields, accumulator(workload.fields["dtypes"][0]))


def space(workload: Workload, target: Target) -> list[Config]:
    """All legal configs, in a stable order: tiles by the registers, bands by the caches and the threads."""
    return [dict(c) for c in _space(workload.key, target)]


@lru_cache(maxsize=256)
def _space(key: str, target: Target) -> tuple[Config, ...]:
    shape = _shape(Workload.parse(key))
    out: dict[tuple[int, ...], Config] = {}
    for rows in (1, 2, 3, 4, 6, 7, 8):
        for vectors in (1, 2, 3, 4):
            for strip_bytes in (target.l1_bytes // 2, target.l2_bytes // 4, target.l2_bytes):
                config: Config = {"rows": rows, "vectors": vectors, "band": 1}
                plan = Plan(shape, config, target)
                row_bytes = plan.pitch * element_bytes(shape.acc) * len(plan.plane_offsets) * shape.rows.stride * shape.channels
                for band in _bands(plan, max(1, strip_bytes // row_bytes // plan.most_rows)):
                    plan = Plan(shape, {**config, "band": min(band, plan.tiles)}, target)
                    if plan.most_rows * plan.vectors == 1 or (
                        plan.unrolled <= MOST_UNROLLED and _registers(plan) <= target.vector_registers
                    ):
                        out.setdefault((plan.most_rows, plan.vectors, plan.band), {**plan.config, "rows": plan.most_rows})
    return tuple(out.values())


def _bands(plan: Plan, band: int) -> tuple[int, ...]:
    """``band`` tiles, or so few that every thread has a band; where there are many results threads may share those instead."""
    if plan.shape.form == "correlate":
        return (band,)
    shared = min(band, max(1, ceildiv(plan.tiles, ceildiv(plan.target.threads, plan.shape.outer))))
    return (shared,) if plan.shape.channels == 1 else (shared, band)


def _registers(p: Plan) -> int:
    """Vector registers of a tile: its accumulators (or gradients), room for some weights (or accumulators), two spare."""
    phases = math.prod(len(x.offsets) for x in p.shape.lines)
    tile = p.most_rows * p.vectors * phases
    if p.shape.channels == 1:
        return tile + min(p.shape.taps, ROOM) + 2
    return tile * p.results + (p.most_rows + p.shape.rows.span) * p.vectors + 1


def estimate(workload: Workload, config: Config, target: Target) -> float:
    """Seconds by the analytic model."""
    return sum(_cycles(workload, config, target).values()) / CYCLES_PER_SECOND


def _cycles(workload: Workload, config: Config, target: Target) -> dict[str, float]:
    """Cycles of the busiest thread, by cause."""
    shape = _shape(workload)
    p = Plan(shape, config, target)
    elem = element_bytes(shape.acc)
    rows = shape.rows.positions / p.tiles
    groups = ceildiv(p.row_vectors, p.vectors)
    vectors = p.row_vectors / groups
    fma = rows * vectors * shape.taps * p.results * shape.channels
    reads = (rows * shape.rows.stride + shape.rows.span) / (rows * shape.rows.stride)
    offsets = len({f for live in shape.columns.offsets for f in live})
    lines = len({f for live in shape.rows.offsets for f in live})
    loads = min(rows * lines, rows * shape.rows.stride * reads) * vectors * offsets * len(p.plane_offsets) * shape.channels
    phases = math.prod(len(x.offsets) for x in shape.lines)
    chains = rows * vectors * phases * p.results if shape.form == "gather" else float(shape.taps)
    if shape.channels > 1:
        loads += shape.taps * p.results * shape.channels
    elif shape.form == "gather":
        loads += max(0.0, shape.taps - (target.vector_registers - _registers(p) + ROOM))
    else:
        loads += rows * vectors * ceildiv(shape.taps, max(1, target.vector_registers - int(rows * vectors) - 2))
    tile = max(fma, loads, fma / max(1.0, chains) * LATENCY * 0.6) + 0.25 * min(fma, loads)
    visits = p.tiles * groups
    images = shape.outer * math.prod(x.positions for x in shape.planes)
    if shape.form == "correlate":
        images *= shape.summed * p.parts
    busiest = _busiest(p)
    strip_rows = p.bands * p.strip_rows(p.band * rows) * len(p.plane_offsets) * shape.channels
    copied = strip_rows * (COPY * p.pitch / p.lanes + ROW_OVERHEAD)
    if p.strip * elem > 0.6 * target.l1_bytes:
        copied += strip_rows * p.pitch / p.lanes * 2
    inner = shape.inner / p.results if shape.form == "gather" else ceildiv(shape.inner, p.parts)
    if shape.channels > 1:  # every part fills its strips, which pass once for every group of results; weights once a band
        weights = shape.inner * shape.channels * shape.taps * elem
        passes = strip_rows * p.pitch * elem * inner / bandwidth(p.strip * elem, target)
        copied = copied * p.parts + p.bands * weights / bandwidth(weights, target) + PASSES * passes
    stores = rows * vectors * phases * p.results * 2.0 if shape.form == "gather" else 0.0
    result = 0.0 if shape.form == "gather" else shape.outer * shape.inner * shape.taps * 14.0
    return {
        "tiles": images * inner * visits * tile * busiest,
        "overhead": images * inner * visits * TILE_OVERHEAD * busiest,
        "copies": images * copied * busiest,
        "stores": images * inner * visits * stores * busiest,
        "result": result * busiest,
        "launch": float(LAUNCH if p.threads > 1 else 0),
    }


def _busiest(p: Plan) -> float:
    """The share of the work that the busiest thread has; the last band of an image may be a short one."""
    units = ceildiv(p.units, p.target.threads)
    if p.parts > 1 or p.shape.form == "correlate":
        return units / p.units
    images, bands = divmod(units, p.bands)
    return (images * p.tiles + min(bands * p.band, p.tiles)) / (p.pieces // p.bands * p.tiles)


@lru_cache(maxsize=1024)
def _default(key: str, target: Target) -> Config:
    return min(_space(key, target), key=lambda c: estimate(Workload.parse(key), c, target))


def default(workload: Workload, target: Target) -> Config:
    """The cheapest legal config by the model."""
    return dict(_default(workload.key, target))


def features(workload: Workload, config: Config, target: Target) -> np.ndarray:
    """Sizes, tiles and the model's terms, in logarithms: float32, one width for every window sum."""
    shape = _shape(workload)
    p = Plan(shape, config, target)
    cycles = _cycles(workload, config, target)
    amounts: list[Any] = [
        shape.outer, shape.inner, shape.summed, shape.taps, shape.rows.positions, shape.columns.positions, shape.rows.stride,
        shape.columns.stride, p.most_rows, p.vectors, p.band, p.tiles, p.row_vectors, p.bands, p.units, p.strip, p.pitch,
        *cycles.values(), sum(cycles.values()), workload.flops, workload.bytes,
    ]  # fmt: skip
    ratios = [
        shape.rows.positions / (p.tiles * p.most_rows), shape.columns.positions / (p.row_vectors * p.lanes),
        p.units / (ceildiv(p.units, target.threads) * target.threads), float(shape.form == "gather"), float(target.threads),
    ]  # fmt: skip
    return np.array([math.log2(1 + max(0.0, float(a))) for a in amounts] + ratios, dtype=np.float32)
