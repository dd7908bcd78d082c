"""Records: finding the best known config for a workload on a machine.

Order: the user's log, then the shipped ones; in each, the exact workload with the nearest thread count, then the nearest
shape, or the same one on a machine with other vector registers, whose config the caller accepts; then nothing, which means
the template's default.
"""

from __future__ import annotations

import math
import os
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from tilegrad._base import settings
from tilegrad._base.target import Target
from tilegrad.tuning_logs import files
from tilegrad.tuning_logs.records import Line, Record, Verdict, canonical

SOURCES = ("tuned", "shipped", "nearest", "default")
EXACT = ("op", "layout", "dtypes")
"""Fields of a workload that must be equal for its configs to be of use to another."""
_NUMBER = re.compile(r"\d+")
NEAREST_TRIED = 8
"""How many records of other shapes are offered to the caller's check before giving up."""


Accept = Callable[[dict[str, Any]], bool]


class Hit(NamedTuple):
    """A config and where it came from: one of SOURCES."""

    config: dict[str, Any]
    source: str


class WorkloadLike(Protocol):
    """What look-up needs of schedules.template.Workload."""

    def json(self) -> dict[str, Any]:
        """The ``workload`` object of a record."""


class TemplateLike(Protocol):
    """What ``choose`` needs of schedules.template.Template."""

    name: str

    def space(self, workload: Any, target: Target) -> list[dict[str, Any]]: ...

    def default(self, workload: Any, target: Target) -> dict[str, Any]: ...

    def estimate(self, workload: Any, config: dict[str, Any], target: Target) -> float: ...


@dataclass
class Known:
    """What one log says about one workload on one kind of machine: pooled costs per config."""

    workload: Mapping[str, Any]
    target: Mapping[str, Any]
    costs: dict[str, list[float]] = field(default_factory=dict)
    configs: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    def add(self, line: Line) -> None:
        """Take one line in; a verdict settles everything before it."""
        key = canonical(line.config)
        if isinstance(line, Verdict):
            self.costs, self.configs = {key: [line.cost_s]}, {key: line.config}
        elif line.costs_s:
            self.costs.setdefault(key, []).extend(line.costs_s)
            self.configs[key] = line.config

    def best(self) -> tuple[dict[str, Any], float] | None:
        """The config with the smallest median cost, and that cost in seconds."""
        if not self.costs:
            return None
        key = min(self.costs, key=lambda k: statistics.median(self.costs[k]))
        return dict(self.configs[key]), statistics.median(self.costs[key])


class Index:
    """The lines of one tier (the user's logs, or the shipped ones), grouped for look-up."""

    def __init__(self, lines: Iterable[Line]) -> None:
        self.known: dict[tuple[str, str], dict[str, Known]] = {}
        for line in lines:
            group = self.known.setdefault((line.template, line.workload_key), {})
            group.setdefault(canonical(line.target), Known(line.workload, line.target)).add(line)

    def exact(self, template: str, workload_key: str, target: Target) -> tuple[dict[str, Any], float] | None:
        """Best config of this very workload from the machine most like ``target`` with the same vector registers."""
        group = self.known.get((template, workload_key), {}).values()
        return _nearest_machine((k for k in group if same_registers(k.target, target)), target)

    def near(self, template: str, workload: Mapping[str, Any], target: Target) -> Iterator[tuple[float, dict[str, Any]]]:
        """(distance, config) of other shapes of the same kind, or of other vector registers, nearest first."""
        found = []
        for (name, other_key), group in self.known.items():
            if name != template:
                continue
            gap = distance(workload, next(iter(group.values())).workload)
            hit = None if gap is None else _nearest_machine(group.values(), target)
            if gap is not None and hit is not None:
                found.append((gap, other_key, hit[0]))
        return ((gap, config) for gap, _, config in sorted(found, key=lambda t: t[:2]))


def fits(recorded: Mapping[str, Any], target: Target) -> bool:
    """Whether a record's code can run on ``target``: same architecture, features a subset. Names do not matter."""
    return recorded["arch"] == target.arch and set(recorded["features"]) <= set(target.features)


def same_registers(recorded: Mapping[str, Any], target: Target) -> bool:
    """Whether a record's tiles were made for registers as wide as ``target``'s: halves of wide ones are a poor fit."""
    return Target(recorded["arch"], tuple(recorded["features"]), 1).vector_bytes == target.vector_bytes


def _nearest_machine(group: Iterable[Known], target: Target) -> tuple[dict[str, Any], float] | None:
    """From the fitting machines prefer more features in use, then the nearest thread count, then the same CPU model."""

    def rank(known: Known) -> tuple[int, float, bool]:
        t = known.target
        return -len(t["features"]), abs(math.log2(max(1, t["threads"]) / target.threads)), t.get("cpu") != target.cpu

    for known in sorted((k for k in group if fits(k.target, target)), key=rank):
        best = known.best()
        if best is not None:
            return best
    return None


def distance(a: Mapping[str, Any], b: Mapping[str, Any]) -> float | None:
    """How far apart two workloads' shapes are: the sum of |log2| ratios of their numbers (those inside texts, too), 1 for
    a different epilogue.

    None when they are of different kinds (operator, layout, element types, rank, any other text).
    """
    if a.keys() != b.keys():
        return None
    total = 0.0
    for name in a:
        x, y = a[name], b[name]
        if x == y:
            continue
        if name in EXACT:
            return None
        if name == "epilogue":
            total += 1.0
            continue
        gap = _gap(x, y)
        if gap is None:
            return None
        total += gap
    return total


def _gap(x: Any, y: Any) -> float | None:
    if isinstance(x, bool) or isinstance(y, bool):
        return 0.0 if x == y else None
    if isinstance(x, int | float) and isinstance(y, int | float):
        return abs(math.log2(max(x, 1) / max(y, 1))) if min(x, y) >= 0 else None
    if isinstance(x, list | tuple) and isinstance(y, list | tuple) and len(x) == len(y):
        gaps = [_gap(p, q) for p, q in zip(x, y, strict=True)]
        return None if any(g is None for g in gaps) else math.fsum(g for g in gaps if g is not None)
    if isinstance(x, Mapping) and isinstance(y, Mapping):
        return distance(x, y)
    if isinstance(x, str) and isinstance(y, str):  # a geometry such as "x=1x64x56x56 stride=1,1": text with numbers in it
        same = _NUMBER.sub("#", x) == _NUMBER.sub("#", y)
        return _gap([int(n) for n in _NUMBER.findall(x)], [int(n) for n in _NUMBER.findall(y)]) if same else None
    return 0.0 if x == y else None


def no_worse_than_default(template: TemplateLike, workload: Any, target: Target) -> Callable[[dict[str, Any]], bool]:
    """The check for configs of other shapes: a member of the space, and not slower by the analytic model."""
    space: set[str] | None = None
    limit = math.inf

    def accept(config: dict[str, Any]) -> bool:
        nonlocal space, limit
        if space is None:
            space = {canonical(c) for c in template.space(workload, target)}
            limit = template.estimate(workload, template.default(workload, target), target)
        return canonical(config) in space and template.estimate(workload, config, target) <= limit

    return accept


class Records:
    """The best known configs of some logs. Counts what its look-ups found, for ``summary``."""

    def __init__(self, user: Sequence[Line] = (), shipped: Sequence[Line] = (), skipped: int = 0) -> None:
        self.lines: tuple[Line, ...] = (*user, *shipped)
        self.skipped = skipped
        self._tiers = (("tuned", Index(user)), ("shipped", Index(shipped)))
        self.counts: Counter[str] = Counter()
        self.untuned: list[str] = []
        """Workload keys that no log had an exact record of, in the order they were asked for."""

    @staticmethod
    def load(logs: Sequence[str | os.PathLike[str]] | str | os.PathLike[str] | None = None) -> Records:
        """``None``: the user's log (if there is one), then the shipped ones. ``[]``: none. Else the given logs.

        Raises TuningError when a given log is missing or unreadable. Lines that are damaged or of a
        newer version are skipped; ``skipped`` counts them.
        """
        if logs is None:
            mine = [p for p in [settings.user_log()] if p.exists()]
            user, own = files.read_all(mine), files.read_all(files.shipped())
            return Records(user.lines, own.lines, user.skipped + own.skipped)
        given = files.read_all([logs] if isinstance(logs, str | os.PathLike) else list(logs))
        return Records(given.lines, (), given.skipped)

    @property
    def trials(self) -> list[Record]:
        """Every trial, in order."""
        return [line for line in self.lines if isinstance(line, Record)]

    def lookup(
        self,
        template: str,
        workload: WorkloadLike | Mapping[str, Any],
        target: Target,
        accept: Callable[[dict[str, Any]], bool] | None = None,
    ) -> Hit | None:
        """The best known config, or None when the template's default should be used.

        ``accept`` judges configs that were recorded for other shapes; without it only exact workloads count.
        """
        w = workload if isinstance(workload, Mapping) else workload.json()
        hit = self._find(template, w, target, accept)
        self.counts[hit.source if hit else "default"] += 1
        if hit is None or hit.source == "nearest":
            self.untuned.append(canonical(w))
        return hit

    def choose(self, template: TemplateLike, workload: Any, target: Target) -> Hit:
        """``lookup`` with ``no_worse_than_default`` as the check, then the template's default."""
        hit = self.lookup(template.name, workload, target, no_worse_than_default(template, workload, target))
        return hit or Hit(dict(template.default(workload, target)), "default")

    def _find(
        self, template: str, workload: Mapping[str, Any], target: Target, accept: Callable[[dict[str, Any]], bool] | None
    ) -> Hit | None:
        key = canonical(workload)
        for source, tier in self._tiers:
            best = tier.exact(template, key, target)
            if best is not None:
                return Hit(best[0], source)
            if accept is None:
                continue
            for i, (_, config) in enumerate(tier.near(template, workload, target)):
                if i == NEAREST_TRIED:
                    break
                if accept(config):
                    return Hit(config, "nearest")
        return None

    def exact(self, template: str, workload: Mapping[str, Any], target: Target) -> list[dict[str, Any]]:
        """This very workload's best configs, the user's before the shipped one."""
        found = (tier.exact(template, canonical(workload), target) for _, tier in self._tiers)
        return [best[0] for best in found if best]

    def near(self, template: str, workload: Mapping[str, Any], target: Target) -> list[dict[str, Any]]:
        """Configs worth trying first for this workload: its own best, then those of the nearest shapes."""
        out: dict[str, dict[str, Any]] = {}
        for _, tier in self._tiers:
            best = tier.exact(template, canonical(workload), target)
            for config in ([best[0]] if best else []) + [c for _, c in tier.near(template, workload, target)]:
                out.setdefault(canonical(config), config)
        return list(out.values())

    def summary(self) -> str:
        """How many kernels came from where, in one line."""
        total = sum(self.counts.values())
        parts = ", ".join(f"{self.counts[s]} {s}" for s in SOURCES)
        tail = f"; {self.skipped} log lines skipped" if self.skipped else ""
        return f"{total} kernels: {parts}{tail}"
