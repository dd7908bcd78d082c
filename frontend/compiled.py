"""``compile``: a function or module as a library for given input shapes. What is called is what is exported."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tilegrad._base.errors import LibraryError, UsageError
from tilegrad._base.target import Target
from tilegrad.frontend import evaluate
from tilegrad.frontend.batches import Batches, forms
from tilegrad.frontend.calling import BoundEntry, as_array
from tilegrad.frontend.gradients import unflatten
from tilegrad.frontend.recording import grad_mode
from tilegrad.frontend.tensor import Tensor
from tilegrad.frontend.tracing import (
    Signature,
    States,
    build_graph,
    examples,
    input_names,
    named_outputs,
    placeholders,
    signature,
)
from tilegrad.relax_ext.driver import Build, Logs, build_graphs, plain_recipe
from tilegrad.relax_ext.graph import Graph
from tilegrad.relax_ext.profile import Profile

log = logging.getLogger(__name__)


@dataclass
class Options:
    """How graphs are compiled."""

    target: Target
    logs: Logs
    num_threads: int | None
    prefix: str = "tg"
    batches: Batches | None = None

    @staticmethod
    def of(target: Any, logs: Logs, num_threads: int | None, batches: Batches | None = None) -> Options:
        """Checked at once, before any tracing."""
        return Options(Target.parse(target, num_threads), logs, num_threads, batches=batches)


class Artifact:
    """What ``Compiled`` and ``TrainStep`` share: graphs, programs, a library, and what can be asked of them.

    graphs, programs: by entry name. states: the values of parameters, buffers and optimizer state, by name; their arrays are the
    model's own.
    """

    NAMES: tuple[str, ...]
    """What can be called; the entries' names, but for the batch at their end where there are several."""

    def __init__(self, graphs: Mapping[str, Graph], states: States, example: Sequence[np.ndarray], options: Options) -> None:
        self.graphs = dict(graphs)
        self.families = options.batches.families(self.NAMES) if options.batches else {}
        self.options = options
        self._states = states
        self._example = list(example)
        self.build: Build = build_graphs(
            self.graphs, options.target, options.logs, options.num_threads, options.prefix, self.families
        )
        self._entries: dict[tuple[str, int | None], BoundEntry] = {}

    @property
    def programs(self) -> Mapping[str, Any]:
        """Kernel calls over planned buffers, by entry."""
        return self.build.programs

    @property
    def library(self) -> Any:
        """The shared library."""
        return self.build.library

    @property
    def target(self) -> Target:
        """The machine it is made for."""
        return self.options.target

    @property
    def states(self) -> dict[str, np.ndarray]:
        """Every state and hyperparameter that an entry uses, by name: the arrays in use, not copies."""
        used = {p.name for g in self.graphs.values() for p in g.inputs if p.role != "input"}
        return {name: a for name, a in self._bound().items() if name in used}

    def _bound(self) -> dict[str, np.ndarray]:
        return self._states.arrays()

    def bound(self, entry: str, batch: int | None = None) -> BoundEntry:
        """The entry, or family for a batch, bound to the states (a context is made at first use)."""
        if (entry, batch) not in self._entries:
            if not self.target.is_native:
                raise LibraryError(
                    f"entry '{entry}'", f"code for {self.target.arch}", "a target that this machine runs", "Export it."
                )
            if not self._entries:
                self._context = self.library.context(self.options.num_threads)
            self._entries[entry, batch] = BoundEntry(self._context, entry, self._bound(), batch)
        return self._entries[entry, batch]

    def export(self, directory: str | Path, *, c_source: bool = False, **options: Any) -> Path:
        """Write library, header, manifest, checksums and parameters to a directory; ``tilegrad.load`` needs no TVM.

        c_source: also the whole library as one file of plain C. options: see ``runtime.export``.
        """
        from tilegrad import runtime

        plain = plain_recipe(self.graphs, self.target, families=self.families) if c_source else None
        return runtime.export(self.library, directory, self.states, plain=plain, **options)

    def tune(self, **options: Any) -> Any:
        """``tilegrad.tune(self, ...)``."""
        from tilegrad.tuner import tune

        return tune(self, **options)

    def explain(self) -> str:
        """Each entry from the graph through every pass to kernel calls, as text."""
        from tilegrad.relax_ext.pipeline import explain

        return self.build.summary() + "\n\n" + "\n".join(explain(g, name) for name, g in self.graphs.items())

    def _inputs_of(self, entry: str, inputs: Sequence[Any] | None) -> list[np.ndarray]:
        """Those given, or the example's, repeated or cut to the entry's batch."""
        ports = [p for p in self.library.ports(entry) if p.role == "input"]
        if inputs:
            return [as_array(a) for a in inputs][: len(ports)]
        return [np.resize(a, p.shape) for a, p in zip(self._example, ports, strict=False)]

    def profile(self, *inputs: Any, entry: str | None = None, repeat: int = 10) -> Profile:
        """Where the time of an entry (the first, unless named) goes: seconds, FLOPs, bytes, template and config of every kernel
        call, each the median of ``repeat`` runs on the example inputs or those given. States are left alone. Print it, or iterate
        over its calls."""
        entry = entry or next(iter(self.graphs))
        arguments = self.bound(entry).arguments(self._inputs_of(entry, inputs))
        states = self._states.arrays()
        kept = {n: (a.copy() if n in states else a) for n, a in arguments.items()}
        return Profile.of(self.build, entry, self._context.profile(entry, kept, repeat))

    def verify(self, *inputs: Any, rtol: float = 1e-3, atol: float = 1e-4) -> Verification:
        """Compare every entry with TVM's virtual machine running the same graph with its own default kernels: outputs and
        updated states. States are left alone. Raises nothing for a difference: see ``Verification.ok``."""
        from tilegrad.frontend.execute import on_vm

        rows = []
        for entry, graph in self.graphs.items():
            given = self._inputs_of(entry, inputs)
            arguments = {n: a.copy() for n, a in self.bound(entry).arguments(given).items()}
            expected = on_vm(graph)(arguments)
            results = self._context.run(entry, arguments)
            for port in graph.outputs:
                ours = arguments[port.updates] if port.updates else results[port.name]
                rows.append((entry, port.updates or port.name, ours, expected[port.name]))
        return Verification.compare(rows, rtol, atol)


@dataclass(frozen=True)
class Verification:
    """Largest differences per output. ``ok``: all within ``atol + rtol * |expected|``."""

    rows: tuple[tuple[str, str, float, bool], ...]

    @staticmethod
    def compare(pairs: Sequence[tuple[str, str, np.ndarray, np.ndarray]], rtol: float, atol: float) -> Verification:
        """From (entry, output, ours, expected)."""
        rows = []
        for entry, name, ours, expected in pairs:
            a, b = ours.astype(np.float64), expected.astype(np.float64)
            error = float(np.max(np.abs(a - b), initial=0.0, where=np.isfinite(a) & np.isfinite(b)))
            rows.append((entry, name, error, bool(np.allclose(a, b, rtol, atol, equal_nan=True))))
        return Verification(tuple(rows))

    @property
    def ok(self) -> bool:
        """Whether every output agrees."""
        return all(good for *_, good in self.rows)

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        bad = [f"{e}.{n}: differs by {d:.3g}" for e, n, d, good in self.rows if not good]
        worst = max((d for _, _, d, _ in self.rows), default=0.0)
        return "\n".join(bad) if bad else f"{len(self.rows)} outputs agree, largest difference {worst:.3g}"


class Compiled(Artifact):
    """``f(x) -> NumPy``: returned by ``compile``. Other input shapes compile another library over the same states, cached."""

    NAMES = ("run",)

    def __init__(
        self, function: Callable[..., Any], example: Sequence[np.ndarray], options: Options, states: States | None = None
    ) -> None:
        self.function = function
        states = states or States()
        if hasattr(function, "named_parameters"):
            states.add_module(function)
        graphs: dict[str, Graph] = {}
        for suffix, types in forms(options.batches, signature(example)):
            graphs[f"run{suffix}"], self._spec, self._written = trace(function, types, states)
        super().__init__(graphs, states, example, options)
        self._variants: dict[Signature, Compiled] = {} if options.batches else {signature(example): self}

    def __call__(self, *inputs: Any) -> Any:
        """Run. Results are NumPy arrays in the structure that the function returned."""
        arrays = [x if x.__class__ is np.ndarray else as_array(x) for x in inputs]
        if len(arrays) != len(self._example):
            raise UsageError("compiled function", f"{len(arrays)} inputs", f"{len(self._example)}")
        me, batch = self, None
        if self.options.batches is not None or not fits(arrays, self._example):
            me, batch = self._for(signature(arrays))
        if evaluate.pending.live or evaluate.pending.updates:
            evaluate.protect(me._written) if me._written else evaluate.flush()
        return unflatten(me.bound("run", batch)(*arrays), me._spec)

    def _for(self, types: Signature) -> tuple[Compiled, int | None]:
        """What takes inputs of these types, and as which batch."""
        batches = self.options.batches
        if batches is not None and (batch := batches.form(signature(self._example), types)) is not None:
            return self, batch
        if types not in self._variants:
            log.info("compiling for inputs %s", types)
            example = [np.zeros(t.shape, t.dtype) for t in types]
            self._variants[types] = Compiled(self.function, example, replace(self.options, batches=None), self._states)
        return self._variants[types], None

    def recompile(self, logs: Logs = None) -> Compiled:
        """The same function and states with configs from other logs."""
        return Compiled(self.function, self._example, replace(self.options, logs=logs), self._states)


def fits(arrays: Sequence[np.ndarray], example: Sequence[np.ndarray]) -> bool:
    """Whether the arrays have the shapes and dtypes of (the first of) the examples."""
    for a, e in zip(arrays, example, strict=False):
        if a.shape != e.shape or a.dtype != e.dtype:
            return False
    return True


def trace(function: Callable[..., Any], types: Signature, states: States) -> tuple[Graph, Any, list[Tensor]]:
    """(graph of ``function`` on inputs of these types, structure of its result, states that it writes)."""
    names = input_names(function, len(types))
    with evaluate.tracing() as updates, grad_mode(True):
        args = placeholders(types)
        outputs, spec = named_outputs(function(*args), "output")
        inputs = dict(zip(names, [a._node for a in args], strict=True))
        graph = build_graph(inputs, outputs, list(updates.values()), states, {})
        written = [u.tensor for u in updates.values()]
    return graph, spec, written


def compile(
    fn: Callable[..., Any],
    example_inputs: Sequence[Any],
    target: Any = "native",
    logs: Logs = None,
    num_threads: int | None = None,
    batch_sizes: Sequence[int] | None = None,
    max_batch: int | Sequence[int] | None = None,
) -> Compiled:
    """Compile a function of Tensors, or a Module, for inputs of the examples' shapes and dtypes.

    Parameters
    ----------
    fn: called once, with placeholders. Parameters, buffers and Tensors with requires_grad that it uses stay variable and are
        shared with the model; other Tensors become constants.
    example_inputs: list of arrays or Tensors; only their shapes and dtypes count.
    target: ``native``, a CPU's name, LLVM flags or a Target.
    logs: None for the user's log, then the shipped ones; [] for none; paths.
    num_threads: default ``TILEGRAD_NUM_THREADS``, else the cores this process may use.
    batch_sizes: several sizes of the batch in one library over the same states. The batch is the first axis of the first input
        and of every other input whose first axis is as long in the example.
    max_batch: every batch from 1 to this one, by one entry whose loops end at the batch given. No output row may depend on other
        rows of the batch. Of several numbers the smallest that is no less than the batch has the entry: ``(8, 64)`` makes one for
        up to 8 rows beside the one for up to 64, which is slow for few.

    Raises UsageError, ShapeError and DTypeError at the user's line, TargetError, LibraryError (no C compiler).
    """
    if not callable(fn):
        raise UsageError("compile, argument 'fn'", f"a {type(fn).__name__}", "a function of Tensors, or a Module")
    arrays = examples(example_inputs, "compile")
    batches = Batches.of(batch_sizes, max_batch, arrays, "compile")
    return Compiled(fn, arrays, Options.of(target, logs, num_threads, batches))
