"""Parts of a recording that are one node: ``checkpoint``, ``custom_vjp``, ``call_te``.

A block is a function of its inputs as a list of steps, compared by its structure, so that recording the same function again
meets the program cache. What the function reads from outside becomes further inputs.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tilegrad._base.errors import TilegradError
from tilegrad.frontend.apply import as_tensor, results, wrap
from tilegrad.frontend.convert import Step, as_var, emit_steps
from tilegrad.frontend.gradients import flatten, unflatten
from tilegrad.frontend.recording import Node, Type, grad_mode, ordered, record, usage

if TYPE_CHECKING:
    from tilegrad.relax_ext.graph import GraphBuilder
    from tilegrad.schedules.own import OwnTemplate


class Block:
    """Steps over ``count`` inputs; ``outputs`` are positions among inputs and steps."""

    def __init__(self, steps: Sequence[Step], count: int, outputs: tuple[int, ...], types: tuple[Type, ...]) -> None:
        self.steps, self.count, self.outputs, self.types = tuple(steps), count, outputs, types
        self._key = (self.steps, count, outputs)
        self._hash = hash(self._key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other._key == self._key

    def infer(self, _: Sequence[Type]) -> tuple[Type, ...]:
        """Types of the results."""
        return self.types

    def emit(self, builder: GraphBuilder, args: Sequence[Any]) -> list[Any]:
        """Emit the steps in place."""
        exprs = emit_steps(builder, self.steps, list(args))
        return [as_var(builder, exprs[i]) for i in self.outputs]


class Checkpoint(Block):
    """A block that the backward graph computes again."""

    def emit(self, builder: GraphBuilder, args: Sequence[Any]) -> list[Any]:
        from tilegrad.relax_ext.region import checkpoint as region

        return region(builder, lambda *xs: super(Checkpoint, self).emit(builder, xs), *args)


class Custom(Block):
    """A block with a gradient of its own: ``backward`` takes inputs, outputs and cotangents."""

    backward: Block
    arguments: int

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other) and isinstance(other, Custom) and other.backward == self.backward

    __hash__ = Block.__hash__

    def emit(self, builder: GraphBuilder, args: Sequence[Any]) -> list[Any]:
        from tilegrad.relax_ext.region import custom_vjp as region

        def back(inputs: list[Any], outputs: list[Any], cotangents: list[Any]) -> list[Any]:
            grads = self.backward.emit(builder, [*inputs, *outputs, *cotangents])
            return [*grads, *[None] * (len(inputs) - self.arguments)]

        return region(builder, lambda *xs: super(Custom, self).emit(builder, xs), back, *args)


def build(arguments: Sequence[Node], outputs: Sequence[Node], kind: type[Block] = Block) -> tuple[Any, list[Node]]:
    """(block, nodes it reads from outside). Nodes that do not depend on the arguments stay outside."""
    inner = set(arguments)
    order = ordered(outputs, lambda n: () if n in inner else n.inputs)
    for n in order:
        if any(i in inner for i in n.inputs):
            inner.add(n)
    inside = [n for n in ordered(outputs, lambda n: n.inputs if n in inner else ()) if n in inner and n not in set(arguments)]
    outside = list(dict.fromkeys(i for n in inside for i in n.inputs if i not in inner and i.op != "const"))
    outside += [n for n in dict.fromkeys(outputs) if n not in inner and n not in outside]
    index = {n: k for k, n in enumerate([*arguments, *outside])}
    steps: list[Step] = []
    for n in inside:
        for i in n.inputs:
            if i not in index:  # a number
                index[i] = len(arguments) + len(outside) + len(steps)
                steps.append(Step("const", i.attrs, (), (), i.type, None))
        index[n] = len(arguments) + len(outside) + len(steps)
        stopped = tuple(k for k, i in enumerate(n.inputs) if n.grad and i.stop)
        steps.append(Step(n.op, n.attrs, tuple(index[i] for i in n.inputs), stopped, n.type, n.place))
    count = len(arguments) + len(outside)
    return kind(steps, count, tuple(index[o] for o in outputs), tuple(o.type for o in outputs)), outside


def _takes(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], what: str, expected: str) -> None:
    """Raise UsageError unless the function can be called with these arguments (where Python can tell)."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as e:
        raise usage(what, f"'{getattr(function, '__name__', function)}{signature}': {e}", expected) from None


def _arguments(args: Sequence[Any]) -> tuple[list[Any], list[Any], Any]:
    """(Tensors of the arguments, placeholders that differentiate as they do, structure)."""
    leaves, spec = flatten(tuple(args))
    tensors = [as_tensor(x) for x in leaves]
    inner = []
    for t in tensors:
        node = Node("argument", (), (), t._node.type, -4, t._node.where)
        node.grad = t._node.grad
        inner.append(wrap(node))
    return tensors, inner, spec


def checkpoint(fn: Callable[..., Any], *args: Any) -> Any:
    """``fn(*args)``, whose intermediate values are computed again for the backward pass instead of being kept.

    Arguments and results may be nested containers of Tensors. Values and gradients are those of ``fn(*args)``.
    Raises UsageError when ``fn`` is no function.
    """
    if not callable(fn):
        raise usage("checkpoint, argument 'fn'", repr(fn), "a function of Tensors")
    tensors, inner, spec = _arguments(args)
    out, out_spec = flatten(fn(*unflatten(inner, spec)))
    block, outside = build([t._node for t in inner], [as_tensor(o)._node for o in out], Checkpoint)
    group = record("call", (*[t._node for t in tensors], *outside), (block,))
    return unflatten(results(group), out_spec)


class custom_vjp:
    """A function of Tensors with a gradient of the user's own::

        @tg.custom_vjp
        def f(x, y): ...

        @f.backward
        def _(inputs, outputs, cotangents):      # three tuples of Tensors
            ...
            return gradient of x, gradient of y  # None where there is none

    The backward function is differentiated in turn for higher orders. Both may call ``call_te``.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        if not callable(fn):
            raise usage("custom_vjp, argument 'fn'", repr(fn), "a function of Tensors")
        functools.update_wrapper(self, fn)
        self._forward = fn
        self._backward: Callable[..., Any] | None = None

    def backward(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """Set the rule. Raises UsageError unless it takes the three tuples."""
        if not callable(rule):
            raise usage("custom_vjp, backward rule", f"a {type(rule).__name__}", "a function of (inputs, outputs, cotangents)")
        _takes(rule, ((), (), ()), {}, "custom_vjp, backward rule", "a function of three tuples: inputs, outputs, cotangents")
        self._backward = rule
        return rule

    def __call__(self, *args: Any) -> Any:
        if self._backward is None:
            raise usage(f"custom_vjp '{self._forward.__name__}'", "no backward rule", "one, set by @f.backward")
        tensors, inner, spec = _arguments(args)
        out, out_spec = flatten(self._forward(*unflatten(inner, spec)))
        outs = [as_tensor(o) for o in out]
        block, outside = build([t._node for t in inner], [o._node for o in outs], Custom)
        if any(n.grad for n in outside):
            raise usage("custom_vjp", "a differentiable Tensor from outside the function", "every such Tensor as an argument")
        block.backward, free = self._rule(tensors, [o._node.type for o in outs])
        block.arguments = len(tensors)
        if free:
            raise usage("custom_vjp", "a Tensor from outside in the backward rule", "arguments, results and numbers only")
        group = record("call", (*[t._node for t in tensors], *outside), (block,))
        return unflatten(results(group), out_spec)

    def _rule(self, tensors: Sequence[Any], types: Sequence[Type]) -> tuple[Block, list[Node]]:
        """The backward rule as a block of inputs, outputs and cotangents; inputs from outside the function are not among them."""
        assert self._backward is not None
        nodes = [Node("argument", (), (), t, -4, None) for t in [*(x._node.type for x in tensors), *types, *types]]
        given = [wrap(n) for n in nodes]
        n, m = len(tensors), len(types)
        with grad_mode(True):
            grads = self._backward(tuple(given[:n]), tuple(given[n : n + m]), tuple(given[n + m :]))
        grads = list(grads) if isinstance(grads, (tuple, list)) else [grads]
        if len(grads) != n:
            raise usage("custom_vjp, result of the backward rule", f"{len(grads)} gradients", f"{n}, one per argument")
        zeros = [(x * 0.0) if g is None else as_tensor(g) for g, x in zip(grads, given, strict=False)]
        for g, x in zip(zeros, tensors, strict=True):
            if g.shape != x.shape:
                raise usage("custom_vjp, result of the backward rule", f"a gradient of shape {g.shape}", f"{x.shape}")
        return build(nodes, [g._node for g in zeros])


class _TE:
    """A TE definition as an operator; compared by its function, attributes and template."""

    def __init__(self, compute: Callable[..., Any], attrs: tuple[tuple[str, Any], ...], name: str, template: str | None) -> None:
        self._key = (compute, attrs, name, template)

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _TE) and other._key == self._key

    def _call(self, builder: Any, args: Sequence[Any]) -> Any:
        from tilegrad.schedules.own import ATTRIBUTE

        compute, attrs, name, template = self._key
        marks = {ATTRIBUTE: template} if template else None

        def define(*tensors: Any) -> Any:
            return self._tensors(compute(*tensors, **dict(attrs)), tensors)

        return builder.call_te(define, *args, primfunc_name_hint=name, primfunc_attrs=marks)

    def _tensors(self, result: Any, inputs: Sequence[Any]) -> Any:
        """What the definition returned. Raises UsageError unless it is one new TE tensor or more."""
        from tilegrad._base.tvm import te, tvm_ffi

        found = list(result) if isinstance(result, (list, tuple, tvm_ffi.Array)) else [result]
        what, expected = f"call_te '{self._key[2]}', result of the definition", "a tensor made by te.compute, or a list of them"
        for t in found:
            if not isinstance(t, te.Tensor):
                raise usage(what, f"a {type(t).__name__}", expected)
            if any(t.same_as(i) for i in inputs):
                raise usage(what, "one of its own arguments", expected)
        if not found:
            raise usage(what, "nothing", expected)
        return result

    def infer(self, types: Sequence[Type]) -> tuple[Type, ...]:
        """Types of the results, by running the definition once. Raises UsageError for a definition that makes no kernel and for
        a kernel that is not proved to read inside its arrays."""
        from tilegrad._base.tvm import relax, tirx
        from tilegrad.frontend.recording import from_relax
        from tilegrad.relax_ext.bounds import reads_outside

        args = [relax.Var(f"x{i}", relax.TensorType(t.shape, t.dtype)) for i, t in enumerate(types)]
        builder = relax.BlockBuilder()
        try:
            call = self._call(builder, args)
        except TilegradError:
            raise
        except Exception as e:
            got = next(iter(str(e).strip().splitlines()[-1:]), type(e).__name__)
            raise usage(f"call_te '{self._key[2]}'", f"{type(e).__name__}: {got}", "a definition that TE takes") from e
        for func in builder.get().functions.values():
            if isinstance(func, tirx.PrimFunc) and (read := reads_outside(func)) is not None:
                raise usage(
                    f"call_te '{self._key[2]}'", read, "reads that are proved to lie inside",
                    "Guard it with tirx.if_then_else, or clamp a computed index with tirx.min and tirx.max.",
                )  # fmt: skip
        ty = from_relax(call.ty_args[0])
        return ty if isinstance(ty, tuple) else (ty,)

    def emit(self, builder: GraphBuilder, args: Sequence[Any]) -> list[Any]:
        """Emit the call."""
        from tilegrad._base.tvm import relax

        var = builder.emit(self._call(builder.block_builder, args))
        if not hasattr(var.ty, "fields"):
            return [var]
        return [builder.emit(relax.TupleGetItem(var, i)) for i in range(len(var.ty.fields))]


def call_te(
    compute: Callable[..., Any], *inputs: Any, name: str | None = None, template: OwnTemplate | None = None, **attrs: Any
) -> Any:
    """Call a TE definition ``compute(*te tensors, **attrs) -> te tensor or list of them`` as an operator.

    It has no gradient of its own: wrap it in ``custom_vjp`` for one. ``compute`` and the attributes are part of the program's
    key, so define it once, outside loops.

    ``template`` arranges the kernel's loops in place of the general templates; nothing is fused into such a kernel, and the
    tuner searches its space. Raises UsageError for one that is not a ``schedules.OwnTemplate`` from the top of a module, for a
    definition that does not take these arguments or makes no TE tensor, and for a kernel that is not proved to read inside its
    arrays: guard reads with ``if_then_else``, clamp computed indices. Kernels of ``te.extern`` are not analysed.
    """
    if not callable(compute):
        raise usage("call_te, argument 'compute'", repr(compute), "a TE definition, a function of TE tensors")
    takes = f"a function of {len(inputs)} tensors" + (f" and {sorted(attrs)}" if attrs else "")
    _takes(compute, inputs, attrs, "call_te, argument 'compute'", takes)
    where = None
    if template is not None:
        from tilegrad.schedules.own import address

        where = address(template)
    te = _TE(compute, tuple(sorted(attrs.items())), name or compute.__name__.strip("_<>") or "te", where)
    outs = results(record("call", tuple(as_tensor(x)._node for x in inputs), (te,)))
    return outs[0] if len(outs) == 1 else outs
