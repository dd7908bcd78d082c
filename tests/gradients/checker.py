"""Gradient checks: many operators in one compiled module, directional derivatives against central differences.

For y = f(x), a random cotangent w and a random direction v: <J v, w> by central differences of y against <v, J^T w>
from the walker. The second order is the same check for x -> J^T w (in x and in w). Everything is float64.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilegrad._base.tvm import relax, tvm
from tilegrad.relax_ext.driver import build_graphs
from tilegrad.relax_ext.gradient import vjp
from tilegrad.relax_ext.graph import Graph, GraphBuilder

EPS = 1e-5


@dataclass(frozen=True)
class Arg:
    """One input: its shape and the domain it is drawn from. ``values`` (ints: an index tensor) is not differentiated."""

    shape: tuple[int, ...]
    domain: str = "normal"
    values: Any = None


@dataclass(frozen=True)
class Case:
    """One row of the table: ``build`` makes the call, or list of results, from vars."""

    op: str
    build: Callable[..., Any]
    args: tuple[Arg, ...]
    order: int = 2
    tol: float = 2e-7
    note: str = ""
    results: tuple[int, ...] | None = None
    eps: float = EPS

    @property
    def id(self) -> str:
        """Name of the test."""
        return self.op.split(".", 1)[-1] + (f"[{self.note}]" if self.note else "")


@dataclass
class Outcome:
    """Per order: (directional derivative by differences, by the walker); ``error`` when the graph could not be made."""

    pairs: dict[int, tuple[float, float]] = field(default_factory=dict)
    scale: dict[int, float] = field(default_factory=dict)
    error: Exception | None = None

    def mismatch(self, order: int) -> float:
        """Relative difference, on the scale of the inner product's terms."""
        a, b = self.pairs[order]
        return abs(a - b) / max(self.scale[order], 1e-3)


def draw(arg: Arg, rng: np.random.Generator) -> np.ndarray:
    """A sample of the argument's domain, away from the kinks that the domain's name promises to avoid."""
    n = rng.standard_normal(arg.shape)
    u = rng.uniform(0.0, 1.0, arg.shape)
    domains: dict[str, Callable[[], np.ndarray]] = {
        "normal": lambda: n,
        "small": lambda: 0.05 * n,
        "positive": lambda: 0.5 + 2.0 * u,
        "unit": lambda: 1.6 * u - 0.8,
        "above1": lambda: 1.2 + 2.0 * u,
        "away": lambda: np.sign(n) * (0.3 + np.abs(n)),  # from 0
        "fraction": lambda: np.round(3.0 * n) + 0.2 + 0.6 * u,  # from integers
        "distinct": lambda: (rng.permutation(int(np.prod(arg.shape))).reshape(arg.shape) - 3.3) * 0.37,
    }
    return np.asarray(domains[arg.domain](), "float64")


@dataclass
class _Built:
    case: Case
    prefix: str
    feeds: dict[str, np.ndarray]
    results: int = 0
    has_second: list[bool] = field(default_factory=list)
    has_first: list[bool] = field(default_factory=list)


def check(cases: Sequence[Case], seed: int = 0, transform: Callable[[Any], Any] | None = None) -> dict[str, Outcome]:
    """Run every case; one compiled module for all. ``transform`` rewrites a gradient expression (negative controls)."""
    builder, rng = GraphBuilder(), np.random.default_rng(seed)
    outcomes: dict[str, Outcome] = {}
    built: list[_Built] = []
    for i, case in enumerate(cases):
        outcomes[case.id] = Outcome()
        built.append(_Built(case, f"c{i}_", {}))
        try:
            _add(builder, built[-1], rng, transform)
        except Exception as e:  # reported by the case's own test
            outcomes[case.id].error = e
    try:
        run = compile_graph(builder.finish())
    except Exception as e:
        for b in built:
            outcomes[b.case.id].error = e
        return outcomes
    base = {k: v for b in built for k, v in b.feeds.items()}
    step = {k: rng.standard_normal(v.shape) for k, v in base.items() if v.dtype == np.float64}
    eps = {k: b.case.eps for b in built for k in b.feeds}
    moved = [{k: v + s * eps[k] * step[k] if k in step else v for k, v in base.items()} for s in (1.0, -1.0)]
    # Cotangents and second-order directions stay put in the first-order difference; x and w move in the second.
    first = [{k: (m[k] if "_x" in k else base[k]) for k in base} for m in moved]
    second = [{k: (m[k] if "_x" in k or "_w" in k else base[k]) for k in base} for m in moved]
    at, plus, minus = run(base), run(first[0]), run(first[1])
    plus2, minus2 = run(second[0]), run(second[1])
    for b in built:
        if outcomes[b.case.id].error is None:
            _compare(b, outcomes[b.case.id], base, step, at, (plus, minus), (plus2, minus2))
    return outcomes


def _add(builder: GraphBuilder, b: _Built, rng: np.random.Generator, transform: Callable[[Any], Any] | None) -> None:
    case, prefix = b.case, b.prefix
    args, xs = [], []
    for j, arg in enumerate(case.args):
        if arg.values is not None:
            value = np.asarray(arg.values)
            args.append(builder.input(f"{prefix}k{j}", value.shape, str(value.dtype)))
            b.feeds[f"{prefix}k{j}"] = value
        else:
            args.append(builder.input(f"{prefix}x{j}", arg.shape, "float64"))
            xs.append(args[-1])
            b.feeds[f"{prefix}x{j}"] = draw(arg, rng)
    made = builder.emit(case.build(*args))
    outs = (
        [builder.emit(relax.TupleGetItem(made, i)) for i in range(len(made.ty.fields))]
        if isinstance(made.ty, relax.TupleType)
        else [made]
    )
    outs = [o for o in outs if str(o.ty.dtype) == "float64"]
    b.results = len(outs)
    ws = [_extra(builder, b, f"{prefix}w{j}", o, rng) for j, o in enumerate(outs)]
    grads = vjp(builder, outs, ws, xs)
    if transform is not None:
        grads = [None if g is None else builder.emit(transform(g)) for g in grads]
    for j, o in enumerate(outs):
        builder.output(f"{prefix}y{j}", o)
    b.has_first = [g is not None for g in grads]
    for j, g in enumerate(grads):
        if g is not None:
            builder.output(f"{prefix}g{j}", g)
    if case.order >= 2:
        found = [g for g in grads if g is not None]
        us = [_extra(builder, b, f"{prefix}u{j}", g, rng) for j, g in enumerate(grads) if g is not None]
        second = vjp(builder, found, us, [*xs, *ws])
        b.has_second = [g is not None for g in second]
        for j, g in enumerate(second):
            if g is not None:
                builder.output(f"{prefix}h{j}", g)


def _extra(builder: GraphBuilder, b: _Built, name: str, like: relax.Var, rng: np.random.Generator) -> relax.Var:
    shape = tuple(int(d) for d in like.ty.shape)
    b.feeds[name] = np.asarray(rng.standard_normal(shape))
    return builder.input(name, shape, "float64")


def _compare(b: _Built, outcome: Outcome, base: dict, step: dict, at: dict, first: tuple, second: tuple) -> None:
    p, eps = b.prefix, b.case.eps
    xs = [k for k in b.feeds if k.startswith(p + "x")]
    ws = [k for k in b.feeds if k.startswith(p + "w")]
    us = [k for k in b.feeds if k.startswith(p + "u")]
    diff = [np.sum((first[0][f"{p}y{j}"] - first[1][f"{p}y{j}"]) / (2 * eps) * base[f"{p}w{j}"]) for j in range(b.results)]
    terms = [at[f"{p}g{j}"] * step[k] for j, k in enumerate(xs) if b.has_first[j]]
    outcome.pairs[1] = (float(sum(diff)), float(sum(t.sum() for t in terms)))
    outcome.scale[1] = float(sum(np.abs(t).sum() for t in terms)) if terms else 1.0
    if b.case.order >= 2:
        d2 = [
            np.sum((second[0][f"{p}g{k[len(p) + 1 :]}"] - second[1][f"{p}g{k[len(p) + 1 :]}"]) / (2 * eps) * base[k]) for k in us
        ]
        t2 = [at[f"{p}h{j}"] * step[k] for j, k in enumerate([*xs, *ws]) if b.has_second[j]]
        outcome.pairs[2] = (float(sum(d2)), float(sum(t.sum() for t in t2)))
        outcome.scale[2] = float(sum(np.abs(t).sum() for t in t2)) if t2 else 1.0


def compile_graph(graph: Graph) -> Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]:
    """An oracle that is not our own lowering: TVM's legalisation, fusion and virtual machine, unoptimised LLVM."""
    passes = [relax.transform.LegalizeOps(), relax.transform.AnnotateTIROpPattern(), relax.transform.FoldConstant(),
              relax.transform.FuseOps(), relax.transform.FuseTIR()]  # fmt: skip
    mod = tvm.transform.Sequential(passes)(graph.module)
    executable = relax.build(mod, tvm.target.Target({"kind": "llvm", "opt-level": 0}))
    with tempfile.TemporaryDirectory() as folder:  # loading a linked library is far quicker than just-in-time linking
        executable.export_library(f"{folder}/oracle.so")
        vm = relax.VirtualMachine(tvm.runtime.load_module(f"{folder}/oracle.so"), tvm.cpu())
    names = [p.name for p in graph.outputs]

    def run(feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        result = vm["main"](*(tvm.runtime.tensor(np.asarray(feeds[p.name], order="C")) for p in graph.inputs))
        return {name: r.numpy() for name, r in zip(names, result, strict=True)}

    return run


def run_library(graph: Graph, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs of what ships: the project's own lowering, schedules and runtime."""
    return build_graphs({"main": graph}, logs=[]).library.context().run("main", feeds)
