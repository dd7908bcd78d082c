"""The backend of ``torch.compile(model, backend="tilegrad")``: forward and backward graphs from aot_autograd, each one library.

PyTorch keeps the weights; our libraries read them where they are, transposed ones too: a tensor is an array in the order of its
memory, and the graph turns it. A result is written into memory that PyTorch owns, in the strides that the traced graph promised.
A graph with an operator we have no rule for is not run by us: by default PyTorch's own kernels run that graph and a
warning names the operators; with ``options={"fallback": False}`` the error is raised.
"""

from __future__ import annotations

import ctypes
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any

import numpy as np
import torch

from tilegrad._base.errors import ModelImportError, TilegradError, UsageError
from tilegrad._base.target import Target
from tilegrad.frontend.pytorch.decompositions import registered
from tilegrad.frontend.pytorch.importer import add_outputs, emit_graph, type_of
from tilegrad.frontend.pytorch.lowering import RandomState
from tilegrad.frontend.pytorch.sizes import BySizes, has_open_sizes, with_sizes
from tilegrad.frontend.pytorch.tensors import to_numpy
from tilegrad.relax_ext.driver import build_graphs
from tilegrad.relax_ext.graph import Graph, GraphBuilder
from tilegrad.relax_ext.vjp.values import Tape, Value

log = logging.getLogger(__name__)

Function = Callable[..., Any]


class FallbackWarning(UserWarning):
    """A graph that PyTorch's own kernels run instead of ours, and why."""


def backend(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **kwargs: Any) -> Function:
    """What ``torch.compile`` calls with every captured graph.

    ``options``: target, logs, num_threads as in ``tilegrad.compile``; fallback (default True): whether PyTorch may run graphs
    with operators that have no rule, with a FallbackWarning. Raises UsageError for other options.
    """
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch import config as functorch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    options = {"target": "native", "logs": None, "num_threads": None, "fallback": True, **(kwargs.get("options") or {})}
    unknown = set(options) - {"target", "logs", "num_threads", "fallback"}
    if unknown:
        raise UsageError("torch.compile, options", ", ".join(sorted(unknown)), "target, logs, num_threads, fallback")
    Target.parse(options["target"], options["num_threads"])  # a wrong target is an error at once, never a fallback

    def compiler(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Function:
        return _boxed(_compiled(graph, inputs, options))

    wrapped = aot_autograd(fw_compiler=compiler, bw_compiler=compiler, decompositions=_decompositions())
    # attention as one operator each way, or in plain ones; no buffer of the forward pass is overwritten by the backward pass,
    # which may therefore run again (retain_graph)
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]), functorch.patch(donated_buffer=False):
        return wrapped(gm, example_inputs)


def _decompositions() -> Mapping[Any, Function]:
    """PyTorch's own for training graphs, without the operators that have rules of ours."""
    return registered()


def _boxed(function: Function) -> Function:
    from functorch.compile import make_boxed_func

    return make_boxed_func(function)


def _compiled(gm: torch.fx.GraphModule, inputs: Sequence[Any], options: Mapping[str, Any]) -> Function:
    """A function of the graph's inputs, by our library; or PyTorch's, with a warning."""

    def left(reason: TilegradError) -> Function:
        if not options["fallback"]:
            raise reason
        warnings.warn(f"torch.compile(backend='tilegrad') leaves a graph to PyTorch: {reason}", FallbackWarning, stacklevel=2)
        return gm.forward

    try:
        if has_open_sizes(gm):
            return BySizes(gm, lambda args: Compiled(with_sizes(gm, args), options), left)
        return Compiled(gm, options)
    except TilegradError as e:
        return left(e)


_aten = torch.ops.aten
VIEWS = {
    _aten.permute.default, _aten.t.default, _aten.transpose.int, _aten.view.default, _aten.unsqueeze.default, _aten.squeeze.dim,
    _aten.squeeze.dims, _aten.expand.default, _aten.alias.default, _aten.detach.default,
}  # fmt: skip
"""Operators whose result is their argument's memory."""


Order = tuple[int, ...]
"""A tensor's dimensions from the outermost in memory to the innermost."""


def memory_order(tensor: torch.Tensor) -> Order | None:
    """The order in which a tensor's elements lie one after the other; None when they overlap or leave gaps."""
    order = tuple(range(tensor.dim())) if tensor.is_contiguous() else tuple(sorted(range(tensor.dim()), key=_outermost(tensor)))
    expected = 1
    for d in reversed(order):
        if tensor.shape[d] != 1 and tensor.stride(d) != expected and tensor.numel():
            return None
        expected *= tensor.shape[d]
    return order


def _outermost(tensor: torch.Tensor) -> Callable[[int], int]:
    return lambda d: -tensor.stride(d)


class Compiled:
    """One ATen graph as a library with a single entry. Its inputs are PyTorch's tensors, read in place where dense."""

    def __init__(self, gm: torch.fx.GraphModule, options: Mapping[str, Any]) -> None:
        self._results: list[tuple[str | None, Any]] = []
        graph, inputs, random = self._import(gm)
        built = build_graphs({"main": graph}, options["target"], options["logs"], options["num_threads"])
        self._context = built.library.context(options["num_threads"])
        self._context.use_threads(_pytorchs_threads())
        if random:
            seed = int(torch.randint(0, 2**31 - 1, (), dtype=torch.int64))
            self._context.state(RandomState.NAME)[...] = np.array([seed, 0])
        self._call = self._context.caller("main")
        slots = {p.name: i for i, p in enumerate(built.library.ports("main"))}
        self._array = ctypes.c_void_p * len(slots)
        self._inputs = [(slots[name], i, strides, order) for name, i, strides, order in inputs]
        self._slots = slots
        log.info("%s", built.summary())

    def _import(self, gm: torch.fx.GraphModule) -> tuple[Graph, list[tuple[str, int, Order | None, Order]], bool]:
        """The Graph, (name, position, strides, order) of the inputs that are tensors, and whether it draws random numbers.

        No strides: always to be copied.
        """
        builder = GraphBuilder()
        tape = Tape(builder)
        values: dict[str, Any] = {}
        inputs: list[tuple[str, int, Order | None, Order]] = []
        placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
        for i, node in enumerate(placeholders):
            meta = node.meta.get("val")
            if isinstance(meta, torch.Tensor):
                ty = type_of(meta, f"input '{node.name}'")
                if meta.device.type != "cpu":
                    raise ModelImportError(f"input '{node.name}'", f"a tensor on {meta.device}", "tensors on the CPU")
                found = memory_order(meta)
                order = tuple(range(meta.dim())) if found is None else found
                inputs.append((node.name, i, None if found is None else tuple(meta.stride()), order))
                value = tape.value(builder.input(node.name, tuple(ty.shape[d] for d in order), ty.dtype))
                values[node.name] = value if order == tuple(range(meta.dim())) else value.permute(_inverse(order))
            else:
                values[node.name] = meta if isinstance(meta, int | float | bool) else None
        for node in gm.graph.nodes:
            if node.op == "get_attr":
                values[node.name] = tape.value(_constant(gm, node))
        random = RandomState(tape)
        env = emit_graph(tape, gm.graph, values, random)
        self._plan_results(gm, placeholders, env)
        outputs = []
        for name, node in self._results:
            if name is not None:
                order = memory_order(node.meta["val"]) or tuple(range(env[node.name].ndim))
                value = env[node.name]
                outputs.append((name, (value if order == tuple(range(value.ndim)) else value.permute(order)).expr, None))
        after = random.advanced()
        updates = [] if after is None else [(f"{RandomState.NAME}.new", after.expr, RandomState.NAME)]
        tape.flush([e for _, e, _ in [*outputs, *updates]])
        add_outputs(builder, [*outputs, *updates])
        return builder.finish(), inputs, bool(updates)

    def _plan_results(self, gm: torch.fx.GraphModule, placeholders: Sequence[torch.fx.Node], env: Mapping[str, Any]) -> None:
        """(name of an output, its node), or (None, function of the inputs that it is a view of; None for a constant)."""
        position = {n: i for i, n in enumerate(placeholders)}
        (out,) = (n for n in gm.graph.nodes if n.op == "output")
        for i, node in enumerate(torch.utils._pytree.tree_leaves(out.args[0])):
            if isinstance(node, torch.fx.Node) and (view := _view_of_input(node, position)) is not None:
                self._results.append((None, view))
            elif isinstance(node, torch.fx.Node) and isinstance(env.get(node.name), Value):
                self._results.append((f"output{i}", node))
            else:
                self._results.append((None, None if isinstance(node, torch.fx.Node) else _constantly(node)))
        self._types = {
            name: (tuple(t.shape), tuple(t.stride()), t.dtype, memory_order(t) is not None)
            for name, t in ((name, node.meta["val"]) for name, node in self._results if name is not None)
        }

    def __call__(self, *tensors: Any) -> list[Any]:
        """Run once. Outputs are new tensors."""
        pointers, copies = self._array(), []
        for slot, i, strides, order in self._inputs:
            tensor = tensors[i]
            if tensor.stride() != strides or tensor.is_neg():
                tensor = tensor.detach().resolve_neg().permute(order).contiguous()
                copies.append(tensor)  # alive until the call is over
            pointers[slot] = tensor.data_ptr()
        fresh: dict[str, torch.Tensor] = {}
        for output, (shape, strides, dtype, dense) in self._types.items():
            made = torch.empty_strided(shape, strides, dtype=dtype) if dense else torch.empty(shape, dtype=dtype)
            pointers[self._slots[output]] = made.data_ptr()
            fresh[output] = made
        self._call(pointers)
        results: list[Any] = []
        for name, what in self._results:
            if name is not None:
                results.append(self._as_promised(name, fresh[name]))
            else:
                results.append(None if what is None else what(tensors))
        return results

    def _as_promised(self, name: str, made: torch.Tensor) -> torch.Tensor:
        """The result with the strides of the traced graph; one whose elements overlap or leave gaps is copied."""
        shape, strides, dtype, dense = self._types[name]
        return made if dense else torch.empty_strided(shape, strides, dtype=dtype).copy_(made)


def _constantly(value: Any) -> Function:
    return lambda tensors: value


def _inverse(order: Order) -> Order:
    return tuple(order.index(d) for d in range(len(order)))


def _view_of_input(node: torch.fx.Node, position: Mapping[torch.fx.Node, int]) -> Function | None:
    """A function from the inputs to ``node`` where that is one of them, seen in another form: a transposed weight that the
    backward pass asks for is not worth a copy."""
    if node in position:
        return itemgetter(position[node])
    if node.op != "call_function" or node.target not in VIEWS or not isinstance(node.args[0], torch.fx.Node):
        return None
    source, rest, target = _view_of_input(node.args[0], position), node.args[1:], node.target
    if source is None or node.kwargs or any(isinstance(a, torch.fx.Node) for a in torch.utils._pytree.tree_leaves(rest)):
        return None
    return lambda tensors: target(source(tensors), *rest)


@lru_cache(maxsize=1)
def _pytorchs_threads() -> Any:
    """What PyTorch runs its own loops with: two pools that spin would take the cores from each other. None without OpenMP."""
    try:
        return ctypes.CDLL(torch._C.__file__).GOMP_parallel  # the library's dependencies are searched, too
    except (OSError, AttributeError):
        return None


def _constant(gm: torch.fx.GraphModule, node: torch.fx.Node) -> Any:
    from tilegrad.frontend.pytorch.lowering import constant, dtype_name

    data = gm
    for part in str(node.target).split("."):
        data = getattr(data, part)
    assert isinstance(data, torch.Tensor)
    return constant(to_numpy(data), dtype_name(data.dtype))


__all__ = ["FallbackWarning", "backend"]
