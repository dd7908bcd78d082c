"""Listeners that show a session to a person or a program: a live table, plain lines, JSON lines."""

from __future__ import annotations

import json
import sys
import time
from typing import IO, Any

from tilegrad.tuner.events import Event, Listener, Row
from tilegrad.tuner.report import seconds


def listener(form: str = "auto", stream: IO[str] | None = None) -> Listener:
    """``table`` on a terminal, ``lines`` elsewhere (``auto`` chooses), or ``json``."""
    stream = stream or sys.stderr
    if form == "json":
        return JsonLines(stream)
    if form == "table" or (form == "auto" and stream.isatty()):
        return LiveTable(stream)
    return Lines(stream)


def eta(event: Event) -> str:
    """Time left, or nothing where it is not known."""
    return f", {event.eta_s:.0f} s left" if event.eta_s is not None else ""


class JsonLines:
    """Every event as one JSON object a line."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def __call__(self, event: Event) -> None:
        print(json.dumps(event.json()), file=self._stream, flush=True)


class Lines:
    """A line when a task's best improves, when it is finished, and every few seconds in between."""

    def __init__(self, stream: IO[str], every_s: float = 5.0) -> None:
        self._stream, self._every_s = stream, every_s
        self._best: dict[int, float | None] = {}
        self._count, self._spoke = 0, time.monotonic()

    def __call__(self, event: Event) -> None:
        row = event.row
        if event.kind == "start":
            self._count = len(event.rows)
            self._say(f"{len(event.rows)} tasks")
        elif event.kind == "notice":
            self._say(f"{row.name}: {event.text}" if row else event.text)
        elif event.kind == "task" and row is not None:
            self._say(f"{self._where(row)} finished ({row.done}): {describe(row)}")
        elif event.kind == "trial" and row is not None:
            improved = row.best_s != self._best.get(row.index)
            self._best[row.index] = row.best_s
            if improved or time.monotonic() - self._spoke > self._every_s:
                self._say(f"{self._where(row)}: {describe(row)} | {event.elapsed_s:.0f} s{eta(event)}")

    def _where(self, row: Row) -> str:
        return f"[Task {row.index + 1}/{self._count}] {row.name}"

    def _say(self, text: str) -> None:
        self._spoke = time.monotonic()
        print(text, file=self._stream, flush=True)


def describe(row: Row) -> str:
    """Current and best speed, gain over the default, trials and errors."""
    speed = f"{row.last_gflops:.1f}/{row.gflops:.1f} GFLOP/s" if row.gflops else seconds(row.best_s)
    gain = f", {100 * row.of_default:.0f} % of default" if row.of_default else ""
    roof = f", {100 * row.roofline:.0f} % of roofline" if row.roofline else ""
    return f"{speed}{gain}{roof}, {row.trials} trials, {row.errors} errors, saves {row.saved_ms:.3f} ms"


class LiveTable:
    """A table that is redrawn in place: one row a task, totals and time left below."""

    def __init__(self, stream: IO[str]) -> None:
        from rich.console import Console
        from rich.live import Live

        self._live = Live(console=Console(file=stream), refresh_per_second=4, transient=False)
        self._rows: dict[int, Row] = {}
        self._started = False

    def __call__(self, event: Event) -> None:
        self._rows |= {r.index: r for r in event.rows}
        if event.row is not None:
            self._rows[event.row.index] = event.row
        if event.kind == "notice":
            self._live.console.print(f"{event.row.name}: {event.text}" if event.row else event.text, markup=False)
        if not self._started and event.kind != "end":
            self._live.start()
            self._started = True
        self._live.update(self._table(event))
        if event.kind == "end":
            self._live.stop()

    def _table(self, event: Event) -> Any:
        from rich.table import Table

        table = Table(expand=False)
        table.add_column("task", overflow="ellipsis", max_width=44, no_wrap=True)
        for head in ("calls", "now/best GFLOP/s", "best", "of default", "of roofline", "trials", "errors", "saved ms"):
            table.add_column(head, justify="right", no_wrap=True)
        table.add_column("")
        for r in sorted(self._rows.values(), key=lambda r: r.index):
            current = r is event.row and event.kind == "trial"
            table.add_row(
                r.name, str(r.weight), f"{r.last_gflops:.1f}/{r.gflops:.1f}" if r.gflops else "-", seconds(r.best_s),
                f"{100 * r.of_default:.0f} %" if r.of_default else "-", f"{100 * r.roofline:.0f} %" if r.roofline else "-",
                str(r.trials), str(r.errors), f"{r.saved_ms:.3f}", r.done or ("<" if current else ""),
            )  # fmt: skip
        saved = sum(r.saved_ms for r in self._rows.values())
        table.caption = f"{event.elapsed_s:.0f} s{eta(event)}; saves {saved:.3f} ms per run. Ctrl-C stops and keeps the best."
        return table
