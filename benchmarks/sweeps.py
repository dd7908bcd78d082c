"""Whole sweeps of the legal spaces of some contractions, the raw data of ``benchmarks.tuner_replay``.

``python -m benchmarks.sweeps --build [NAME ...]`` compiles every config of the spaces, and 300 that each leaves out;
``python -m benchmarks.sweeps [NAME ...] [--seconds S]`` measures what is built and not measured yet, for S seconds in all, so
that a machine need be quiet for short times only. At the end of a workload the fastest are measured again in
interleaved rounds. To record a workload anew, delete its file.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tilegrad._base import settings
from tilegrad._base.errors import ScheduleError
from tilegrad._base.target import Target
from tilegrad.tuner.builder import LocalBuilder, candidate_path, reference_path
from tilegrad.tuner.runner import LocalRunner
from tilegrad.tuner.task import Space, Task
from tilegrad.tuning_logs import Appender, Record, Status, canonical, parse, read

FOLDER = Path(__file__).with_name("sweeps")
START = time.monotonic()
TOP, TOP_OUTSIDE = 20, 5
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
    "square": product((224, 224), (224, 224)),
    "skinny": product((16, 256), (256, 1024)),
    "nt": product((128, 512), (512, 512), turn_b=True),
    "tn": product((256, 128), (256, 384), turn_a=True),
    "batched": product((3, 128, 256), (3, 256, 320)),
    "conv_forward": _convolution("forward", (2, 64, 14, 14), (128, 64, 3, 3), (2, 128, 14, 14), padding=1),
    "conv_by_data": _convolution("by_data", (1, 128, 28, 28), (128, 128, 3, 3), (1, 128, 28, 28), padding=1),
    "conv_by_weight": _convolution("by_weight", (1, 32, 28, 28), (64, 32, 3, 3), (1, 64, 28, 28), padding=1),
}
"""Sizes whose spaces have 300 to 450 configs: a sweep takes minutes."""


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
        lines = list(read(log_of(name)).lines) if log_of(name).exists() else []
    return [r for r in lines if isinstance(r, Record)]


class Sweep:
    """One workload's sweep: all that is to be measured, what the log holds of it, and how to add to that.

    A record's ``run`` says why it was made: ``space``, ``outside`` (a config that the space leaves out), ``again`` (the
    fastest of both, in interleaved rounds).
    """

    def __init__(self, name: str, built: Path) -> None:
        self.name, self.task = name, task_of(name)
        space = Space(self.task)
        others = {canonical(c): c for c in outside(space)}
        self.labels = dict.fromkeys(space.keys, "space") | dict.fromkeys(others, "outside")
        self.configs = dict(zip(space.keys, space.configs, strict=True)) | others
        self.folder = built
        self._workload = self.task.workload.json()

    def missing(self, label: str = "") -> list[str]:
        """Keys of the configs (of a label) without a record."""
        known = {canonical(r.config) for r in load(self.name)}
        return [k for k in self.configs if k not in known and label in ("", self.labels[k])]

    def keep(self, log: Appender, key: str, status: Status, costs: Sequence[float] | None, label: str) -> None:
        """Append a trial."""
        from tilegrad.tuner.database import record_target

        rounded = tuple(float(f"{c:.5g}") for c in costs) if costs else None
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        target = record_target(self.task.target, self._workload)
        log.append(
            Record(self.task.template.name, self._workload, target, self.configs[key], status, rounded, time=when, run=label)
        )

    def path(self, key: str) -> Path:
        """Where the builder puts a config's library."""
        return candidate_path(self.folder, self.task, self.configs[key])

    def build(self, builder: LocalBuilder, label: str) -> None:
        """Compile what is neither built nor measured; what does not compile is recorded at once."""
        builder.reference(self.task)
        todo = [k for k in self.missing(label) if not self.path(k).exists()]
        for i in range(0, len(todo), TOGETHER):
            keys = todo[i : i + TOGETHER]
            answers = builder.build(self.task, [self.configs[k] for k in keys])
            with Appender(log_of(self.name)) as log:
                for k, answer in zip(keys, answers, strict=True):
                    if answer.path is None:
                        self.keep(log, k, answer.status, None, label)
            print(self.name, label, "built", i + len(keys), "of", len(todo), flush=True)

    def measure(self, until: float, inside: bool) -> bool:
        """Measure what is built and has no record, then the fastest again; ``inside`` the space only. Returns whether all is
        done; False where time.monotonic() passed ``until``, or something is not built."""
        if recorded(self.name):
            return True
        runner = LocalRunner(lambda task: reference_path(self.folder, task))
        try:
            with Appender(log_of(self.name)) as log:
                best = min(costs(self.name).values(), default=None)
                for k in self.missing("space" if inside else ""):
                    if time.monotonic() > until:
                        return False
                    if not self.path(k).exists():
                        continue
                    (outcome,) = runner.measure(self.task, [str(self.path(k))], None, best)
                    self.keep(log, k, outcome.status, outcome.costs_s, self.labels[k])
                    best = min([best or math.inf, *(outcome.costs_s or ())])
                if self.missing("space" if inside else "") or time.monotonic() > until:
                    return False
                fastest = [*top(costs(self.name), TOP), *top(costs(self.name, "outside"), TOP_OUTSIDE)]
                outcomes = runner.compare(self.task, [str(self.path(k)) for k in fastest])
                for k, outcome in zip(fastest, outcomes, strict=True):
                    self.keep(log, k, outcome.status, outcome.costs_s, "again")
        finally:
            runner.close()
        pack(self.name)
        return True


def top(costs: Mapping[str, float], count: int) -> list[str]:
    """Keys of the fastest."""
    return sorted(costs, key=lambda k: costs[k])[:count]


def legal(task: Task, config: dict[str, Any]) -> bool:
    """Whether the template makes a kernel of ``config``."""
    from tilegrad import schedules

    try:
        schedules.schedule(task.func, task.target, config)
    except ScheduleError:
        return False
    return True


def outside(space: Space) -> list[dict[str, Any]]:
    """OUTSIDE seeded, legal configs that the space leaves out: every knob's values freely combined, and further values."""
    knobs: dict[str, list[Any]] = {}
    for config in space.configs:
        for k, v in config.items():
            if v not in knobs.setdefault(k, []):
                knobs[k].append(v)
    more = {"mr": [1, 2, 3, 5, 6, 7, 8, 12], "nr": [8, 16, 24, 32], "kc": [64, 96, 320], "nc": [64, 1024], "mc": [12, 64, 384]}
    for k, values in more.items():
        knobs[k] = list(dict.fromkeys([*knobs.get(k, []), *values]))
    chance = random.Random(0)
    out: dict[str, dict[str, Any]] = {}
    for _ in itertools.repeat(None, 100 * OUTSIDE):
        config = {k: chance.choice(v) for k, v in knobs.items()}
        if canonical(config) not in space.index and canonical(config) not in out and legal(space.task, config):
            out[canonical(config)] = config
        if len(out) == OUTSIDE:
            break
    return list(out.values())


def costs(name: str, label: str = "space") -> dict[str, float]:
    """Seconds of every config of a label that worked, by canonical config: the median of its last measurement."""
    records = load(name)
    labels = {canonical(r.config): r.run for r in records if r.run != "again"}
    worked = {canonical(r.config): statistics.median(r.costs_s) for r in records if r.costs_s}
    return {k: cost for k, cost in worked.items() if labels[k] == label}


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
    parser.add_argument("--build", action="store_true", help="compile only")
    parser.add_argument("--inside", action="store_true", help="leave out what is outside the spaces")
    parser.add_argument("--seconds", type=float, default=math.inf, help="for measuring, imports included")
    parser.add_argument("--built", type=Path, default=settings.cache_dir() / "sweeps", help="folder of what is compiled")
    args = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    args.built.mkdir(parents=True, exist_ok=True)
    open_sweeps = [Sweep(name, args.built) for name in args.names or WORKLOADS if not recorded(name)]
    if args.build:
        builder = LocalBuilder(folder=args.built)
        try:
            for label in ("space",) if args.inside else ("space", "outside"):
                for sweep in open_sweeps:
                    sweep.build(builder, label)
        finally:
            builder.close()
        return
    for sweep in open_sweeps:
        done = sweep.measure(START + args.seconds, args.inside)
        print(sweep.name, "done" if done else f"{len(sweep.missing())} missing", flush=True)


if __name__ == "__main__":
    main()
