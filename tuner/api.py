"""tune: from anything with programs and a target to a report, with the real builder and runner."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from numbers import Integral, Real
from typing import Any

from tilegrad._base import settings
from tilegrad._base.errors import TargetError, UsageError
from tilegrad._base.target import Target
from tilegrad.tuner import model as cost_model
from tilegrad.tuner.database import LogDatabase
from tilegrad.tuner.events import Event, Listener
from tilegrad.tuner.in_program import REPRODUCES, ProgramCheck
from tilegrad.tuner.interfaces import Builder, Runner, Strategy
from tilegrad.tuner.peak import least_seconds
from tilegrad.tuner.report import Report
from tilegrad.tuner.session import Limits, Session
from tilegrad.tuner.strategy import Search
from tilegrad.tuner.task import Space, Task, tasks_of
from tilegrad.tuner.transfer import Pool, foreign_rows

Paths = Sequence[str | os.PathLike[str]] | str | os.PathLike[str] | None

EFFORTS: Mapping[str, Limits] = {
    "quick": Limits(trials_per_task=24, min_gain=0.03),
    "normal": Limits(trials_per_task=64, min_gain=0.01),
    "full": Limits(trials_per_task=192, min_gain=0.003),
}
NO_XGBOOST = "xgboost is not installed: searching by coordinate descent. `pip install xgboost` makes the search shorter."


class Interrupted(KeyboardInterrupt):
    """Tuning was stopped by Ctrl-C. Every finished trial is in the log; ``report`` says how far it came."""

    def __init__(self, report: Report) -> None:
        super().__init__("tuning was interrupted; the same call goes on from the log")
        self.report = report


def tasks_in(what: Any) -> list[Task]:
    """The tasks of a list of tasks, or of an object with ``programs`` and ``target`` (a Compiled, a TrainStep).

    Raises UsageError for anything else.
    """
    if isinstance(what, Sequence) and all(isinstance(t, Task) for t in what):
        return list(what)
    if hasattr(what, "programs") and hasattr(what, "target"):
        return tasks_of(what.programs, Target.parse(what.target))
    hint = "Make one with tg.compile or tg.compile_step."
    raise UsageError("tune, argument 'what'", type(what).__name__, "something with programs and a target", hint)


def limits_of(trials: int | None, budget_s: float | None, effort: str | None) -> Limits:
    """What ends the search. Raises UsageError for numbers below 1 and unknown efforts."""
    for name, value, kind, what in (("trials", trials, Integral, "whole number"), ("budget_s", budget_s, Real, "number")):
        if value is not None and (not isinstance(value, kind) or isinstance(value, bool) or not value > 0):
            raise UsageError(f"tune, argument '{name}'", repr(value), f"a positive {what}")
    if effort is not None and effort not in EFFORTS:
        raise UsageError("tune, argument 'effort'", repr(effort), f"one of {', '.join(EFFORTS)}")
    if effort is None and (trials is not None or budget_s is not None):
        return Limits(trials=trials, seconds=budget_s)
    return replace(EFFORTS[effort or "normal"], trials=trials, seconds=budget_s)


def tune(
    what: Any,
    *,
    trials: int | None = None,
    budget_s: float | None = None,
    effort: str | None = None,
    log: str | os.PathLike[str] | None = None,
    warm_start: Paths = None,
    seed: int = 0,
    progress: Listener | None = None,
    jobs: int | None = None,
    rpc: str | None = None,
    key: str | None = None,
    builder: Builder | None = None,
    runner: Runner | None = None,
) -> Report:
    """Search for the fastest configs of a model's kernels and append every trial to a log.

    Parameters
    ----------
    what: a list of Task, or anything with ``programs`` and ``target``: a compiled function, a training step.
    trials: configs measured at the most, all kernels together; those that the log already holds count.
    budget_s: seconds at the most.
    effort: "quick", "normal" (the default without a number) or "full".
    log: file that is read (finished trials are not repeated) and appended to; default: the user's log.
    warm_start: further logs to learn from; they are not written to.
    seed: determines the order of proposals.
    progress: called with an Event after each change.
    jobs: compilations at the same time; default: the usable cores. Nothing compiles while something is measured.
    rpc, key: HOST:PORT of a TVM RPC tracker and the key of its devices that measure instead of this machine; the
        target may be of another architecture. See docs/device-farm.md.
    builder, runner: others than these.

    A kernel's config is never worse than its default: the winner must beat it by more than the spread of the
    measurements. Raises TuningError when no trial succeeds or the log cannot be written, Interrupted (a
    KeyboardInterrupt with the report) on Ctrl-C, TargetError when this machine cannot run the target's code.
    """
    limits = limits_of(trials, budget_s, effort)
    if (rpc is None) != (key is None):
        raise UsageError("tune", f"rpc={rpc!r} and key={key!r}", "both, or neither")
    path = settings.user_log() if log is None else log
    extra = [] if warm_start is None else [warm_start] if isinstance(warm_start, str | os.PathLike) else list(warm_start)
    tasks = tasks_in(what)
    run = run_id(tasks, seed)
    database = LogDatabase(path, extra, run)
    try:
        if not tasks:
            return Report((), log=str(path))
        if runner is None and rpc is None:
            _check_target(tasks)
        builder, runner = _tools(builder, runner, jobs, (rpc, key, tasks[0].target) if rpc is not None and key else None)
        notices = [] if cost_model.xgboost() is not None else [NO_XGBOOST]
        check = _whole(what, builder, runner)
        session = Session(
            tasks, builder, runner, database, Strategies(database, seed), limits, listener=progress,
            roofline=_roofline(tasks, builder, runner), recheck=check, run=run, seed=seed, mode=_mode, versions=_versions(),
        )  # fmt: skip
        if progress is not None:
            for text in notices:
                progress(Event("notice", text=text))
        report = replace(session.run(), log=str(path), notices=tuple(notices))
        if check is not None:
            report = report.inside({key: found.per_call_s for key, found in check.results.items()}, REPRODUCES)
    finally:
        database.close()
    if report.interrupted:
        raise Interrupted(report)
    return report


class Strategies:
    """Makes a Search per task; those of one template learn from each other and from the database's related trials."""

    def __init__(self, database: LogDatabase, seed: int) -> None:
        self._database, self._seed, self._pool = database, seed, Pool()
        self._xgboost = cost_model.xgboost()

    def __call__(self, space: Space) -> Strategy:
        task, name = space.task, space.task.template.name
        foreign = cache(lambda: foreign_rows(task, self._database.related(task)))  # asked for after the first trials
        model = cost_model.CostModel(self._xgboost, self._seed) if self._xgboost else None
        hints = self._database.hints(task)

        def related() -> cost_model.Rows:
            return self._pool.rows(name, search, foreign())

        search = Search(space, seed=self._seed, hints=hints, model=model, related=related)
        self._pool.join(name, search)
        return search


def run_id(tasks: Sequence[Task], seed: int) -> str:
    """Equal for the same command, so that a resumed run knows its own trials."""
    text = "\n".join([str(seed), *sorted(f"{t.key} {t.target.arch} {t.target.threads}" for t in tasks)])
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def _check_target(tasks: Sequence[Task]) -> None:
    for t in tasks:
        if not t.target.is_native:
            got = f"{t.target.arch} with {' '.join(t.target.features)}"
            hint = "Tune on a machine that has it, or on several with --rpc HOST:PORT --key KEY."
            raise TargetError("tune", got, "a target whose code this machine runs", hint)
        if t.target.threads > settings.usable_cores():
            got = f"{t.target.threads} threads on {settings.usable_cores()} usable cores"
            raise TargetError("tune", got, "at most one thread a core", "Compile with num_threads=, or widen the affinity mask.")


def _tools(
    builder: Builder | None, runner: Runner | None, jobs: int | None, farm: tuple[str, str, Target] | None
) -> tuple[Builder, Runner]:
    """What is not given: this machine's compiler processes, and its runner or a farm's."""
    from tilegrad.tuner.builder import LocalBuilder
    from tilegrad.tuner.rpc import RpcRunner
    from tilegrad.tuner.runner import LocalRunner

    if builder is None:
        builder = LocalBuilder(jobs)
    if runner is None:
        if not isinstance(builder, LocalBuilder):
            raise UsageError("tune, argument 'builder'", "a builder without a runner", "both, or neither")
        try:
            runner = RpcRunner(*farm, builder.reference) if farm else LocalRunner(builder.reference)
        except BaseException:
            builder.close()
            raise
    return builder, runner


def _whole(what: Any, builder: Builder, runner: Runner) -> ProgramCheck | None:
    """The check inside the whole program, where there is one and this machine's own tools measure."""
    from tilegrad.tuner.builder import LocalBuilder
    from tilegrad.tuner.runner import LocalRunner

    if not hasattr(what, "programs") or not isinstance(builder, LocalBuilder) or not isinstance(runner, LocalRunner):
        return None
    programs = what.programs if isinstance(what.programs, Mapping) else {p.name: p for p in what.programs}
    return ProgramCheck(programs, Target.parse(what.target), runner, builder.folder)


def _roofline(tasks: Sequence[Task], builder: Builder, runner: Runner) -> Callable[[Task], float | None]:
    from tilegrad.tuner.builder import LocalBuilder
    from tilegrad.tuner.runner import LocalRunner

    peak = None
    if isinstance(builder, LocalBuilder) and isinstance(runner, LocalRunner):
        peak = runner.peak(tasks[0].target, builder.folder)
    return lambda task: least_seconds(task, peak)


def _mode(task: Task) -> Any:
    from tilegrad.tuner.runner import mode_of

    return mode_of(task)


def _versions() -> dict[str, str]:
    from tilegrad._base.tvm import tvm
    from tilegrad._base.version import __version__

    return {"tilegrad": __version__, "tvm": str(tvm.__version__)}
