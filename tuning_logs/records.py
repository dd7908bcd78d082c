"""Tuning records: one JSON line per trial; reading, appending and looking up. Format: docs/log-format.md."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["ok", "invalid_config", "compile_error", "compile_timeout", "run_timeout", "crash", "wrong_answer"]


@dataclass(frozen=True)
class Record:
    """One trial. ``costs_s`` are seconds per run, None unless ``status`` is ok."""

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

    @property
    def cost_s(self) -> float:
        """Median of the measured seconds; infinity for a failed trial."""
        return statistics.median(self.costs_s) if self.costs_s else float("inf")

    @property
    def workload_key(self) -> str:
        """Canonical text of the workload, as ``schedules.template.Workload.key``."""
        return json.dumps(self.workload, sort_keys=True, separators=(",", ":"))

    def line(self) -> str:
        """The record as one line of a log, without the newline."""
        d = {"v": 1, "time": self.time, "run": self.run, "seed": self.seed, "template": self.template, "workload": dict(self.workload)}
        d |= {"target": dict(self.target), "config": dict(self.config), "status": self.status}
        d |= {"costs_s": list(self.costs_s) if self.costs_s else None, "mode": self.mode, "versions": dict(self.versions)}
        return json.dumps(d, separators=(",", ":"))
