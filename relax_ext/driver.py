"""Graphs -> Library: lower, pick configs from the logs, schedule, build. The one road that every user call takes."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilegrad import runtime, schedules, tuning_logs
from tilegrad._base.target import Target
from tilegrad.relax_ext.graph import Graph
from tilegrad.relax_ext.pipeline import lower
from tilegrad.runtime.program import Program

log = logging.getLogger(__name__)

Logs = Sequence[str | Path] | str | Path | None
"""None: the user's log, then the shipped ones. []: none, the analytic default everywhere. Paths: those."""


@dataclass(frozen=True)
class Choice:
    """Which config a kernel got and where it came from (see ``tuning_logs.SOURCES``)."""

    template: str
    workload: schedules.Workload
    config: schedules.Config
    source: str


@dataclass(frozen=True)
class Build:
    """A library with the Programs and choices that made it."""

    library: runtime.Library
    programs: Mapping[str, Program]
    choices: Mapping[str, Choice]

    def summary(self) -> str:
        """One line: how many kernels came from where."""
        sources = [c.source for c in self.choices.values()]
        counts = ", ".join(f"{sources.count(s)} {s}" for s in sorted(set(sources)))
        return f"{len(sources)} kernels: {counts}"


def build_graphs(
    graphs: Mapping[str, Graph],
    target: str | dict[str, Any] | Target = "native",
    logs: Logs = None,
    num_threads: int | None = None,
    prefix: str = "tg",
) -> Build:
    """Compile named Graphs into one Library whose entries share states by name.

    Raises TargetError, UnsupportedOperatorError (all operators at once), LibraryError (no compiler).
    """
    machine = Target.parse(target, num_threads)
    programs = {name: lower(graph, name) for name, graph in graphs.items()}
    return build_programs(programs, machine, logs, prefix)


def build_programs(programs: Mapping[str, Program], target: Target, logs: Logs = None, prefix: str = "tg") -> Build:
    """Schedule every distinct kernel once and build the Library."""
    kernels = {name: func for p in programs.values() for name, func in p.kernels.items()}
    records = tuning_logs.Records.load(logs)
    choices = {name: choose(func, target, records) for name, func in kernels.items()}
    scheduled = {name: schedules.schedule(func, target, choices[name].config) for name, func in kernels.items()}
    build = Build(runtime.build(programs, scheduled, target, prefix=prefix), programs, choices)
    log.info("%s", build.summary())
    return build


def choose(func: Any, target: Target, records: tuning_logs.Records) -> Choice:
    """The best known config of a kernel, else its template's analytic default."""
    template, workload = schedules.task_of(func)
    hit = records.choose(template, workload, target)
    return Choice(template.name, workload, hit.config, hit.source)


def compile_graphs(
    graphs: Mapping[str, Graph],
    target: str | dict[str, Any] | Target = "native",
    logs: Logs = None,
    num_threads: int | None = None,
    prefix: str = "tg",
) -> runtime.Library:
    """``build_graphs`` for callers that need only the Library."""
    return build_graphs(graphs, target, logs, num_threads, prefix).library
