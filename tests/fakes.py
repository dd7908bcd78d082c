"""Stand-ins for the tuner's four roles, with scripted answers: no compiler, no clock, no chance."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilegrad._base.target import Target
from tilegrad.schedules.template import Workload
from tilegrad.tuner.interfaces import Built, Outcome
from tilegrad.tuner.task import Task
from tilegrad.tuning_logs import Line, Record, Verdict, canonical

TARGET = Target("x86_64", ("avx", "avx2", "fma"), threads=2, cpu="fake")


@dataclass
class FakeTemplate:
    """Knobs ``a`` and ``b``; the analytic model expects a + 2 b milliseconds. The default is the first config."""

    knobs: Mapping[str, Sequence[Any]] = field(default_factory=lambda: {"a": (1, 2, 4, 8), "b": (0, 1, 2)})
    name: str = "fake/1"
    pick: Mapping[str, Any] | None = None

    def space(self, workload: Workload, target: Target) -> list[dict[str, Any]]:
        return [dict(zip(self.knobs, values, strict=True)) for values in itertools.product(*self.knobs.values())]

    def default(self, workload: Workload, target: Target) -> dict[str, Any]:
        return dict(self.pick) if self.pick is not None else (self.space(workload, target) or [{}])[0]

    def estimate(self, workload: Workload, config: Mapping[str, Any], target: Target) -> float:
        return 1e-3 * (float(config["a"]) + 2 * float(config["b"]))

    def features(self, workload: Workload, config: Mapping[str, Any], target: Target) -> np.ndarray:
        return np.array([config["a"], config["b"]], dtype=np.float32)


def task(name: str = "matmul", weight: int = 1, template: Any = None, flops: int = 10**9, **fields: Any) -> Task:
    """A task of a workload that nothing implements."""
    return Task(template or FakeTemplate(), Workload(name, {"m": 128, **fields}, flops, 4096), None, TARGET, weight)


Script = Callable[[Task, dict[str, Any]], float | str]
"""Seconds of a config, or the status of its failure."""


def table(answers: Mapping[str, float | str], otherwise: float | str = 1.0) -> Script:
    """A script by canonical config text, e.g. ``{'{"a":1,"b":0}': 0.5}``."""
    return lambda task, config: answers.get(canonical(config), otherwise)


class FakeBuilder:
    """ "Compiles" to a path that says what it is; statuses of the script that are the compiler's fail here."""

    def __init__(self, script: Script = lambda task, config: 1.0) -> None:
        self.script, self.built, self.closed = script, [], 0
        self.known: dict[str, tuple[Task, dict[str, Any]]] = {}

    def build(self, task: Task, configs: Sequence[Mapping[str, Any]]) -> list[Built]:
        out = []
        for config in configs:
            answer, path = self.script(task, dict(config)), f"{task.key}|{canonical(config)}"
            self.built.append(path)
            self.known[path] = (task, dict(config))
            failed = answer in ("invalid_config", "compile_error", "compile_timeout")
            out.append(Built(None, answer, "scripted") if failed else Built(path))
        return out

    def close(self) -> None:
        self.closed += 1


class FakeRunner:
    """Answers with the script's seconds, three times each. ``references``: what the reference kernel takes, in order."""

    def __init__(self, builder: FakeBuilder, references: Sequence[float] = (), stop_after: int | None = None) -> None:
        self.builder, self.measured, self.compared, self.closed = builder, [], [], 0
        self._references, self.stop_after = iter(references), stop_after

    def measure(self, task: Task, paths: Sequence[str], reference: str | None, best_s: float | None) -> Iterator[Outcome]:
        for path in paths:
            if self.stop_after is not None and len(self.measured) >= self.stop_after:
                raise KeyboardInterrupt
            self.measured.append(path)
            yield self._answer(path)

    def compare(self, task: Task, paths: Sequence[str], seconds: float | None = None) -> list[Outcome]:
        self.compared.append(list(paths))
        return [self._answer(p) for p in paths]

    def _answer(self, path: str) -> Outcome:
        answer = self.builder.script(*self.builder.known[path])
        if isinstance(answer, str):
            return Outcome(answer, None, f"scripted {answer}")
        return Outcome("ok", (answer,) * 3, reference_s=next(self._references, None))

    def close(self) -> None:
        self.closed += 1


class FakeDatabase:
    """A list in memory."""

    def __init__(self, lines: Sequence[Line] = (), hints: Sequence[dict[str, Any]] = ()) -> None:
        self.lines, self._hints = list(lines), list(hints)

    def recall(self, task: Task) -> dict[str, Record]:
        return {canonical(r.config): r for r in self.lines if isinstance(r, Record) and r.workload_key == task.workload.key}

    def hints(self, task: Task) -> list[dict[str, Any]]:
        return self._hints

    def related(self, task: Task) -> list[Record]:
        return []

    def recorded(self, task: Task) -> list[dict[str, Any]]:
        return [dict(r.config) for r in self.recall(task).values() if r.status == "ok"]

    def verdict(self, task: Task) -> Verdict | None:
        found = [v for v in self.lines if isinstance(v, Verdict) and v.workload_key == task.workload.key]
        return found[-1] if found else None

    def append(self, line: Line) -> None:
        self.lines.append(line)

    @property
    def trials(self) -> list[Record]:
        return [r for r in self.lines if isinstance(r, Record)]

    @property
    def verdicts(self) -> list[Verdict]:
        return [v for v in self.lines if isinstance(v, Verdict)]


class FakeXGBoost:
    """The three calls of xgboost that the tuner uses: predicts the label of the nearest row."""

    class DMatrix:
        def __init__(self, x: np.ndarray, label: Any = None, weight: Any = None) -> None:
            self.x, self.label = np.asarray(x), label

    class _Booster:
        def __init__(self, data: Any) -> None:
            self.data = data

        def predict(self, data: Any) -> np.ndarray:
            gaps = ((data.x[:, None, :] - self.data.x[None, :, :]) ** 2).sum(-1)
            return np.asarray(self.data.label)[gaps.argmin(1)]

    def train(self, parameters: Any, data: Any, num_boost_round: int) -> Any:
        return self._Booster(data)
