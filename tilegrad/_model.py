"""MODEL on the command line: ``file.py:name`` or ``graph.tgraph`` -> something with graphs that can be compiled and exported."""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tilegrad._base.errors import LibraryError, ModelImportError, TilegradError, UsageError
from tilegrad.runtime.program import numpy_dtype

FORMS = "file.py:name or graph.tgraph"


@dataclass(frozen=True)
class Spec:
    """A checked MODEL: the file exists and has a known form. Nothing of it has been run."""

    path: Path
    name: str | None

    def __str__(self) -> str:
        return f"{self.path}:{self.name}" if self.name else str(self.path)

    @staticmethod
    def parse(text: str) -> Spec:
        """Raises UsageError for an unknown form, ModelImportError for a missing file."""
        file, _, name = text.rpartition(":") if ".py:" in text else (text, "", "")
        path = Path(file)
        known = path.suffix == ".tgraph" or (path.suffix == ".py" and name.isidentifier())
        if not known:
            hint = f"Say which object of the file: {text}:name." if path.suffix == ".py" else ""
            raise UsageError("MODEL", repr(text), FORMS, hint)
        if not path.is_file():
            raise ModelImportError(f"MODEL {text!r}", "a file that does not exist", str(path.resolve()))
        return Spec(path, name or None)


@dataclass(frozen=True)
class GraphFile:
    """A ``.tgraph`` file: one graph, compiled when it is asked for, with no parameter values of its own."""

    graphs: Mapping[str, Any]
    states: Mapping[str, np.ndarray] = field(default_factory=dict)


def load(spec: Spec) -> Any:
    """The object that MODEL names: anything with ``graphs`` (a Compiled, a TrainStep, a GraphFile).

    A function without arguments is called. Raises ModelImportError with the user's line when the file fails.
    """
    if spec.name is None:
        from tilegrad.relax_ext.graph import Graph

        return GraphFile({"main": Graph.loads(spec.path.read_text(errors="replace"))})
    found = _lookup(_execute(spec.path), spec)
    if not hasattr(found, "graphs") and inspect.isroutine(found):
        if any(p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in _parameters(found)):
            raise ModelImportError(f"MODEL {spec}", "a function with arguments", "one without arguments")
        with _user_code(spec.path):
            found = found()
    if not hasattr(found, "graphs"):
        raise ModelImportError(f"MODEL {spec}", type(found).__name__, "what tg.compile or tg.compile_step returns")
    return found


def _parameters(function: Any) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values())


def _lookup(module: Any, spec: Spec) -> Any:
    assert spec.name is not None
    try:
        return getattr(module, spec.name)
    except AttributeError:
        names = [n for n, v in vars(module).items() if not n.startswith("_") and (hasattr(v, "graphs") or inspect.isfunction(v))]
        near = difflib.get_close_matches(spec.name, names, n=3, cutoff=0.3) or names
        hint = f"Did you mean {' or '.join(near)}?" if near else "The file defines nothing that can be compiled."
        raise ModelImportError(f"MODEL {spec}", f"no name {spec.name!r}", "a name that the file defines", hint) from None


def _execute(path: Path) -> Any:
    """Run the file as a module of its own, with its folder importable, as ``python file.py`` would."""
    name = f"tilegrad_model_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.resolve().parent))
    with _user_code(path):
        spec.loader.exec_module(module)
    return module


@contextmanager
def _user_code(path: Path) -> Iterator[None]:
    """What a user's file raises becomes one ModelImportError that names their line; tilegrad's own errors pass."""
    try:
        yield
    except TilegradError:
        raise
    except (Exception, SystemExit) as e:
        line, trace = None, e.__traceback__
        while trace is not None:
            if Path(trace.tb_frame.f_code.co_filename).absolute() == path.absolute():
                line = trace.tb_lineno
            trace = trace.tb_next
        line = e.lineno if isinstance(e, SyntaxError) else line
        where = f"MODEL, file {path}" + (f", line {line}" if line else "")
        raise ModelImportError(where, f"{type(e).__name__}: {e}", "a file that runs", "--traceback shows the rest.") from e


def check_output(directory: Path) -> None:
    """Raises UsageError unless ``directory`` can be a folder that this process writes to."""
    if directory.exists() and not directory.is_dir():
        raise UsageError("--output", f"{directory}, which is a file", "a folder")
    parent = directory.resolve()
    while not parent.exists():
        parent = parent.parent
    if not (parent.is_dir() and os.access(parent, os.W_OK)):
        raise UsageError("--output", f"{directory}", "a folder that you may write to", f"{parent} does not let you.")


def build(found: Any, target: str | None, logs: Any, num_threads: int | None) -> Any:
    """The ``Build`` of every graph of ``found``: its own unless something else is asked for."""
    from tilegrad.relax_ext.driver import build_graphs

    if target is logs is num_threads is None and hasattr(found, "build"):
        return found.build
    machine: Any = target or getattr(found, "target", "native")
    return build_graphs(found.graphs, machine, logs, num_threads, families=getattr(found, "families", {}))


def export(found: Any, built: Any, output: Path, states: Path | None, prefix: str = "tg", c_source: bool = False) -> None:
    """Write the package of a ``Build``, with ``c_source`` as one file of plain C, too; ``states`` is a safetensors file of values
    other than the model's own, ``prefix`` what the C functions and files are called."""
    from tilegrad import runtime
    from tilegrad.relax_ext.driver import plain_recipe
    from tilegrad.runtime import safetensors

    values = dict(found.states)
    if states is not None:
        values |= safetensors.load(states)
    plain = plain_recipe(built.graphs, built.target, families=built.library.families) if c_source else None
    runtime.export(built.library, output, values, prefix=prefix, plain=plain)


def explain(found: Any) -> str:
    """Every graph of ``found`` from the graph through every phase to kernel calls, as text."""
    from tilegrad.relax_ext import pipeline

    return "\n".join(pipeline.explain(graph, name) for name, graph in found.graphs.items())


def profile(found: Any, entry: str | None, logs: Any = None, num_threads: int | None = None) -> Any:
    """Where the time of an entry (the first, unless named) goes: a ``Profile``, measured on the model's example inputs, or on
    made-up values where it has none. Raises LibraryError for an unknown entry."""
    from tilegrad.relax_ext.profile import Profile

    entry = pick_entry(list(found.graphs), entry or next(iter(found.graphs), None))
    if logs is num_threads is None and hasattr(found, "profile"):
        return found.profile(entry=entry)
    built = build(found, None, logs, num_threads)
    rng = np.random.default_rng(0)
    arguments = {p.name: _made_up(p, rng) for p in built.library.ports(entry) if p.role != "output"}
    arguments |= {name: value.copy() for name, value in found.states.items() if name in arguments}
    return Profile.of(built, entry, built.library.context(num_threads).profile(entry, arguments))


def _made_up(port: Any, rng: np.random.Generator) -> np.ndarray:
    """Values of a port: numbers between 0 and 1, zeros where they may be indices."""
    dtype = np.dtype(numpy_dtype(port.dtype))
    return rng.random(port.shape).astype(dtype) if dtype.kind == "f" else np.zeros(port.shape, dtype)


def run(
    directory: Path,
    inputs: Path,
    outputs: Path,
    entry: str | None = None,
    num_threads: int | None = None,
    states: Path | None = None,
    save_states: Path | None = None,
) -> None:
    """Call one entry of an exported package on the arrays of an NPZ file and write its outputs to another."""
    from tilegrad import runtime

    given = read_npz(inputs)
    loaded = runtime.load(directory, num_threads)
    if states is not None:
        loaded.restore(states)
    result = loaded.run(entry if entry in loaded.entries else pick_entry(loaded.library.names, entry), given)
    with open(outputs, "wb") as file:  # an open file, so that numpy adds no suffix to the name
        np.savez(file, **result)  # type: ignore[arg-type]
    if save_states is not None:
        loaded.save(save_states)


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an NPZ file. Raises UsageError when it is missing or is none; pickled objects are refused."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, AttributeError) as e:
        got = "a file that is none" if path.exists() else "no such file"
        raise UsageError(f"--inputs {path}", got, "an NPZ file of arrays", "numpy.savez writes one.") from e


def pick_entry(entries: Sequence[str], wanted: str | None) -> str:
    """``wanted``, or the only entry. Raises LibraryError that lists the entries."""
    if wanted is None and len(entries) == 1:
        return entries[0]
    if wanted is None or wanted not in entries:
        got = f"no entry {wanted!r}" if wanted else f"{len(entries)} entries and no --entry"
        raise LibraryError("library", got, f"one of {', '.join(sorted(entries))}")
    return wanted
