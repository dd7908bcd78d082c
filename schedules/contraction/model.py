"""Which configs are legal, what each should cost, and which one to take without measuring.

The model counts cycles of one core for the busiest thread, in the manner of BLIS: the micro-kernel against its loads,
packing, the traffic of sums between K blocks, and the last level that each operand streams from. It is a prior for the
tuner and the whole of the untuned choice, so one mechanism: ``default`` is the cheapest of ``space`` by ``estimate``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from tilegrad._base.errors import ScheduleError
from tilegrad._base.target import Target
from tilegrad.schedules.contraction.pairs import has_pairs, narrow
from tilegrad.schedules.contraction.plan import Plan, Size, ceildiv, element_bytes, registers
from tilegrad.schedules.template import Config, Workload

CYCLES_PER_SECOND = 2.5e9
LOAD = 1.25
"""Cycles of a vector load or broadcast."""
LATENCY = 11
"""Fewer accumulators than this leave the units idle: two of them, four to five cycles each, and some slack (nine were measured
25 % below twelve where K is short)."""
LOAD_SHARE = 0.2
"""Share of the loads' cycles that multiply-adds do not hide."""
TILE_OVERHEAD = 120
"""Cycles to enter and leave a micro-kernel, whatever its size."""
LAUNCH = 19_000
"""Cycles to wake the threads and to wait for them."""
PACK = {"N": 1.2, "T": 1.15, "S": 3.8, "X": 3.8, "P": 1.8, "G": 1.5}
"""Cycles to pack one element of B, by its layout (float32)."""
PACK_A = {"N": 3.0, "T": 2.7, "S": 4.0, "X": 3.2, "P": 5.0, "G": 4.0}
TLB, TLB_BYTES = 64, 6 << 20
"""Entries of the first-level TLB, and bytes that the second one knows."""
MISS, WALK = 30.0, 50.0
"""Cycles that a row of a tile of C costs more where the rows of an M block miss the first-level TLB, and C the second."""
FAR_A, ALIASED_A = 0.35, 1.0
"""Cycles a step of K that a row of an A in columns costs where its lines leave L1 before the next tile needs them, and where
they share a few of its sets."""
BEYOND_L1, BEYOND_L2 = 0.08, 1.5
"""Cycles a step of K: of a vector of B whose panel overflows its share of L1, of a tile whose A block overflows its one of L2."""
L1_SHARE, L2_SHARE = 0.45, 0.25
ALIASED_B, STREAMS_B = 3.0, 5.8
"""Cycles a step of K and a vector of B in place: rows that share a few sets of L1, rows that are streams of their own from L3."""
STREAM_A = 3.0
"""A is read by broadcasts: less of the way from its level is hidden than bandwidth says."""
REDUCE = 0.28
"""Cycles to add an element of one part of K."""
GATHER_ROW = 210
"""Cycles to begin a row of a gathered block of B, whatever its length."""


def size_of(fields: Mapping[str, Any]) -> Size:
    """The extents that a workload's fields name."""
    batch, m, segments, n, k = (int(fields.get(x, 1)) for x in ("batch", "m", "segments", "n", "k"))
    return Size(batch, m, segments, n // segments, k, accumulator(fields["dtypes"][0]))


def accumulator(short: str) -> str:
    """The accumulator's type for operands of a short name such as f32, bf16, i8."""
    return {"f64": "float64"}.get(short, "float32" if "f" in short else "int64" if short == "i64" else "int32")


MOST = 2000
"""Configs of a space: of more than this, as for many threads, those that the model finds the cheapest."""

KNOBS: dict[str, type] = {
    "form": str, "mr": int, "nr": int, "kc": int, "nc": int, "mc": int, "split": list, "pack_a": bool, "pack_b": bool
}  # fmt: skip
"""form: vectors along N (outer) or along K (dot); mr x nr: the micro-kernel's tile; kc, nc, mc: blocks of K, N, M;
split: parts of M, N and K computed apart; pack_a, pack_b: copied to panels, or read where they lie."""


def checked(config: Config) -> Config:
    """``config`` with its knobs' types checked. Raises ScheduleError."""
    bad = [k for k, kind in KNOBS.items() if not isinstance(config.get(k), kind)]
    numbers = [] if bad else [*(config[k] for k in ("mr", "nr", "kc", "nc", "mc")), *config["split"]]
    if bad or len(numbers) != 8 or any(not isinstance(x, int) or x < 1 for x in numbers):
        raise ScheduleError("contraction config", repr(config), f"the knobs {', '.join(KNOBS)}, sizes of at least 1")
    return config


def space(workload: Workload, target: Target) -> list[Config]:
    """All legal configs, in a stable order: micro-tiles by the register file, blocks by the caches, splits by the threads."""
    return [dict(c) for c in _space(workload.key, target)]


@lru_cache(maxsize=256)
def _space(key: str, target: Target) -> tuple[Config, ...]:
    workload = Workload.parse(key)
    fields, size = workload.fields, size_of(workload.fields)
    lanes = max(1, target.vector_bytes // element_bytes(size.acc))
    columns = size.segments * ceildiv(size.n, lanes) * lanes
    k_blocks = (8, 16, 64, 256, 1024) if size.m <= 16 else (128, 256, 384, 512, 1024)
    out: dict[tuple[Any, ...], Config] = {}
    for form, mr, vectors in _tiles(fields, target, size, lanes):
        nr = vectors * lanes
        for kc in _up_to(k_blocks, size.k, 4096):
            for nc in _up_to((128, 512), columns, 8192):
                for mc in _rows(size, kc, target):
                    for split in _splits(size, target, mr, nr, kc if "phases" not in fields else size.k):
                        base: Config = {"form": form, "mr": mr, "nr": nr, "kc": kc, "nc": nc, "mc": mc, "split": list(split)}
                        plan = Plan(size, base, target)
                        numbers = (form, plan.mr, plan.nr, plan.kc, plan.nc, plan.mc, plan.splits)
                        for pa, pb in _packing(fields, plan):
                            out.setdefault((*numbers, pa, pb), {**base, "pack_a": pa, "pack_b": pb})
    configs = tuple(out.values())
    if len(configs) <= MOST:
        return configs
    cost = [estimate(workload, c, target) for c in configs]
    return tuple(configs[i] for i in sorted(sorted(range(len(cost)), key=cost.__getitem__)[:MOST]))


def _tiles(fields: Mapping[str, Any], target: Target, size: Size, lanes: int) -> list[tuple[str, int, int]]:
    """(form, rows, vectors) of micro-kernels that fit the registers and use them well."""
    have = target.vector_registers
    good = {16: [(6, 2), (4, 2), (3, 3)], 32: [(14, 2), (12, 2), (9, 3), (8, 3), (6, 4)]}[have]
    total = size.segments * ceildiv(size.n, lanes)
    out: list[tuple[str, int, int]] = []
    for mr, vectors in good:
        if size.m < good[0][0]:  # few rows: spend the registers on columns
            mr = min(mr, size.m)
            vectors = max(vectors, (have - 3) // (mr + 1))
        out.append(("outer", min(mr, size.m), min(vectors, total)))
    if fields["layout"] == "NT" and size.m <= 32:
        out += [("dot", mr, 1) for mr in (1, 2, 4) if mr <= size.m]
    return list(dict.fromkeys(t for t in out if t[0] == "dot" or registers(t[1], t[2]) <= have))


def _packing(fields: Mapping[str, Any], plan: Plan) -> list[tuple[bool, bool]]:
    """Which operands may be packed or left in place."""
    if plan.dot:
        return [(False, False)]
    types = [{"i8": "int8", "u8": "uint8", "i16": "int16"}.get(d, "") for d in fields["dtypes"][:2]]
    if plan.size.m > 1 and narrow(types, plan.size.acc) and has_pairs(plan.target):
        return [(True, True)]  # packing makes the pairs that one instruction multiplies
    can_a, can_b = fields["layout"][0] in "NTS", fields["layout"][1] == "N" and not plan.tail
    a = (False, True) if can_a and plan.size.m > 1 else (not can_a,)
    return [(pa, pb) for pa in a for pb in ((False, True) if can_b else (True,))]


def _up_to(blocks: tuple[int, ...], limit: int, most: int) -> list[int]:
    """Block sizes below ``limit``, and ``limit`` itself unless it is more than ``most``."""
    return [*(b for b in blocks if b < limit), *([limit] if limit <= most else [most])]


def _rows(size: Size, kc: int, target: Target) -> list[int]:
    """M blocks. Of A, a small one holds half of L1 at least (less saves nothing), a large one does not overflow L2 by much."""
    row = ceildiv(size.k, ceildiv(size.k, min(kc, size.k))) * element_bytes(size.acc)
    small = [mc for mc in (24, 48) if mc < size.m and 2 * mc * row >= target.l1_bytes]
    large = _up_to((96, 192), size.m, 2048)
    return [*small, large[0], *(mc for mc in large[1:] if 4 * mc * row <= 5 * target.l2_bytes)]


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
    columns = min(panels * p.vectors, p.total_vectors) / panels  # the last panel is narrow; the first thread has whole ones
    n_unit = panels * p.nr
    visits = tiles * panels
    micro, overhead = _micro(p, layout, elem, rows, columns)
    micro *= k_unit * visits
    overhead *= visits * p.unit_k_blocks
    # where B comes from: packed by this thread, or read in place; each M block reads it again
    b_block = p.kc * p.nc * p.nr * elem
    pack_b = stream_b = 0.0
    passes = ceildiv(tiles, p.mc)
    source = size.k * size.segments * size.n * elem
    if config["pack_b"]:
        source_reads = k_unit * n_unit * elem / bandwidth(source, target)
        pack_b = source_reads + _pack_cost(workload, layout[1]) * elem / 4 * k_unit * n_unit
        stream_b = passes * k_unit * n_unit * elem / bandwidth(b_block, target)
        if layout[1] == "G":
            pack_b += GATHER_ROW * k_unit * ceildiv(panels, p.nc)
    else:
        stream_b = passes * k_unit * n_unit * elem / bandwidth(source, target)
    pack_a = 0.0
    if config["pack_a"]:
        pack_a = PACK_A[layout[0]] * elem / 4 * size.batch * size.m * size.k / target.threads + LAUNCH
    # A comes from beyond L2 once for every N block, from L2 for every panel
    a_total = tiles * rows * k_unit * elem
    stream_a = STREAM_A * ceildiv(panels, p.nc) * a_total / bandwidth(size.m * size.k * elem, target)
    names = [e for e in workload.fields["epilogue"].split(",") if e]
    epilogue = (0.2 + 0.5 * len(names)) * tiles * rows * n_unit * elem / 4 / 4
    reduce = 0.0
    if p.splits[2] > 1:
        reduce = LAUNCH + size.batch * size.m * size.segments * size.n * elem / 4 * (p.splits[2] + 1) * REDUCE / target.threads
    return {
        "micro": micro * per_thread,
        "overhead": overhead * per_thread,
        "pack_b": pack_b * per_thread,
        "stream_b": stream_b * per_thread,
        "pack_a": pack_a,
        "stream_a": stream_a * per_thread,
        "epilogue": epilogue * per_thread,
        "reduce": reduce,
        "launch": float(LAUNCH if p.threads > 1 else 0),
    }


def _micro(p: Plan, layout: str, elem: int, rows: float, columns: float) -> tuple[float, float]:
    """Cycles of a tile for one k, and once for a K block."""
    if p.dot:
        loads = (rows * p.lanes / max(1.0, p.lanes // max(1, p.mr)) + p.lanes) * LOAD
        return max(rows * p.lanes, loads) / p.lanes, TILE_OVERHEAD + 40.0 * p.mr
    fma = max(rows * columns, float(LATENCY))
    loads = (columns + rows) * LOAD
    cycles = max(fma, loads) + LOAD_SHARE * loads
    target, config = p.target, p.config
    row = p.size.n * elem
    in_place = not config["pack_b"]
    panel = p.kc * (p.nr * elem + (64 if in_place and row % 64 else 0))  # rows that begin inside a line touch one more
    if panel > L1_SHARE * target.l1_bytes:
        cycles += BEYOND_L1 * columns * elem / 4
    if p.mc * p.mr * p.kc * elem > L2_SHARE * target.l2_bytes:
        cycles += BEYOND_L2
    if in_place:
        if row % 2048 == 0 and p.kc > 64:  # the panel's lines share a few sets of L1
            cycles += ALIASED_B * columns
        if row >= 2048 and p.size.k * row > target.l2_bytes:  # each row is a stream of its own: prefetchers follow a few
            cycles += columns * (0.0 if p.kc <= 8 else 1.0 if p.kc <= 16 else STREAMS_B) / p.unit_tiles
        pages = p.kc * min(1.0, row / 4096)
        if pages > TLB:
            cycles += 0.8 * (1 - TLB / pages)
    if not config["pack_a"]:
        step = (p.size.k if layout[0] == "N" else p.size.m) * elem
        # a column's lines, or their pages, leave before the next tile's rows are read
        far = max(1 - TLB / (p.kc * min(1.0, step / 4096)), 1 - L1_SHARE * target.l1_bytes / (64 * p.kc), 0.0)
        if layout[0] != "N":
            cycles += rows * (FAR_A * far + (ALIASED_A if step % 4096 == 0 and p.kc > 64 else 0.0))
    resume = rows * columns * 2.5 if p.k_blocks > 1 else 0.0
    miss = 0.0
    if p.mc * rows * min(1.0, row / 4096) > TLB:
        miss = rows * (MISS + (WALK if p.size.m * row > TLB_BYTES else 0.0))
    return cycles, TILE_OVERHEAD + rows * columns * 2.5 + resume + miss


def bandwidth(bytes_: float, target: Target) -> float:
    """Bytes a cycle from the level that holds an array of this size."""
    return 24.0 if bytes_ <= 0.6 * target.l2_bytes else 10.0 if bytes_ <= 0.6 * target.l3_bytes / max(1, target.threads) else 6.0


def _pack_cost(workload: Workload, layout: str) -> float:
    """Cycles to pack one element of B; a gather by the length of its runs."""
    if layout != "G" or "geometry" not in workload.fields:
        return PACK[layout]
    shapes = dict(item.split("=") for item in workload.fields["geometry"].split())
    width = int(shapes["y"].split("x")[-1])
    return 0.8 if "by_weight" in workload.op else 0.15 + 3.0 / width


@lru_cache(maxsize=1024)
def _default(key: str, target: Target) -> Config:
    workload = Workload.parse(key)
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
        float(p.dot), float(config["pack_a"]), float(config["pack_b"]),
        *(float(workload.fields["layout"][i] == x) for i in (0, 1) for x in "NTGP"),
        float(size.n * elem % 4096 == 0), float(size.k * elem % 4096 == 0), float(target.threads),
    ]  # fmt: skip
    return np.array([math.log2(1 + max(0.0, float(a))) for a in amounts] + ratios, dtype=np.float32)
