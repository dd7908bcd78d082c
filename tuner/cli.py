"""The commands ``tune``, ``tasks`` and ``log``. Each checks its arguments, then calls the API.

Exit codes: 0 done, 2 usage, 3 nothing tuned, 130 interrupted (every finished trial is in the log).
"""

from __future__ import annotations

import json as jsonlib
import shlex
import signal
import sys
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from tilegrad import tuning_logs
from tilegrad._base.errors import TuningError
from tilegrad.tuner.report import convergence_svg, running_best, seconds

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")
log_app = typer.Typer(no_args_is_help=True, help="Show, merge and prune tuning logs.")
app.add_typer(log_app, name="log")


class Effort(str, Enum):
    """How long to search when no number says so."""

    quick = "quick"
    normal = "normal"
    full = "full"


Model = Annotated[str, typer.Argument(metavar="MODEL", help="file.py:name or graph.tgraph", show_default=False)]
TargetOption = Annotated[
    str | None, typer.Option("--target", help="native, a CPU such as znver3, or 'llvm -mcpu=... -mattr=...'.")
]
ThreadsOption = Annotated[int | None, typer.Option("--threads", min=1, help="Threads; default: those of MODEL.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object a line on stdout.")]
Logs = Annotated[list[Path], typer.Argument(metavar="LOG...", help="Tuning logs.", exists=True, dir_okay=False)]
Output = Annotated[Path, typer.Option("--output", "-o", help="File to write.", show_default=False)]


@app.command(
    epilog="Example: [bold]tilegrad tune model.py:step -o my.jsonl --budget 60[/bold]. "
    "Ctrl-C keeps the best; the same command goes on."
)
def tune(
    model: Model,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Log to append to; default: your own, which compile reads.")
    ] = None,
    trials: Annotated[int | None, typer.Option("--trials", min=1, help="Configs measured at the most, all together.")] = None,
    budget: Annotated[float | None, typer.Option("--budget", min=1, help="Seconds at the most.")] = None,
    effort: Annotated[Effort | None, typer.Option("--effort", help="How thoroughly to search where no number says so.")] = None,
    warm_start: Annotated[
        list[Path] | None,
        typer.Option("--warm-start", help="Log to learn from, never written; may repeat.", exists=True),
    ] = None,
    target: TargetOption = None,
    threads: ThreadsOption = None,
    seed: Annotated[int, typer.Option("--seed", help="Determines the order of trials.")] = 0,
    jobs: Annotated[int | None, typer.Option("--jobs", min=1, help="Compilations at a time; default: the usable cores.")] = None,
    rpc: Annotated[str | None, typer.Option("--rpc", metavar="HOST:PORT", help="Measure on devices of this RPC tracker.")] = None,
    key: Annotated[str | None, typer.Option("--key", help="Which of the tracker's devices: all of one kind.")] = None,
    json: JsonOption = False,
    plot: Annotated[Path | None, typer.Option("--plot", help="SVG of the progress to write.")] = None,
) -> None:
    """Search for faster kernels of MODEL and write every trial to a log."""
    from tilegrad.tuner.api import Interrupted
    from tilegrad.tuner.api import tune as run
    from tilegrad.tuner.progress import listener

    if plot is not None and plot.suffix != ".svg":
        raise typer.BadParameter("the plot's name must end in .svg", param_hint="--plot")
    if (rpc is None) != (key is None):
        raise typer.BadParameter("--rpc and --key go together")
    show = listener("json", sys.stdout) if json else listener("auto")
    interrupted = False
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a polite kill saves the best, as Ctrl-C does
    try:
        report = run(
            Workloads(model, target, threads),
            trials=trials,
            budget_s=budget,
            effort=effort.value if effort else None,
            log=output,
            warm_start=warm_start or None,
            seed=seed,
            progress=show,
            jobs=jobs,
            rpc=rpc,
            key=key,
        )
    except Interrupted as e:
        report, interrupted = e.report, True
    except TuningError as e:
        typer.echo(f"error: {' '.join(str(e).split())}", err=True)
        raise typer.Exit(3) from None
    typer.echo(jsonlib.dumps({"report": report.json()}) if json else report.text())
    if plot is not None:
        report.plot(plot)
    if interrupted:
        typer.echo(f"interrupted; go on with: {shlex.join(['tilegrad', *sys.argv[1:]])}", err=True)
        raise typer.Exit(130)
    if not report.tasks:
        typer.echo("nothing to tune: the model has no kernel with more than one config", err=True)
        raise typer.Exit(3)


class Workloads:
    """The programs and target of a MODEL, lowered when asked for. Arguments are checked before the model is run."""

    def __init__(self, model: str, target: str | None, threads: int | None) -> None:
        from tilegrad import _model
        from tilegrad._base.target import Target

        spec = _model.Spec.parse(model)
        wanted = Target.parse(target, threads) if target is not None else None
        found: Any = _model.load(spec)
        own = getattr(found, "target", None)
        self.target = wanted or Target.parse(own if own is not None else "native", threads)
        self.programs = getattr(found, "programs", None) or self._lower(found.graphs)

    @staticmethod
    def _lower(graphs: Any) -> Any:
        from tilegrad.relax_ext.pipeline import lower

        return {name: lower(graph, name) for name, graph in graphs.items()}


@app.command(epilog="Example: [bold]tilegrad tasks model.py:step[/bold]")
def tasks(
    model: Model,
    log: Annotated[
        list[Path] | None,
        typer.Option("--log", exists=True, dir_okay=False, help="Look here instead of your log and the shipped ones."),
    ] = None,
    target: TargetOption = None,
    threads: ThreadsOption = None,
    json: JsonOption = False,
) -> None:
    """List the tunable kernels of MODEL: workload, calls, FLOPs, and where each config would come from."""
    from tilegrad.tuner.task import tasks_of

    w = Workloads(model, target, threads)
    records = tuning_logs.Records.load(log or None)
    found = tasks_of(w.programs, w.target)
    rows = []
    for t in found:
        hit = records.choose(t.template, t.workload, t.target)
        rows.append((t, hit))
    if json:
        for t, hit in rows:
            row = {"template": t.template.name, "workload": t.workload.json(), "calls": t.weight, "flops": t.workload.flops}
            typer.echo(jsonlib.dumps(row | {"source": hit.source, "config": hit.config}))
        return
    typer.echo(f"{'task':<60} {'calls':>5} {'MFLOP':>10} {'MB':>8} {'config':>8}")
    for t, hit in rows:
        w1 = t.workload
        typer.echo(f"{t.name:<60} {t.weight:>5} {w1.flops / 1e6:>10.2f} {w1.bytes / 1e6:>8.2f} {hit.source:>8}")
    typer.echo(records.summary())
    if records.untuned:
        typer.echo(f"tune the rest: {shlex.join(['tilegrad', 'tune', model])}")


def _read(logs: list[Path]) -> tuning_logs.Records:
    records = tuning_logs.Records.load(logs)
    if not records.lines:
        names = ", ".join(map(str, logs))
        hint = "Write one with `tilegrad tune MODEL -o LOG`."
        raise TuningError(f"tuning log {names}", "no readable line", "at least one trial", hint)
    return records


@log_app.command("show")
def log_show(logs: Logs, json: JsonOption = False) -> None:
    """Every trial, one line each, in order."""
    for line in _read(logs).lines:
        if json:
            typer.echo(line.line())
        elif isinstance(line, tuning_logs.Record):
            cost = seconds(line.cost_s) if line.costs_s else line.status
            typer.echo(f"{line.time} {line.template} {_short(line.workload)} {jsonlib.dumps(dict(line.config))} {cost}")
        else:
            state = f"finished ({line.done})" if line.done else "interrupted"
            typer.echo(f"{line.time} {line.template} {_short(line.workload)} {state}: {seconds(line.cost_s)}")


@log_app.command("best")
def log_best(logs: Logs, json: JsonOption = False) -> None:
    """The best config of every task."""
    for b in tuning_logs.best(_read(logs).lines):
        if json:
            row = {"template": b.template, "workload": b.workload, "target": b.target, "config": b.config}
            typer.echo(jsonlib.dumps(row | {"cost_s": b.cost_s, "default_s": b.default_s, "done": b.done, "trials": b.trials}))
        else:
            gain = f" {b.default_s / b.cost_s:.2f}x of default" if b.default_s else ""
            typer.echo(f"{b.template} {_short(b.workload)} {jsonlib.dumps(dict(b.config))} {seconds(b.cost_s)}{gain}")


@log_app.command("merge")
def log_merge(logs: Logs, output: Output) -> None:
    """All lines of several logs in the order of their time, each once."""
    merged = tuning_logs.merge(*(tuning_logs.read(p).lines for p in logs))
    typer.echo(f"{tuning_logs.write(output, merged)} lines in {output}")


@log_app.command("prune")
def log_prune(
    logs: Logs, output: Output, keep: Annotated[int, typer.Option("--keep", min=1, help="Fastest trials kept for each task.")] = 1
) -> None:
    """Keep only what look-up needs: each task's verdict and its fastest trials."""
    lines = _read(logs).lines
    typer.echo(f"{tuning_logs.write(output, tuning_logs.prune(lines, keep))} of {len(lines)} lines in {output}")


@log_app.command("stats")
def log_stats(logs: Logs, json: JsonOption = False) -> None:
    """Trials by status and template, tasks, machines."""
    records = _read(logs)
    s = tuning_logs.stats(records.lines)
    if json:
        typer.echo(jsonlib.dumps(vars(s) | {"skipped": records.skipped}))
        return
    typer.echo(f"{s.trials} trials of {s.tasks} tasks, {s.finished} finished")
    for counts in (s.by_status, s.by_template):
        typer.echo("  " + ", ".join(f"{n} {name}" for name, n in sorted(counts.items(), key=lambda kv: -kv[1])))
    for machine in s.machines:
        typer.echo(f"  {machine}")


@log_app.command("plot")
def log_plot(logs: Logs, output: Output) -> None:
    """An SVG of the best speed over trials, one line a task."""
    if output.suffix != ".svg":
        raise typer.BadParameter("the plot's name must end in .svg", param_hint="--output")
    groups: dict[str, list[tuning_logs.Record]] = {}
    for r in _read(logs).trials:
        groups.setdefault(f"{r.template} {_short(r.workload)}", []).append(r)
    curves = {}
    for name, trials in groups.items():
        first = next((r.cost_s for r in trials if r.costs_s), None)
        curves[name] = running_best(tuple(r.cost_s if r.costs_s else None for r in trials), first)
    output.write_text(convergence_svg({k: c for k, c in curves.items() if c}))
    typer.echo(str(output))


def _short(workload: Any) -> str:
    return " ".join(f"{k}={jsonlib.dumps(v) if not isinstance(v, str) else v}" for k, v in workload.items())
