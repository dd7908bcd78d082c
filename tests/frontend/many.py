"""Many small comparisons with PyTorch in one compiled program: values and gradients of every case at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import tilegrad as tg
from tilegrad.frontend import evaluate, execute
from tilegrad.frontend.apply import as_tensor
from tilegrad.frontend.gradients import flatten, to_arrays


@dataclass
class Case:
    """The same function twice, on arrays made by ``inputs``. Floats get gradients unless ``grad`` is off."""

    name: str
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    inputs: list[np.ndarray]
    grad: bool = True
    results: list[np.ndarray] = field(default_factory=list)
    expected: list[np.ndarray] = field(default_factory=list)


@contextmanager
def virtual_machine() -> Iterator[None]:
    """Evaluate through TVM's virtual machine: what is recorded is tested here, kernels elsewhere (and in the long tests)."""

    def prepare(graph, inputs, states, outputs):
        call = execute.on_vm(graph)

        def run(args, arrays):
            given = dict(zip([*inputs, *states], [*args, *arrays], strict=True))
            results = call(given)
            for port in graph.outputs:
                if port.updates:
                    given[port.updates][...] = results[port.name]
            return [results[name] for name in outputs]

        return run

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execute, "prepare", prepare)
        evaluate.cache_clear()
        yield
    evaluate.cache_clear()


class Chunks:
    """Cases run a dozen at a time, when one of them is asked for."""

    def __init__(self, cases: list[Case], torch: Any) -> None:
        self._cases, self._torch = cases, torch
        self._done: dict[str, Case] = {}

    def __getitem__(self, name: str) -> Case:
        if name not in self._done:
            start = [c.name for c in self._cases].index(name) // 12 * 12
            self._done |= run(self._cases[start : start + 12], self._torch)
        return self._done[name]


def run(cases: list[Case], torch: Any) -> dict[str, Case]:
    """Fill in ``results`` and ``expected``: outputs, then gradients of a fixed random combination of them."""
    wanted, counts = [], []
    for case in cases:
        tensors = [tg.tensor(a, requires_grad=case.grad and a.dtype.kind == "f") for a in case.inputs]
        outs = [as_tensor(o) for o in flatten(case.ours(*tensors))[0]]
        values = list(outs)
        if case.grad:
            loss = sum(
                ((o * weights(o.shape, o.dtype)).sum() for o in outs if o.requires_grad), start=tg.tensor(0.0, outs[0].dtype)
            )
            loss.backward()
            values += [t.grad for t in tensors if t.requires_grad]
        wanted += values
        counts.append(len(values))
        case.expected = reference(case, torch)
    arrays = iter(to_arrays(wanted))
    for case, n in zip(cases, counts, strict=True):
        case.results = [next(arrays) for _ in range(n)]
    return {c.name: c for c in cases}


def reference(case: Case, torch: Any) -> list[np.ndarray]:
    tensors = [torch.tensor(a, requires_grad=bool(case.grad and a.dtype.kind == "f")) for a in case.inputs]
    outs = flatten(case.theirs(*tensors))[0]
    values = list(outs)
    if case.grad:
        loss = sum((o * torch.tensor(weights(tuple(o.shape), str(o.dtype)[6:]))).sum() for o in outs if o.requires_grad)
        loss.backward()
        values += [t.grad for t in tensors if t.requires_grad]
    return [v.detach().numpy() for v in values]


def weights(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """A fixed random cotangent."""
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


def check(case: Case, rtol: float = 1e-5, atol: float = 1e-5) -> None:
    assert len(case.results) == len(case.expected)
    for ours, theirs in zip(case.results, case.expected, strict=True):
        assert ours.shape == theirs.shape
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=atol)
