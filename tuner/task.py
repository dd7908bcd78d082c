"""Task: one workload to tune, with how often a model runs it; and the space of configs searched for it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from tilegrad._base.errors import TuningError
from tilegrad._base.target import Target
from tilegrad.tuning_logs import canonical

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from tilegrad.runtime.program import Program
    from tilegrad.schedules.template import Config, Template, Workload


@dataclass(frozen=True)
class Task:
    """A kernel of which the best config is wanted. ``weight``: how many times one run of the model calls it."""

    template: Template
    workload: Workload
    func: Any
    target: Target
    weight: int = 1
    num_outputs: int = 1

    @property
    def key(self) -> str:
        """Equal for tasks that one record may serve."""
        return f"{self.template.name} {self.workload.key}"

    @property
    def name(self) -> str:
        """Short text for tables: operator, dimensions, layout."""
        parts = [self.workload.op]
        for k, v in self.workload.fields.items():
            if isinstance(v, int) and not isinstance(v, bool) and v != 1:
                parts.append(f"{k}{v}")
            elif k in ("layout", "epilogue") and v:
                parts.append(str(v))
            elif k in ("shape", "shapes", "axes"):
                parts.append(canonical(v).replace('"', ""))
        text = " ".join(parts)
        return text if len(text) <= 60 else text[:57] + "..."

    def gflops(self, seconds: float | None) -> float:
        """Billions of floating-point operations a second; 0 where the workload counts none."""
        return self.workload.flops / seconds / 1e9 if seconds and np.isfinite(seconds) else 0.0


def tasks_of(programs: Mapping[str, Program] | Sequence[Program], target: Target) -> list[Task]:
    """The tunable kernels of some programs, equal workloads once with the number of their calls.

    Kernels whose family offers a single config are left out.
    """
    from tilegrad import schedules

    tasks: dict[str, Task] = {}
    for program in programs.values() if isinstance(programs, Mapping) else programs:
        for call in program.calls:
            func = program.kernels[call.kernel]
            template, workload = schedules.task_of(func)
            task = Task(template, workload, func, target, num_outputs=call.num_outputs)
            seen = tasks.get(task.key)
            tasks[task.key] = replace(seen, weight=seen.weight + 1) if seen else task
    return [t for t in tasks.values() if len(t.template.space(t.workload, target)) > 1]


class Space:
    """All legal configs of a task, with what the search wants to know about each of them by index.

    ``estimates`` are the analytic model's seconds; ``features`` has one row of fixed width a config. ``recorded``: configs
    that worked for this task earlier; those that the template no longer lists, but still takes, belong to its space.
    """

    def __init__(self, task: Task, recorded: Iterable[Mapping[str, Any]] = ()) -> None:
        self.task = task
        self.configs: list[Config] = list(task.template.space(task.workload, task.target))
        self.keys = [canonical(c) for c in self.configs]
        self.index = {k: i for i, k in enumerate(self.keys)}
        default = task.template.default(task.workload, task.target)
        if self.configs:
            for config in (default, *(c for c in recorded if self._taken(c))):
                self._add(dict(config))
        self.default = self.index.get(canonical(default), 0)

    def _add(self, config: Config) -> None:
        key = canonical(config)
        if key not in self.index:
            self.index[key] = len(self.configs)
            self.configs.append(config)
            self.keys.append(key)

    def _taken(self, config: Mapping[str, Any]) -> bool:
        """Whether the template can read a config; an older one's knobs may be others."""
        t = self.task
        try:
            return canonical(config) in self.index or t.template.estimate(t.workload, dict(config), t.target) > 0
        except Exception as e:  # any template may meet any log
            log.info("%s: a recorded config is left out (%s)", t.template.name, e)
            return False

    def __len__(self) -> int:
        return len(self.configs)

    @cached_property
    def estimates(self) -> np.ndarray:
        """float64[n], seconds by the analytic model. Raises TuningError for what is no time."""
        t = self.task
        found = np.array([t.template.estimate(t.workload, c, t.target) for c in self.configs], dtype=np.float64)
        for i in np.flatnonzero(~(np.isfinite(found) & (found > 0)))[:1]:
            hint = "Templates without a model of their speed return the same number for every config."
            raise TuningError(f"template '{t.template.name}', estimate of {self.keys[i]}", str(found[i]), "seconds above 0", hint)
        return found

    @cached_property
    def features(self) -> np.ndarray:
        """float32[n, width]: the template's features and, last, the logarithm of the estimate."""
        t = self.task
        rows = [np.asarray(t.template.features(t.workload, c, t.target), dtype=np.float32) for c in self.configs]
        return np.column_stack([np.stack(rows), np.log(self.estimates)]).astype(np.float32)

    @cached_property
    def _lines(self) -> list[list[list[int]]]:
        """Per config and knob: the configs that differ in this knob only, itself among them, by the knob's order."""
        knobs = sorted({k for c in self.configs for k in c})
        orders = [_order([c.get(k) for c in self.configs]) for k in knobs]
        ranks = [tuple(o[canonical(c.get(k))] for k, o in zip(knobs, orders, strict=True)) for c in self.configs]
        out: list[list[list[int]]] = [[] for _ in self.configs]
        for knob in range(len(knobs)):
            lines: dict[tuple[int, ...], list[int]] = {}
            for i, r in enumerate(ranks):
                lines.setdefault(r[:knob] + r[knob + 1 :], []).append(i)
            for line in lines.values():
                line.sort(key=lambda i: ranks[i][knob])
                for i in line:
                    out[i].append(line)
        return out

    def neighbours(self, i: int) -> dict[int, int]:
        """Configs that differ from ``i`` in a single knob, with the number of legal steps to them; 1 is adjacent."""
        return {j: abs(line.index(j) - line.index(i)) for line in self._lines[i] for j in line if j != i}


def _order(values: Sequence[Any]) -> dict[str, int]:
    """Rank of a knob's values: numbers (and lists of them) by size, anything else by first appearance."""
    unique = list({canonical(v): v for v in values}.items())
    try:
        unique.sort(key=lambda kv: kv[1])
    except TypeError:
        pass
    return {key: rank for rank, (key, _) in enumerate(unique)}
