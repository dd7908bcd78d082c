"""Report: what a tuning session achieved, as data, text and a plot."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tilegrad._base.errors import UsageError
from tilegrad.tuner.events import Row
from tilegrad.tuning_logs import canonical

NEGLIGIBLE_S = 20e-6
"""Kernels of microseconds take longer among others, whose data fill the caches: smaller differences are not worth a word."""


@dataclass(frozen=True)
class TaskResult:
    """One task: its row, the config recorded as best, and the seconds of each trial in order (None: it failed)."""

    row: Row
    template: str
    workload: Mapping[str, Any]
    config: Mapping[str, Any] | None
    costs_s: tuple[float | None, ...] = ()
    error: str = ""
    in_program_s: float | None = None
    """Seconds of one call inside the whole program, where that was measured."""

    @property
    def key(self) -> str:
        """As ``Task.key``."""
        return f"{self.template} {canonical(self.workload)}"

    def json(self) -> dict[str, Any]:
        """A JSON object for machines."""
        r = self.row
        return {
            "task": r.name, "template": self.template, "workload": dict(self.workload), "weight": r.weight,
            "config": dict(self.config) if self.config is not None else None, "default_s": r.default_s, "best_s": r.best_s,
            "gflops": r.gflops, "of_default": r.of_default, "trials": r.trials, "errors": r.errors, "saved_ms": r.saved_ms,
            "in_program_s": self.in_program_s, "done": r.done,
        }  # fmt: skip


@dataclass(frozen=True)
class Report:
    """All tasks of a session. ``interrupted`` sessions go on when started again with the same log."""

    tasks: tuple[TaskResult, ...]
    seconds: float = 0.0
    log: str | None = None
    interrupted: bool = False
    notices: tuple[str, ...] = field(default=())

    @property
    def trials(self) -> int:
        """Trials of all tasks, those recalled from the log included."""
        return sum(t.row.trials for t in self.tasks)

    @property
    def errors(self) -> int:
        """Failed trials of all tasks."""
        return sum(t.row.errors for t in self.tasks)

    @property
    def saved_ms(self) -> float:
        """Milliseconds saved per run of the whole model, against the defaults."""
        return sum(t.row.saved_ms for t in self.tasks)

    def inside(self, seconds: Mapping[str, float], factor: float) -> Report:
        """With the seconds of a call inside the whole program, by task key; a notice for each cost that it exceeds by
        ``factor``."""
        tasks = tuple(replace(t, in_program_s=seconds.get(t.key)) for t in self.tasks)
        notes = list(self.notices)
        for t in tasks:
            if t.in_program_s and t.row.best_s and t.in_program_s > max(factor * t.row.best_s, t.row.best_s + NEGLIGIBLE_S):
                notes.append(
                    f"{t.row.name}: takes {t.in_program_s / t.row.best_s:.2f} times its recorded cost inside the program"
                )
        return replace(self, tasks=tasks, notices=tuple(notes))

    def json(self) -> dict[str, Any]:
        """A JSON object for machines."""
        return {
            "tasks": [t.json() for t in self.tasks], "seconds": self.seconds, "log": self.log, "interrupted": self.interrupted,
            "trials": self.trials, "errors": self.errors, "saved_ms": self.saved_ms, "notices": list(self.notices),
        }  # fmt: skip

    def text(self) -> str:
        """A table for people, the largest saving first, and a line of totals."""
        rows = sorted((t.row for t in self.tasks), key=lambda r: -r.saved_ms)
        heads = f"{'GFLOP/s':>8} {'speed':>6} {'trials':>6} {'errors':>6} {'saved ms':>9}  done"
        lines = [f"{'task':<60} {'calls':>5} {'default':>10} {'best':>10} {heads}"]
        for r in rows:
            speed = f"{r.of_default:.2f}x" if r.of_default else "-"
            gflops = f"{r.gflops:.1f}" if r.gflops else "-"
            lines.append(
                f"{r.name:<60} {r.weight:>5} {seconds(r.default_s):>10} {seconds(r.best_s):>10} {gflops:>8} {speed:>6} "
                f"{r.trials:>6} {r.errors:>6} {r.saved_ms:>9.3f}  {r.done or '-'}"
            )
        total = f"{len(rows)} tasks, {self.trials} trials, {self.errors} errors, {self.seconds:.0f} s"
        total += f"; saves {self.saved_ms:.3f} ms per run" + (f"; log {self.log}" if self.log else "")
        return "\n".join([*lines, *self.notices, total])

    __str__ = text

    def plot(self, path: str | os.PathLike[str]) -> Path:
        """Write an SVG: best time so far over trials, one line per task, relative to its default. Returns the path."""
        p = Path(path)
        if p.suffix.lower() != ".svg":
            raise UsageError("Report.plot, argument 'path'", f"'{p}'", "a name that ends in .svg")
        curves = {f"{t.row.index + 1}. {t.row.name}": running_best(t.costs_s, t.row.default_s) for t in self.tasks}
        p.write_text(convergence_svg({k: c for k, c in curves.items() if c}))
        return p


def seconds(value: float | None) -> str:
    """Seconds with a unit that suits their size."""
    if value is None:
        return "-"
    for scale, unit in ((1.0, "s"), (1e-3, "ms")):
        if value >= scale:
            return f"{value / scale:.3f} {unit}"
    return f"{value * 1e6:.2f} us"


def running_best(costs: tuple[float | None, ...], default_s: float | None) -> list[float]:
    """Default's time over the best so far, after each trial; 1 until something better is found."""
    if not default_s:
        return []
    out, best = [], default_s
    for c in costs:
        best = min(best, c) if c is not None else best
        out.append(default_s / best)
    return out


_COLOURS = ("#1b6ca8", "#c8553d", "#588157", "#8e6c8a", "#b8860b", "#2a9d8f", "#6d597a", "#444444")


def convergence_svg(curves: Mapping[str, list[float]], width: int = 760, height: int = 420) -> str:
    """An SVG of step curves: x trials, y speed against the default."""
    longest = max((len(c) for c in curves.values()), default=1)
    top = max((max(c) for c in curves.values()), default=1.0) * 1.05
    left, bottom, right, head = 56, 40 + 16 * len(curves), 16, 24
    w, h = width - left - right, height - head - 40
    x = lambda i: left + w * i / max(longest - 1, 1)  # noqa: E731
    y = lambda v: head + h * (1 - (v - 1.0) / max(top - 1.0, 1e-9))  # noqa: E731
    size = f'width="{width}" height="{height + bottom - 40}"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">']
    parts.append('<rect width="100%" height="100%" fill="white"/>')
    parts.append(f'<text x="{left}" y="16">speed against the default over trials</text>')
    for k in range(5):
        v = 1.0 + (top - 1.0) * k / 4
        parts.append(f'<line x1="{left}" x2="{left + w}" y1="{y(v):.1f}" y2="{y(v):.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 6}" y="{y(v) + 4:.1f}" text-anchor="end">{v:.2f}x</text>')
        i = round((longest - 1) * k / 4)
        parts.append(f'<text x="{x(i):.1f}" y="{head + h + 18}" text-anchor="middle">{i + 1}</text>')
    for n, (name, curve) in enumerate(curves.items()):
        colour = _COLOURS[n % len(_COLOURS)]
        points = [f"M{x(0):.1f},{y(curve[0]):.1f}"] + [f"H{x(i):.1f}V{y(v):.1f}" for i, v in enumerate(curve) if i]
        parts.append(f'<path d="{"".join(points)}" fill="none" stroke="{colour}" stroke-width="2"/>')
        label = name.replace("&", "&amp;").replace("<", "&lt;")
        parts.append(f'<text x="{left}" y="{head + h + 40 + 16 * n}" fill="{colour}">{label} ({curve[-1]:.2f}x)</text>')
    return "\n".join([*parts, "</svg>", ""])
