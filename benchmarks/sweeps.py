"""Whole sweeps of the legal spaces of some contractions, the raw data of ``benchmarks.tuner_replay``.

``python -m benchmarks.sweeps [NAME ...] [--seconds S]`` goes on where the log of each workload ends, for S seconds in all;
when a space is complete, its 20 fastest are measured again in interleaved rounds, then 300 configs that it leaves out.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tilegrad._base.target import Target
from tilegrad.tuner.task import Space, Task
from tilegrad.tuning_logs import Appender, Record, canonical, parse, read

FOLDER = Path(__file__).with_name("sweeps")
TOP = 20
OUTSIDE = 300
TOGETHER = 64
"""Configs that are compiled before the next are measured."""
TARGET = Target.parse("znver3", 2)
"""Fixed, so that a sweep means the same wherever it is replayed; any machine with AVX2 and FMA can record it."""


def _placeholders(*shapes: tuple[int, ...]) -> list[Any]:
    from tilegrad._base.tvm import te

    return [te.placeholder(s, "float32", name=f"x{i}") for i, s in enumerate(shapes)]


def product(a: tuple[int, ...], b: tuple[int, ...], turn_a: bool = False, turn_b: bool = False) -> Callable[[], Any]:
    """Makes the kernel of a matrix product, either operand transposed inside it."""

    def make() -> Any:
        from tilegrad._base.tvm import te
        from tilegrad.schedules.stages import create
        from tilegrad.schedules.te.matmul import matmul

        def turned(x: Any) -> Any:
            return te.compute((x.shape[1], x.shape[0]), lambda i, j: x[j, i], name="transpose")

        x, y = _placeholders(a, b)
        return create([x, y, matmul(turned(x) if turn_a else x, turned(y) if turn_b else y)])

    return make


def _convolution(kind: str, x: tuple[int, ...], w: tuple[int, ...], y: tuple[int, ...], **attrs: Any) -> Callable[[], Any]:
    def make() -> Any:
        from tilegrad.schedules.stages import create
        from tilegrad.schedules.te import conv

        first, second = _placeholders(*{"forward": (x, w), "by_data": (y, w), "by_weight": (y, x)}[kind])
        if kind == "forward":
            result = conv.conv(first, second, **attrs)
        elif kind == "by_data":
            result = conv.conv_by_data(first, second, x, **attrs)
        else:
            result = conv.conv_by_weight(first, second, w, **attrs)
        return create([first, second, result])

    return make


WORKLOADS: dict[str, Callable[[], Any]] = {
    "square": product((320, 320), (320, 320)),
    "skinny": product((16, 512), (512, 1024)),
    "nt": product((128, 784), (512, 784), turn_b=True),
    "tn": product((512, 256), (512, 384), turn_a=True),
    "batched": product((3, 192, 256), (3, 256, 320)),
    "conv_forward": _convolution("forward", (2, 128, 14, 14), (256, 128, 3, 3), (2, 256, 14, 14), padding=1),
    "conv_by_data": _convolution("by_data", (1, 256, 28, 28), (64, 256, 3, 3), (1, 64, 28, 28), padding=1),
    "conv_by_weight": _convolution("by_weight", (1, 64, 28, 28), (128, 64, 3, 3), (1, 128, 28, 28), padding=1),
}


def task_of(name: str) -> Task:
    """The task of a workload, for TARGET."""
    from tilegrad import schedules

    func = WORKLOADS[name]()
    template, workload = schedules.task_of(func)
    return Task(template, workload, func, TARGET)


def log_of(name: str) -> Path:
    """Where the sweep is written while it grows."""
    return FOLDER / f"{name}.jsonl"


def recorded(name: str) -> bool:
    """Whether the sweep of this workload covered its space."""
    return (FOLDER / f"{name}.jsonl.gz").exists()


def load(name: str) -> list[Record]:
    """The trials of a sweep, complete (compressed) or growing."""
    packed = FOLDER / f"{name}.jsonl.gz"
    if packed.exists():
        with gzip.open(packed, "rt") as f:
            lines = [parse(text) for text in f]
    else:
        lines = list(read(log_of(name)).lines)
    return [r for r in lines if isinstance(r, Record)]


def sweep(name: str, seconds: float, beyond: bool) -> bool:
    """Measure configs that are still missing, for ``seconds``; ``beyond`` the space, too. Returns whether all are done."""
    from tilegrad.tuner.api import run_id
    from tilegrad.tuner.builder import LocalBuilder
    from tilegrad.tuner.database import record_target
    from tilegrad.tuner.interfaces import Outcome
    from tilegrad.tuner.runner import LocalRunner

    start = time.monotonic()
    task = task_of(name)
    space = Space(task)
    known = load(name) if recorded(name) or log_of(name).exists() else []
    inside = {canonical(r.config) for r in known if r.run != "outside"}
    done = all(k in inside for k in space.keys) and any(r.run == "top" for r in known)
    tried = {canonical(r.config) for r in known if r.run == "outside"}
    if done and (not beyond or all(canonical(c) in tried for c in outside(space))):
        return True
    if recorded(name):
        log_of(name).write_bytes(gzip.decompress((FOLDER / f"{name}.jsonl.gz").read_bytes()))
    seen = {(r.run, canonical(r.config)) for r in known}
    run = run_id([task], 0)
    builder = LocalBuilder()
    runner = LocalRunner(builder.reference)
    workload = task.workload.json()

    with Appender(log_of(name)) as log:

        def keep(config: dict[str, Any], outcome: Outcome, label: str) -> None:
            costs = tuple(float(f"{c:.5g}") for c in outcome.costs_s) if outcome.costs_s else None
            when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            target = record_target(task.target, workload)
            log.append(Record(task.template.name, workload, target, config, outcome.status, costs, time=when, run=label))

        def measure(configs: Sequence[dict[str, Any]], label: str) -> bool:
            todo = [c for c in configs if (label, canonical(c)) not in seen]
            for i in range(0, len(todo), TOGETHER):
                if time.monotonic() - start > seconds:
                    return False
                batch = todo[i : i + TOGETHER]
                built = builder.build(task, batch)
                good = [(c, b.path) for c, b in zip(batch, built, strict=True) if b.path]
                for c, b in zip(batch, built, strict=True):
                    if not b.path:
                        keep(c, Outcome(b.status, None, b.error), label)
                for (c, _), outcome in zip(good, runner.measure(task, [p for _, p in good], None, None), strict=True):
                    keep(c, outcome, label)
            return True

        try:
            if not (measure(space.configs, run) and _top(task, load(name), builder, runner, keep)):
                return False
            return not beyond or measure(outside(space), "outside")
        finally:
            builder.close()
            runner.close()


def _top(task: Task, records: Sequence[Record], builder: Any, runner: Any, keep: Callable[..., None]) -> bool:
    """The TOP fastest once more, side by side."""
    if any(r.run == "top" for r in records):
        return True
    inside = sorted((r for r in records if r.costs_s and r.run != "outside"), key=lambda r: r.cost_s)
    configs = {canonical(r.config): dict(r.config) for r in inside}
    first = list(configs.values())[:TOP]
    built = builder.build(task, first)
    for config, outcome in zip(first, runner.compare(task, [b.path for b in built]), strict=True):
        keep(config, outcome, "top")
    return True


def outside(space: Space) -> list[dict[str, Any]]:
    """OUTSIDE seeded configs that the space leaves out: every knob's values freely combined, and further values."""
    knobs: dict[str, list[Any]] = {}
    for config in space.configs:
        for k, v in config.items():
            if v not in knobs.setdefault(k, []):
                knobs[k].append(v)
    more = {"mr": [1, 2, 3, 5, 6, 7, 8, 12], "nr": [8, 16, 24, 32], "kc": [64, 96, 320], "nc": [64, 1024], "mc": [24, 48, 384]}
    for k, values in more.items():
        knobs[k] = list(dict.fromkeys([*knobs.get(k, []), *values]))
    chance = random.Random(0)
    out: dict[str, dict[str, Any]] = {}
    for _ in itertools.repeat(None, 100 * OUTSIDE):
        config = {k: chance.choice(v) for k, v in knobs.items()}
        if canonical(config) not in space.index:
            out.setdefault(canonical(config), config)
        if len(out) == OUTSIDE:
            break
    return list(out.values())


def costs(name: str) -> dict[str, float]:
    """Seconds of every config that worked, by canonical config: the median of its last measurement."""
    return {canonical(r.config): statistics.median(r.costs_s) for r in load(name) if r.costs_s and r.run != "outside"}


def pack(name: str) -> None:
    """Compress a complete sweep."""
    if log_of(name).exists():
        data = log_of(name).read_bytes()
        with gzip.GzipFile(FOLDER / f"{name}.jsonl.gz", "wb", mtime=0) as f:
            f.write(data)
        log_of(name).unlink()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=[])
    parser.add_argument("--seconds", type=float, default=50.0)
    args = parser.parse_args()
    start = time.monotonic()
    FOLDER.mkdir(exist_ok=True)
    names = args.names or list(WORKLOADS)
    for beyond in (False, True):  # what is outside the spaces comes after all that is inside
        for name in names:
            left = args.seconds - (time.monotonic() - start)
            if left <= 0:
                return
            if sweep(name, left, beyond):
                pack(name)
            print(name, len(load(name)), flush=True)


if __name__ == "__main__":
    main()
