"""The worker of ``torch_conformance``: one operator at a time, its samples exported, imported, compiled and compared."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
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

    def tensors(self) -> list[torch.Tensor]:
        """The sample's tensors, gradients off."""
        return [self.leaves[i].detach().clone() for i in self.places]

    def forward(self, *tensors: torch.Tensor) -> Any:
        leaves = list(self.leaves)
        for i, t in zip(self.places, tensors, strict=True):
            leaves[i] = t
        first, args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        result = self.op(first, *args, **kwargs)
        return tuple(t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor))


class Wrong(Exception):
    """A value that differs."""


class Skip(Exception):
    """A sample that PyTorch itself does not take or export."""


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
        for sample in _samples(op, dtype, samples):
            _one(row, op, sample, tolerances)
    row["notes"] = list(dict.fromkeys(row["notes"]))[:6]
    row["claimed"] = row["samples"] > row["refused"]
    return row


def _dtypes_of(op: Any, wanted: Sequence[str]) -> list[torch.dtype]:
    supported = op.supported_dtypes("cpu")
    floats = [getattr(torch, d) for d in wanted if getattr(torch, d) in supported]
    if floats:
        return floats
    return [next(d for d in (torch.int64, torch.int32, torch.bool, torch.uint8, torch.complex64, *supported) if d in supported)]


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


def _one(row: dict[str, Any], op: Any, sample: Any, tolerances: Tolerances) -> None:
    try:
        compare(op, sample, tolerances, values_defined="empty" not in row["operator"])
        row["passed"] += 1
    except Skip:
        return
    except Wrong as e:
        row["wrong"] += 1
        row["notes"].append(f"wrong: {e}")
    except TilegradError as e:
        row["refused"] += 1
        row["notes"].append(f"refused: {str(e)[:300]}")
    except Exception as e:
        row["refused"] += 1
        first = next(iter(str(e).strip().splitlines()), "")
        row["notes"].append(f"failed: {type(e).__name__}: {first[:300]}")
    row["samples"] += 1


def compare(op: Any, sample: Any, tolerances: Tolerances, values_defined: bool = True) -> None:
    """Raise Wrong when values or gradients of a sample differ, TilegradError when it is refused."""
    case = Case(op, sample)
    tensors = case.tensors()
    wanted = [i for i, p in enumerate(case.places) if case.leaves[p].requires_grad]
    want, want_grads, cotangents = _reference(case, tensors, wanted)
    got, got_grads = ours(case, tensors, wanted, cotangents)
    if len(got) != len(want):
        raise Wrong(f"{len(got)} results instead of {len(want)}")
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        _check(f"result {i}", a, b, tolerances, 1, values_defined)
    for i, a, b in zip(wanted, got_grads, want_grads, strict=True):
        _check(f"gradient {i}", a, b, tolerances, 10)


def _reference(
    case: Case, tensors: list[torch.Tensor], wanted: list[int]
) -> tuple[list[torch.Tensor], list[torch.Tensor], dict[int, torch.Tensor]]:
    """PyTorch's results, gradients, and the cotangents used, by result."""
    inputs = [t.clone().requires_grad_(i in wanted) for i, t in enumerate(tensors)]
    try:
        results = list(case(*inputs))
    except Exception as e:
        raise Skip(str(e)) from e
    if not results:
        raise Skip("no tensor among the results")
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
        grads = [torch.zeros_like(tensors[i]) if g is None else g for i, g in zip(wanted, found, strict=True)]
    else:
        wanted.clear()
    return [r.detach() for r in results], grads, cotangents


def ours(
    case: Case, tensors: list[torch.Tensor], wanted: list[int], cotangents: Mapping[int, torch.Tensor]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Our results and gradients, from one library."""
    from tilegrad._base.tvm import relax
    from tilegrad.frontend.pytorch.importer import open_exported
    from tilegrad.frontend.pytorch.tensors import to_numpy
    from tilegrad.relax_ext.driver import build_graphs
    from tilegrad.relax_ext.gradient import vjp

    try:
        with torch.no_grad():
            ep = torch.export.export(case, tuple(tensors), strict=False)
    except Exception as e:
        raise TilegradError("torch.export", f"{type(e).__name__}: {str(e)[:200]}") from e
    model = open_exported(ep)
    names = list(model.inputs)
    assert len(names) == len(tensors), f"{len(names)} inputs for {len(tensors)} tensors"
    args = {n: to_numpy(t) for n, t in zip(names, tensors, strict=True)}
    results = list(model.outputs.values())
    more = {}
    if wanted:
        outs: list[Any] = []
        cots: list[Any] = []
        for i, g in cotangents.items():
            if isinstance(results[i], relax.Var) and not any(results[i].same_as(o) for o in outs):
                port = model.builder.input(f"cotangent{i}", tuple(g.shape), str(g.dtype)[6:])
                args[f"cotangent{i}"] = to_numpy(g)
                outs.append(results[i])
                cots.append(port)
        grads = vjp(model.builder, outs, cots, [model.inputs[names[i]] for i in wanted])
        for i, g in zip(wanted, grads, strict=True):
            zero = relax.op.zeros(tuple(tensors[i].shape), str(tensors[i].dtype)[6:])
            more[f"grad{i}"] = model.builder.emit(zero) if g is None else g
    done = model.finish(more)
    context = build_graphs({"main": done.graph}, logs=[]).library.context()
    for name, data in done.states.items():
        context.state(name)[...] = data
    found = context.run("main", args)
    n = len(results)
    return [found[o] for o in done.outputs[:n]], [found[o] for o in done.outputs[n:]]


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
