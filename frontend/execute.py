"""A Graph made callable on NumPy arrays, through the library that export would ship."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tilegrad._base import settings

if TYPE_CHECKING:
    from tilegrad.relax_ext.graph import Graph

Prepared = Callable[[Sequence[np.ndarray], Sequence[np.ndarray]], list[np.ndarray]]
"""``run(inputs, states) -> outputs``; states are written in place."""

ENTRY = "run"


def current_settings() -> tuple[Any, ...]:
    """What, beside the recording, a program compiled by evaluation depends on."""
    return (settings.num_threads(),)


def prepare(graph: Graph, inputs: Sequence[str], states: Sequence[str], outputs: Sequence[str]) -> Prepared:
    """Compile ``graph`` for this machine and return a function of its arrays, by position."""
    from tilegrad.relax_ext.driver import compile_graphs

    context = compile_graphs({ENTRY: graph}).context()
    names = [*inputs, *states]

    def run(args: Sequence[np.ndarray], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        results = context.run(ENTRY, dict(zip(names, [*args, *arrays], strict=True)))
        return [results[name] for name in outputs]

    return run


def on_vm(graph: Graph) -> Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]:
    """The graph as a function of arrays by port name, by TVM's virtual machine and default kernels: a reference that shares
    neither our lowering nor schedules nor runtime. Updated states come back as outputs; nothing is written in place."""
    from tilegrad._base.tvm import relax, tvm

    target = tvm.target.Target({"kind": "llvm", "opt-level": 0})
    vm = relax.VirtualMachine(relax.build(graph.module, target), tvm.cpu())

    def run(args: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        results = vm["main"](*[tvm.runtime.tensor(np.asarray(args[p.name], order="C")) for p in graph.inputs])
        return {p.name: r.numpy() for p, r in zip(graph.outputs, results, strict=True)}

    return run


__all__ = ["ENTRY", "Prepared", "current_settings", "on_vm", "prepare"]
