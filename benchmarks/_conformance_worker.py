"""The worker of ``torch_conformance``: one operator at a time, its samples exported, imported and compiled together."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from tilegrad._base.errors import TilegradError

Tolerances = Mapping[str, tuple[float, float]]


class Case(torch.nn.Module):
    """One sample as a module of its tensors; everything else is part of the module."""

    def __init__(self, op: Any, sample: Any) -> None:
        super().__init__()
        self.op = op
        self.leaves, self.spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        self.places = [i for i, leaf in enumerate(self.leaves) if isinstance(leaf, torch.Tensor)]
        self.written: list[int] | None = None  # known after the first call, which is PyTorch's own

    def tensors(self) -> list[torch.Tensor]:
        """The sample's tensors, gradients off."""
        return [self.leaves[i].detach().clone() for i in self.places]

    def described(self) -> str:
        """The arguments, tensors by shape."""
        shown = [f"{str(v.dtype)[6:]}{list(v.shape)}" if isinstance(v, torch.Tensor) else v for v in self.leaves]
        return str(pytree.tree_unflatten(shown, self.spec))[:200]

    def forward(self, *tensors: torch.Tensor) -> Any:
        """The results that are tensors, then the arguments that the operator wrote into."""
        leaves = list(self.leaves)
        for i, t in zip(self.places, tensors, strict=True):
            leaves[i] = t
        first, args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        result = self.op(first, *args, **kwargs)
        tail = [tensors[i] for i in self.written or ()]
        return tuple([*(t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor)), *tail])


class Wrong(Exception):
    """A value that differs."""


def serve(samples: int, dtypes: Sequence[str], tolerances: Tolerances) -> None:
    """Names on stdin, rows on stdout."""
    from torch.testing._internal.common_methods_invocations import op_db

    torch.manual_seed(0)
    table = {(f"{o.name}.{o.variant_test_name}" if o.variant_test_name else o.name): o for o in op_db}
    for line in sys.stdin:
        row = operator_row(line.strip(), table[line.strip()], samples, dtypes, tolerances)
        sys.stdout.write(json.dumps(row) + "\n")
        sys.stdout.flush()


def operator_row(name: str, op: Any, samples: int, dtypes: Sequence[str], tolerances: Tolerances) -> dict[str, Any]:
    """Counts over the operator's samples, and what went wrong."""
    row: dict[str, Any] = {"operator": name, "claimed": False, "samples": 0, "passed": 0, "wrong": 0, "refused": 0, "notes": []}
    for dtype in _dtypes_of(op, dtypes):
        known = [r for s in _samples(op, dtype, samples) if (r := reference(Case(op, s))) is not None]
        row["samples"] += len(known)
        _judge(row, known, tolerances)
    row["notes"] = list(dict.fromkeys(row["notes"]))[:6]
    row["claimed"] = row["samples"] > row["refused"]
    return row


def _dtypes_of(op: Any, wanted: Sequence[str]) -> list[torch.dtype]:
    supported = op.supported_dtypes("cpu")
    floats = [getattr(torch, d) for d in wanted if getattr(torch, d) in supported]
    if floats:
        return floats
    preferred = (torch.int64, torch.int32, torch.bool, torch.uint8, torch.complex64, *supported)
    return [d for d in preferred if d in supported][:1]


def _samples(op: Any, dtype: torch.dtype, n: int) -> list[Any]:
    """The first ``n``, spread over the list."""
    grad = op.supports_autograd and dtype.is_floating_point and dtype in op.supported_backward_dtypes("cpu")
    try:
        found = list(op.sample_inputs("cpu", dtype, requires_grad=grad))
    except Exception:
        return []
    if len(found) <= n:
        return found
    return [found[i * len(found) // n] for i in range(n)]


@dataclass
class Reference:
    """PyTorch's side of a sample: results, gradients of the tensors ``wanted``, and the cotangents used, by result."""

    case: Case
    tensors: list[torch.Tensor]
    wanted: list[int]
    results: list[torch.Tensor]
    gradients: list[torch.Tensor]
    cotangents: dict[int, torch.Tensor]


def reference(case: Case) -> Reference | None:
    """None when PyTorch itself does not take the sample, or has no tensor among the results."""
    tensors = case.tensors()
    wanted = [i for i, p in enumerate(case.places) if case.leaves[p].requires_grad]
    inputs = [t.clone().requires_grad_(i in wanted) for i, t in enumerate(tensors)]
    try:
        results = list(case(*inputs))
    except Exception:
        return None
    if case.written is None:
        case.written = [i for i, t in enumerate(tensors) if i not in wanted and not _same(t, inputs[i])]
        results += [inputs[i] for i in case.written]
    generator = torch.Generator().manual_seed(1)
    cotangents = {
        i: torch.rand(r.shape, generator=generator, dtype=r.dtype) + 0.5
        for i, r in enumerate(results)
        if r.requires_grad and r.is_floating_point()
    }
    grads: list[torch.Tensor] = []
    if wanted and cotangents:
        found = torch.autograd.grad(
            [results[i] for i in cotangents], [inputs[i] for i in wanted], list(cotangents.values()), allow_unused=True
        )
        grads = [torch.zeros_like(tensors[i]) if g is None else g.clone() for i, g in zip(wanted, found, strict=True)]
    else:
        wanted = []
    return Reference(case, tensors, wanted, [r.detach() for r in results], grads, cotangents) if results else None


def _judge(row: dict[str, Any], samples: Sequence[Reference], tolerances: Tolerances) -> None:
    """All samples in one library; when they cannot be built together, each half for itself, to find those at fault."""
    if not samples:
        return
    try:
        found = ours(samples)
    except Exception as e:
        if len(samples) > 1:
            half = len(samples) // 2
            _judge(row, samples[:half], tolerances)
            _judge(row, samples[half:], tolerances)
            return
        row["refused"] += 1
        kind = "refused" if isinstance(e, TilegradError) else f"failed: {type(e).__name__}"
        row["notes"].append(f"{kind}: {' '.join(str(e).split())[:300]}")
        return
    for sample, (results, gradients) in zip(samples, found, strict=True):
        try:
            _compare(sample, results, gradients, tolerances, values_defined="empty" not in row["operator"])
            row["passed"] += 1
        except Wrong as e:
            if _draws(sample):
                row["passed"] += 1
                continue
            row["wrong"] += 1
            row["notes"].append(f"wrong: {e}; arguments {sample.case.described()}")


def _compare(
    sample: Reference,
    results: Sequence[np.ndarray],
    gradients: Sequence[np.ndarray],
    tolerances: Tolerances,
    values_defined: bool,
) -> None:
    """Raise Wrong when values or gradients of a sample differ."""
    if len(results) != len(sample.results):
        raise Wrong(f"{len(results)} results instead of {len(sample.results)}")
    for i, (a, b) in enumerate(zip(results, sample.results, strict=True)):
        _check(f"result {i}", a, b, tolerances, 1, values_defined)
    try:
        for i, a, b in zip(sample.wanted, gradients, sample.gradients, strict=True):
            _check(f"gradient {i}", a, b, tolerances, 10, values_defined)
    except Wrong:
        if not _is_pytorchs_fault(sample, gradients):
            raise


def _draws(sample: Reference) -> bool:
    """Whether it draws random numbers: any value may be right."""
    from tilegrad.frontend.pytorch.importer import open_exported
    from tilegrad.frontend.pytorch.lowering import RandomState

    ep = torch.export.export(Together([sample.case]), tuple(sample.tensors), strict=False)
    return RandomState.NAME in open_exported(ep).states


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """The same shape and bits."""
    bits = [t.detach().resolve_conj().contiguous().reshape(-1).view(torch.uint8) for t in (a, b)]
    return a.shape == b.shape and torch.equal(*bits)


def _is_pytorchs_fault(sample: Reference, gradients: Sequence[np.ndarray]) -> bool:
    """Whether a central difference in float64 along a seeded direction agrees with our gradient and not with PyTorch's."""
    generator = torch.Generator().manual_seed(2)
    directions = [torch.rand(t.shape, generator=generator, dtype=torch.float64) - 0.5 for t in sample.tensors]

    def value(step: float) -> float:
        moved = [t.double() if t.is_floating_point() else t for t in sample.tensors]
        for i in sample.wanted:
            moved[i] = moved[i] + step * directions[i]
        results = sample.case(*[t.clone() for t in moved])
        return float(sum((results[i].double() * g.double()).sum() for i, g in sample.cotangents.items()))

    def slope(found: Sequence[Any]) -> float:
        pairs = zip(sample.wanted, found, strict=True)
        return float(sum((torch.as_tensor(g).double() * directions[i]).sum() for i, g in pairs))

    true = (value(1e-6) - value(-1e-6)) / 2e-6
    near = 1e-3 * max(1.0, abs(true))
    return abs(slope(gradients) - true) < near < abs(slope(sample.gradients) - true)


class Together(torch.nn.Module):
    """Several samples as one module of all their tensors."""

    def __init__(self, cases: Sequence[Case]) -> None:
        super().__init__()
        self.cases = list(cases)

    def forward(self, *tensors: torch.Tensor) -> Any:
        results, rest = [], list(tensors)
        for case in self.cases:
            n = len(case.places)
            results.append(case(*[t.clone() for t in rest[:n]]))  # some operators write into their arguments
            rest = rest[n:]
        return tuple(results)


Found = list[tuple[list[np.ndarray], list[np.ndarray]]]


def ours(samples: Sequence[Reference]) -> Found:
    """Our (results, gradients) of every sample, from one library."""
    from tilegrad.frontend.pytorch.importer import open_exported
    from tilegrad.frontend.pytorch.tensors import to_numpy
    from tilegrad.relax_ext.driver import build_graphs

    tensors = [t for s in samples for t in s.tensors]
    try:
        with torch.no_grad():
            ep = torch.export.export(Together([s.case for s in samples]), tuple(tensors), strict=False)
    except Exception as e:
        raise TilegradError("torch.export", f"{type(e).__name__}: {str(e)[:200]}") from e
    model = open_exported(ep)
    names = list(model.inputs)
    assert len(names) == len(tensors), f"{len(names)} inputs for {len(tensors)} tensors"
    args = {n: to_numpy(t) for n, t in zip(names, tensors, strict=True)}
    gradients = _gradients(model, samples, args)
    done = model.finish(gradients)
    context = build_graphs({"main": done.graph}, logs=[]).library.context()
    for name, data in done.states.items():
        context.state(name)[...] = data
    found = context.run("main", args)
    values, grads = iter(found[o] for o in done.outputs if o not in gradients), iter(found[o] for o in gradients)
    return [([next(values) for _ in s.results], [next(grads) for _ in s.wanted]) for s in samples]


def _gradients(model: Any, samples: Sequence[Reference], args: dict[str, np.ndarray]) -> dict[str, Any]:
    """Adds ports for the cotangents, and their values to ``args``; the gradients by name, sample by sample."""
    from tilegrad._base.tvm import relax
    from tilegrad.frontend.pytorch.tensors import to_numpy
    from tilegrad.relax_ext.gradient import vjp

    names, results = iter(list(model.inputs)), iter(list(model.outputs.values()))
    outs: list[Any] = []
    cotangents: list[Any] = []
    sources: list[tuple[str, torch.Tensor]] = []
    for s in samples:
        own = [next(names) for _ in s.tensors]
        sources += [(own[i], s.tensors[i]) for i in s.wanted]
        values = [next(results) for _ in s.results]
        for i, g in s.cotangents.items():
            if not s.wanted or not isinstance(values[i], relax.Var):
                continue  # a constant
            port = f"cotangent.{own[0]}.{i}"
            cotangent = model.builder.input(port, tuple(g.shape), str(g.dtype)[6:])
            args[port] = to_numpy(g)
            same = next((j for j, o in enumerate(outs) if values[i].same_as(o)), None)
            if same is None:
                outs.append(values[i])
                cotangents.append(cotangent)
            else:  # two results are one value
                cotangents[same] = model.builder.emit(relax.op.add(cotangents[same], cotangent))
    if not sources:
        return {}
    found = {}
    for (name, t), g in zip(sources, vjp(model.builder, outs, cotangents, [model.inputs[n] for n, _ in sources]), strict=True):
        zero = relax.op.zeros(tuple(t.shape), str(t.dtype)[6:])
        found[f"grad.{name}"] = model.builder.emit(zero) if g is None else g
    return found


def _check(what: str, got: np.ndarray, want: torch.Tensor, tolerances: Tolerances, slack: float, values: bool = True) -> None:
    from tilegrad.frontend.pytorch.tensors import to_numpy

    dtype = str(want.dtype)[6:]
    reference = to_numpy(want)
    if got.shape != reference.shape or got.dtype != reference.dtype:
        raise Wrong(f"{what}: {got.dtype}{list(got.shape)} instead of {dtype}{list(want.shape)}")
    if not values or not got.size:
        return
    if dtype == "bfloat16":
        got, reference = ((v.astype(np.uint32) << 16).view(np.float32) for v in (got, reference))
    rtol, atol = tolerances.get(dtype, (0.0, 0.0))
    scale = max(float(np.nanmax(np.abs(np.where(np.isfinite(reference), reference, 0)))), 1.0) if dtype in tolerances else 1.0
    if not np.allclose(got, reference, rtol * slack, atol * slack * scale, equal_nan=True):
        with np.errstate(all="ignore"):
            worst = float(np.nanmax(np.abs(got.astype(np.float64) - reference.astype(np.float64))))
        raise Wrong(f"{what} differs by {worst:.3g} ({dtype}{list(want.shape)})")
