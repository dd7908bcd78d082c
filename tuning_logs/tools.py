"""What a person does with logs: show the best, merge, count, prune. Pure functions over lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tilegrad.tuning_logs.lookup import Known
from tilegrad.tuning_logs.records import Line, Record, Verdict, canonical

Key = tuple[str, str, str]


def key_of(line: Line) -> Key:
    """What a line is about: template, workload, machine."""
    return line.template, line.workload_key, canonical(line.target)


@dataclass(frozen=True)
class Best:
    """The best known config of one task; ``default_s`` and ``done`` are known only where a verdict says so."""

    template: str
    workload: Mapping[str, Any]
    target: Mapping[str, Any]
    config: Mapping[str, Any]
    cost_s: float
    default_s: float | None
    done: str | None
    trials: int


def best(lines: Iterable[Line]) -> list[Best]:
    """One entry per task that has a successful trial, in order of first appearance."""
    known: dict[Key, Known] = {}
    verdicts: dict[Key, Verdict] = {}
    trials: Counter[Key] = Counter()
    for line in lines:
        key = key_of(line)
        known.setdefault(key, Known(line.workload, line.target)).add(line)
        if isinstance(line, Verdict):
            verdicts[key] = line
        else:
            trials[key] += 1
    out = []
    for key, k in known.items():
        found, verdict = k.best(), verdicts.get(key)
        if found is None:
            continue
        default_s, done, counted = (verdict.default_s, verdict.done, verdict.trials) if verdict else (None, None, 0)
        out.append(Best(key[0], k.workload, k.target, *found, default_s, done, max(trials[key], counted)))
    return out


def merge(*logs: Iterable[Line]) -> list[Line]:
    """All lines in the order of their time, each once. Lines of one time keep their order, so verdicts stay last."""
    unique = {line.line(): line for lines in logs for line in lines}
    return sorted(unique.values(), key=lambda line: line.time)


def prune(lines: Iterable[Line], keep: int = 1) -> list[Line]:
    """What look-up and transfer need: per task its last verdict and the ``keep`` fastest trials, best last."""
    tasks: dict[Key, list[Line]] = {}
    for line in lines:
        tasks.setdefault(key_of(line), []).append(line)
    out: list[Line] = []
    for group in tasks.values():
        ok = sorted((r for r in group if isinstance(r, Record) and r.status == "ok"), key=lambda r: r.cost_s)
        verdicts = [v for v in group if isinstance(v, Verdict)]
        out += [*reversed(ok[:keep]), *verdicts[-1:]]
    return out


@dataclass(frozen=True)
class Stats:
    """Counts over some logs."""

    trials: int
    tasks: int
    finished: int
    by_status: Mapping[str, int]
    by_template: Mapping[str, int]
    machines: tuple[str, ...]


def stats(lines: Iterable[Line]) -> Stats:
    """Count trials by status and template, tasks, finished tasks and machines."""
    lines = list(lines)
    records = [r for r in lines if isinstance(r, Record)]
    machines = sorted({f"{line.target['arch']} {line.target.get('cpu', '')} x{line.target['threads']}" for line in lines})
    return Stats(
        trials=len(records),
        tasks=len({key_of(line) for line in lines}),
        finished=len({key_of(v) for v in lines if isinstance(v, Verdict) and v.done}),
        by_status=dict(Counter(r.status for r in records)),
        by_template=dict(Counter(r.template for r in records)),
        machines=tuple(machines),
    )
