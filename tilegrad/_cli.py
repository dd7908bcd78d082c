"""The ``tilegrad`` command. Nothing here imports TVM until a command needs it; arguments are checked before that.

Exit codes: 0 done; 1 a TilegradError, told in one line; 2 usage; 3 nothing tuned; 130 interrupted.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tilegrad._base.errors import TilegradError
from tilegrad._base.target import Target
from tilegrad._base.version import __version__

# Commands that live in another room: name -> (module with a typer ``app`` that has the command, line for --help).
_ELSEWHERE = {
    "tune": ("tilegrad.tuner.cli", "Search for faster kernels of a model and write what was measured to a log."),
    "tasks": ("tilegrad.tuner.cli", "List a model's kernels: workload, calls, FLOPs, and whether a log knows them."),
    "log": ("tilegrad.tuner.cli", "Show, merge and prune tuning logs."),
}


class _Group(TyperGroup):
    """Loads other rooms' commands when they are called, and turns errors into one line and an exit code."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted([*super().list_commands(ctx), *_ELSEWHERE])

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in _ELSEWHERE:
            return super().get_command(ctx, cmd_name)
        module, line = _ELSEWHERE[cmd_name]
        if not getattr(ctx, "resolving", False):  # only listed in --help: do not import the room
            return typer.core.TyperCommand(cmd_name, help=line)
        group: Any = typer.main.get_command(importlib.import_module(module).app)
        return group.commands[cmd_name]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        ctx.resolving = True
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
            raise typer.Exit(130) from None
        except (TilegradError, OSError) as e:
            if ctx.params.get("traceback") or isinstance(e, BrokenPipeError):
                raise
            typer.echo(f"error: {' '.join(str(e).split())}", err=True)
            raise typer.Exit(1) from None


app = typer.Typer(
    name="tilegrad",
    cls=_Group,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tilegrad {__version__}")
        raise typer.Exit


@app.callback(epilog="Example: [bold]tilegrad compile examples/below_the_framework.py:step -o out[/bold]")
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    traceback: Annotated[bool, typer.Option("--traceback", help="Show Python's traceback of an error.")] = False,
) -> None:
    """Model code down to tuned native libraries, for training and inference.

    MODEL is [bold]file.py:name[/bold], where name is a compiled function, a training step, or a function without arguments that
    returns one; or a Graph file [bold].tgraph[/bold].
    """


Model = Annotated[str, typer.Argument(metavar="MODEL", help="file.py:name or graph.tgraph", show_default=False)]
TargetOption = Annotated[
    str | None, typer.Option("--target", help="native, a CPU such as znver3, or 'llvm -mcpu=... -mattr=...'.")
]
LogOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--log", exists=True, dir_okay=False, help="Tuning log to use instead of yours and the shipped ones; may repeat."
    ),
]
ThreadsOption = Annotated[int | None, typer.Option("--threads", min=1, help="Threads; default: the cores this process may use.")]

STATES = "Parameters (safetensors) to use instead of those that come with it."


@app.command(epilog="Example: [bold]tilegrad compile model.py:step -o out --target znver3 --log my.jsonl[/bold]")
def compile(
    model: Model,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder to write the library to; made if missing.", show_default=False)
    ],
    target: TargetOption = None,
    log: LogOption = None,
    no_logs: Annotated[bool, typer.Option("--no-logs", help="Use no tuning log at all.")] = False,
    threads: ThreadsOption = None,
    states: Annotated[Path | None, typer.Option("--states", exists=True, dir_okay=False, help=STATES)] = None,
    require_tuned: Annotated[
        bool, typer.Option("--require-tuned", help="Fail if a kernel has no record of its own in the logs.")
    ] = False,
    prefix: Annotated[
        str, typer.Option("--prefix", help="What the C functions and files are called; two models in one program differ.")
    ] = "tg",
    c_source: Annotated[bool, typer.Option("--c-source", help="Write the library as one file of plain C, too.")] = False,
) -> None:
    """Compile MODEL and export it: library, header, manifest, checksums and parameters. Loading it needs no TVM."""
    from tilegrad import _model

    logs = _logs(log, no_logs)
    if target is not None:
        Target.parse(target, threads)
    spec = _model.Spec.parse(model)
    _model.check_output(output)
    found = _model.load(spec)
    built = _model.build(found, target, logs, threads)
    if require_tuned:
        built.require_tuned()
    _model.export(found, built, output, states, prefix, c_source)
    more = f"; the rest: tilegrad tune {spec}" if built.untuned() else ""
    typer.echo(f"{built.summary()}{more}", err=True)
    typer.echo(str(output))


def _logs(log: list[Path] | None, no_logs: bool) -> list[str] | None:
    if no_logs and log:
        raise typer.BadParameter("--log and --no-logs exclude each other")
    return [] if no_logs else [str(p) for p in log] if log else None


@app.command(epilog="Example: [bold]tilegrad run out --inputs in.npz --outputs out.npz[/bold]")
def run(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="What compile or export wrote.", show_default=False)],
    inputs: Annotated[
        Path, typer.Option("--inputs", help="NPZ file with one array for each input, by name.", show_default=False)
    ],
    outputs: Annotated[Path, typer.Option("--outputs", help="NPZ file to write the outputs to.", show_default=False)],
    entry: Annotated[str | None, typer.Option("--entry", help="Which entry to run; needed where there are several.")] = None,
    threads: ThreadsOption = None,
    states: Annotated[Path | None, typer.Option("--states", exists=True, dir_okay=False, help=STATES)] = None,
    save_states: Annotated[Path | None, typer.Option("--save-states", help="File for the parameters afterwards.")] = None,
) -> None:
    """Run an exported library once on arrays from a file. Needs neither TVM nor a compiler."""
    from tilegrad import _model

    _model.run(directory, inputs, outputs, entry, threads, states, save_states)


@app.command(epilog="Example: [bold]tilegrad explain model.py:step --time[/bold]")
def explain(
    model: Model,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write instead of the terminal.")] = None,
    time: Annotated[
        bool, typer.Option("--time", help="Run it, and show where the time goes: each kernel's ms, share, GFLOP/s, GB/s, config.")
    ] = False,
    entry: Annotated[str | None, typer.Option("--entry", help="With --time: which entry; default: the first.")] = None,
    log: LogOption = None,
    threads: ThreadsOption = None,
) -> None:
    """Show MODEL on its way down: the graph, the module after each phase, the kernels, the calls over planned buffers.

    --entry, --log and --threads go with --time.
    """
    from tilegrad import _model

    logs = _logs(log, False)
    if not time and (entry or log or threads):
        raise typer.BadParameter("--entry, --log and --threads go with --time")
    spec = _model.Spec.parse(model)
    found = _model.load(spec)
    text = str(_model.profile(found, entry, logs, threads)) if time else _model.explain(found)
    if output is None:
        typer.echo(text)
    else:
        output.write_text(text + "\n")


@app.command()
def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for libraries, log and curves.")] = Path("tilegrad-demo"),
    budget: Annotated[float, typer.Option("--budget", min=1, help="Seconds of tuning for each of the two models.")] = 20,
) -> None:
    """Train, tune, export and reload an MLP and a CNN on scikit-learn's handwritten digits, in under three minutes."""
    from tilegrad.demo import main as demo_main

    demo_main.run(output, budget_s=budget)


@app.command()
def doctor() -> None:
    """Say what this machine offers, and prove that a kernel compiles and runs."""
    from tilegrad import _doctor

    if not _doctor.report():
        raise typer.Exit(1)


cache = typer.Typer(no_args_is_help=True, help="The cache of compiled kernels.")
app.add_typer(cache, name="cache")


@cache.command("info")
def cache_info() -> None:
    """Where the cache is, how many files it has and how big they are."""
    from tilegrad.runtime import cache as store

    i = store.info()
    typer.echo(f"{i.directory}: {i.files} files, {i.bytes / 2**20:.1f} MiB of at most {i.limit_bytes >> 20} MiB")


@cache.command("clear")
def cache_clear() -> None:
    """Delete every compiled kernel. They are compiled again when they are needed."""
    from tilegrad.runtime import cache as store

    gone = store.clear()
    typer.echo(f"{gone.directory}: {gone.files} files deleted, {gone.bytes / 2**20:.1f} MiB")


def main(argv: list[str] | None = None) -> None:
    """Entry point of the ``tilegrad`` command; exits the process."""
    app(args=sys.argv[1:] if argv is None else argv, prog_name="tilegrad")
