"""Tuning records as lines of text: one trial, or the verdict on one task. Format: docs/log-format.md."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

Status = Literal["ok", "invalid_config", "compile_error", "compile_timeout", "run_timeout", "crash", "wrong_answer"]
STATUSES: tuple[Status, ...] = get_args(Status)
VERSION = 1


def canonical(value: Any) -> str:
    """Canonical JSON text: equal values have equal text, whatever the order of their keys."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=_plain)


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else list(value)


@dataclass(frozen=True)
class Record:
    """One trial. ``costs_s`` are seconds per run, None unless ``status`` is ok; ``error`` says why it is not."""

    template: str
    workload: Mapping[str, Any]
    target: Mapping[str, Any]
    config: Mapping[str, Any]
    status: Status
    costs_s: tuple[float, ...] | None
    mode: Literal["hot", "cold"] = "hot"
    time: str = ""
    run: str = ""
    seed: int = 0
    versions: Mapping[str, str] = field(default_factory=dict)
    error: str = ""

    @property
    def cost_s(self) -> float:
        """Median of the measured seconds; infinity for a failed trial."""
        return statistics.median(self.costs_s) if self.costs_s else float("inf")

    @property
    def workload_key(self) -> str:
        """Canonical text of the workload, as ``schedules.template.Workload.key``."""
        return canonical(self.workload)

    def line(self) -> str:
        """The record as one line of a log, without the newline."""
        d: dict[str, Any] = {"v": VERSION, "time": self.time, "run": self.run, "seed": self.seed, "template": self.template}
        d |= {"workload": self.workload, "target": self.target, "config": self.config, "status": self.status}
        d |= {"costs_s": list(self.costs_s) if self.costs_s else None, "mode": self.mode, "versions": self.versions}
        if self.error:
            d["error"] = self.error
        return json.dumps(d, separators=(",", ":"), default=_plain)


@dataclass(frozen=True)
class Verdict:
    """The best config of one task when its tuning stopped; it settles every earlier line of that task.

    ``done`` says why the task is finished (trials, budget, converged, roofline, exhausted, negligible);
    None when it was interrupted, so that the next run goes on with it. ``default_s`` is None where the default failed.
    """

    template: str
    workload: Mapping[str, Any]
    target: Mapping[str, Any]
    config: Mapping[str, Any]
    cost_s: float
    default_s: float | None
    trials: int
    done: str | None
    mode: Literal["hot", "cold"] = "hot"
    time: str = ""
    run: str = ""

    @property
    def workload_key(self) -> str:
        """Canonical text of the workload."""
        return canonical(self.workload)

    def line(self) -> str:
        """The verdict as one line of a log, without the newline."""
        d: dict[str, Any] = {"v": VERSION, "done": self.done, "time": self.time, "run": self.run, "template": self.template}
        d |= {"workload": self.workload, "target": self.target, "config": self.config, "cost_s": self.cost_s}
        d |= {"default_s": self.default_s, "trials": self.trials, "mode": self.mode}
        return json.dumps(d, separators=(",", ":"), default=_plain)


Line = Record | Verdict


def parse(text: str) -> Line | None:
    """One line of a log; None when it is damaged or of a newer version (never raises)."""
    try:
        d = json.loads(text)
        return _READERS[d["v"]](d)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def _mappings(d: Mapping[str, Any]) -> dict[str, Any]:
    """The three objects that name a task and a config; raises TypeError when one is not an object."""
    for name in ("workload", "target", "config"):
        if not isinstance(d[name], dict):
            raise TypeError(name)
        _check_numbers(d[name])
    target = d["target"]
    if any(not isinstance(f, str) for f in target["features"]):
        raise TypeError("target")
    if not isinstance(target["arch"], str) or not isinstance(target["features"], list) or not isinstance(target["threads"], int):
        raise TypeError("target")
    return {"template": str(d["template"]), "workload": d["workload"], "target": target, "config": d["config"]}


def _check_numbers(value: Any) -> None:
    """Raise OverflowError for a whole number that no size is."""
    if isinstance(value, int) and abs(value) >= 2**63:
        raise OverflowError(value)
    for x in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_numbers(x)


def _mode(d: Mapping[str, Any]) -> Literal["hot", "cold"]:
    return "cold" if d.get("mode") == "cold" else "hot"


def _read_v1(d: Mapping[str, Any]) -> Line:
    common = _mappings(d) | {"mode": _mode(d), "time": str(d.get("time", "")), "run": str(d.get("run", ""))}
    if "done" in d:
        done = None if d["done"] is None else str(d["done"])
        return Verdict(
            **common, cost_s=_seconds(d["cost_s"]), default_s=_seconds(d["default_s"]), trials=int(d["trials"]), done=done
        )
    if d["status"] not in STATUSES:
        raise ValueError(d["status"])
    costs = tuple(_seconds(c) for c in d["costs_s"]) if d["status"] == "ok" else None
    if costs == ():
        raise ValueError("an ok trial without a cost")
    more: dict[str, Any] = {
        "seed": int(d.get("seed", 0)),
        "versions": dict(d.get("versions") or {}),
        "error": str(d.get("error", "")),
    }
    return Record(**common, status=d["status"], costs_s=costs, **more)


def _seconds(value: Any) -> float:
    x = float(value)
    if not 0 < x < float("inf"):
        raise ValueError(value)
    return x


# Every version that was ever written stays here for ever.
_READERS: Mapping[int, Callable[[Mapping[str, Any]], Line]] = {1: _read_v1}
