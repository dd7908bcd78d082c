"""Graphs -> Library: lower, pick configs from the logs, schedule, build. The one road that every user call takes."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tilegrad import runtime, schedules, tuning_logs
from tilegrad._base.errors import ScheduleError, TuningError
from tilegrad._base.target import Target
from tilegrad.relax_ext import build_cache
from tilegrad.relax_ext.by_rows import any_batch
from tilegrad.relax_ext.graph import Graph
from tilegrad.relax_ext.pipeline import lower
from tilegrad.relax_ext.prepack import prepack
from tilegrad.runtime.families import Family
from tilegrad.runtime.program import Program
from tilegrad.schedules.contraction import TEMPLATE as CONTRACTION
from tilegrad.schedules.finish import finish

log = logging.getLogger(__name__)

Logs = Sequence[str | Path] | str | Path | None
"""None: the user's log, then the shipped ones. []: none, the analytic default everywhere. Paths: those."""


@dataclass(frozen=True)
class Choice:
    """Which config a kernel got and where it came from (see ``tuning_logs.SOURCES``)."""

    template: str
    workload: Mapping[str, Any]
    config: Mapping[str, Any]
    source: str


class Build:
    """A library, the Graphs and target it is for, and which config each kernel got."""

    def __init__(
        self, library: runtime.Library, graphs: Mapping[str, Graph], target: Target, choices: Mapping[str, Choice]
    ) -> None:
        self.library, self.graphs, self.target, self.choices = library, graphs, target, choices

    @cached_property
    def programs(self) -> Mapping[str, Program]:
        """The Program of each Graph; lowered again when the library came from the cache."""
        return {name: lower(graph, name) for name, graph in self.graphs.items()}

    def summary(self) -> str:
        """One line: how many kernels got their config from where."""
        sources = [c.source for c in self.choices.values()]
        counts = ", ".join(f"{sources.count(s)} {s}" for s in tuning_logs.SOURCES if s in sources)
        return f"{len(sources)} kernels: {counts}"

    def untuned(self) -> list[str]:
        """Names of the kernels whose workload no log has measured: those with a default config or that of a near shape."""
        return [name for name, c in self.choices.items() if c.source in ("nearest", "default")]

    def require_tuned(self) -> None:
        """Raises TuningError that names the kernels of ``untuned``, if there are any."""
        names = self.untuned()
        if names:
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            got = f"{self.summary()}; without a record: {', '.join(names[:5])}{more}"
            raise TuningError("compile", got, "a record of every kernel for this target", "Tune it: tilegrad tune MODEL.")


def build_graphs(
    graphs: Mapping[str, Graph],
    target: str | dict[str, Any] | Target = "native",
    logs: Logs = None,
    num_threads: int | None = None,
    prefix: str = "tg",
    families: Mapping[str, Family] | None = None,
) -> Build:
    """Compile named Graphs into one Library whose entries share states by name.

    families: entries that are one function of several batch sizes (see ``runtime.build``).

    An equal build before, in any process, is found in the cache by what went into it.
    Raises UsageError (a family for any batch whose rows are not independent), TargetError, UnsupportedOperatorError (all
    operators at once), TuningError (a given log that cannot be read), LibraryError (no compiler).
    """
    machine = Target.parse(target, num_threads)
    records = tuning_logs.Records.load(logs)
    together = dict(families or {})
    key = build_cache.key(graphs, machine, prefix, build_cache.log_files(logs), together)
    found = build_cache.get(key)
    if found is not None:
        library, entry = found
        choices = {name: Choice(**c) for name, c in entry["choices"].items()}

        def recipe() -> runtime.Recipe:  # export makes other forms of the library; only then is anything lowered
            programs = {name: lower(graph, name) for name, graph in graphs.items()}
            arranged, _, kernels = _schedule(_to_any_batch(programs, together, machine), machine, records)
            return runtime.Recipe(arranged, kernels, machine, prefix, families=together)

        return Build(runtime.Library(library, entry["manifest"], recipe), graphs, machine, choices)
    programs = {name: lower(graph, name) for name, graph in graphs.items()}
    arranged, choices, scheduled = _schedule(_to_any_batch(programs, together, machine), machine, records)
    built = runtime.build(arranged, scheduled, machine, prefix=prefix, families=together)
    entry = {"manifest": built.manifest, "choices": {name: asdict(c) for name, c in choices.items()}}
    build_cache.put(key, built.path, entry)
    build = Build(built, graphs, machine, choices)
    build.programs = programs
    log.info("%s", build.summary())
    return build


def plain_recipe(
    graphs: Mapping[str, Graph],
    target: str | dict[str, Any] | Target = "native",
    prefix: str = "tg",
    families: Mapping[str, Family] | None = None,
) -> runtime.Recipe:
    """The Graphs with every kernel as plain serial loops: what ``runtime.export(..., plain=...)`` writes as C source."""
    machine = Target.parse(target, 1)
    together = dict(families or {})
    programs = {name: lower(graph, name) for name, graph in graphs.items()}
    programs = _to_any_batch(programs, together, machine, bound=False)
    funcs = {name: func for p in programs.values() for name, func in p.kernels.items()}
    kernels = {name: finish(schedules.Scheduled(func), machine) for name, func in funcs.items()}
    return runtime.Recipe(programs, kernels, machine, prefix, families=together)


def _to_any_batch(
    programs: Mapping[str, Program], families: Mapping[str, Family], target: Target, bound: bool = True
) -> dict[str, Program]:
    """The programs of families for any batch, made to take any; the others as they are."""
    most = {entry: size for family in families.values() if family.any_batch for size, entry in family.entries.items()}
    return {name: any_batch(p, most[name], target, bound) if name in most else p for name, p in programs.items()}


def _schedule(
    programs: Mapping[str, Program], target: Target, records: tuning_logs.Records
) -> tuple[dict[str, Program], dict[str, Choice], dict[str, schedules.Scheduled]]:
    """Every distinct kernel with the best known config; constants packed for theirs."""
    choices, scheduled = {}, {}
    parts = [(c, c.by_rows) for p in programs.values() for c in p.calls if c.by_rows]
    serial = {name for c, by in parts if by.parts > 1 for name in (c.kernel, by.single)}
    for name, func in {n: f for p in programs.values() for n, f in p.kernels.items()}.items():
        machine = target.with_threads(1) if name in serial else target
        template, workload = schedules.task_of(func)
        hit = records.choose(template, workload, machine)
        config, source = hit.config, hit.source
        try:
            scheduled[name] = schedules.schedule(func, machine, config)
        except ScheduleError as e:
            if source == "default":
                raise
            log.warning("kernel %s: a %s config is not legal here (%s); its default is used", name, source, e)
            config, source = template.default(workload, machine), "default"
            scheduled[name] = schedules.schedule(func, machine, config)
        choices[name] = Choice(template.name, workload.json(), config, source)
    configs = {name: dict(c.config) for name, c in choices.items() if c.template == CONTRACTION.name}
    arranged, scheduled = prepack(programs, configs, scheduled, target)
    return arranged, choices, scheduled


def compile_graphs(
    graphs: Mapping[str, Graph],
    target: str | dict[str, Any] | Target = "native",
    logs: Logs = None,
    num_threads: int | None = None,
    prefix: str = "tg",
) -> runtime.Library:
    """``build_graphs`` for callers that need only the Library."""
    return build_graphs(graphs, target, logs, num_threads, prefix).library
