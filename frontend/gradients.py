"""Differentiation of recorded graphs: ``backward`` and the function transforms.

A gradient is one recorded node, ``vjp``; it becomes a backward graph when the recording is converted, by the walker of
``relax_ext.gradient``. Its results are ordinary Tensors, so every transform can be applied to them again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilegrad._base.errors import DTypeError, ShapeError
from tilegrad.frontend.apply import as_tensor, results, wrap
from tilegrad.frontend.recording import FLOATS, Node, fail_line, grad_mode, ordered, record, usage
from tilegrad.frontend.tensor import Tensor


def no_grad() -> Any:
    """A context in which nothing is recorded for differentiation; results have requires_grad False."""
    return grad_mode(False)


def enable_grad() -> Any:
    """Undo ``no_grad`` inside of it."""
    return grad_mode(True)


def vjp_nodes(outputs: Sequence[Node], cotangents: Sequence[Node], wrt: Sequence[Node], differentiable: bool) -> list[Tensor]:
    """One Tensor per ``wrt``: the vector-Jacobian product, zeros where there is no influence."""
    group = record("vjp", (*outputs, *cotangents, *wrt), (len(outputs), len(cotangents)))
    if not differentiable:
        group.grad, group.stop = False, True
    tensors = results(group)
    for t in tensors:
        t._node.grad, t._node.stop = group.grad or (differentiable and any(n.grad for n in group.inputs)), not differentiable
    return tensors


def ones_for(output: Tensor, what: str) -> Node:
    """Cotangent 1 of a single element. Raises ShapeError for more, DTypeError for whole numbers."""
    if output.size != 1:
        raise ShapeError(
            fail_line() + what, f"a result of shape {output.shape}", "a single element",
            "Reduce it with sum() or mean(), or give a cotangent of its shape.",
        )  # fmt: skip
    if output.dtype not in FLOATS:
        raise DTypeError(fail_line() + what, f"a result of dtype {output.dtype}", "a float")
    return record("full", (), (output.shape, 1.0, output.dtype))


def cotangent_for(output: Tensor, given: Any, what: str) -> Node:
    """The cotangent that was given, checked against the output."""
    g = as_tensor(given, output.dtype)
    if g.shape != output.shape:
        raise ShapeError(fail_line() + what, f"a cotangent of shape {g.shape}", f"the result's shape {output.shape}")
    return g.astype(output.dtype)._node


def backward(loss: Tensor, gradient: Any, create_graph: bool) -> None:
    """See ``Tensor.backward``."""
    node = loss._node
    if not node.grad:
        raise usage(
            "backward", "a result that depends on no Tensor with requires_grad", "one that does",
            "Make the parameters with requires_grad=True, and do not compute the loss under no_grad.",
        )  # fmt: skip
    cotangent = ones_for(loss, "backward") if gradient is None else cotangent_for(loss, gradient, "backward")
    leaves = [n for n in ordered([node], lambda n: () if n.bound else tuple(i for i in n.inputs if i.grad)) if n.bound]
    lost = [n for n in ordered([node], lambda n: () if n.bound else n.inputs) if n.op == "leaf" and n.grad and not n.bound]
    if lost or not leaves:
        raise usage(
            "backward", "a result whose graph is gone: a parameter it was computed from has been overwritten since",
            "backward() before opt.step()", "Compute the loss again.",
        )  # fmt: skip
    owners = [n.owner() if n.owner else None for n in leaves]
    with grad_mode(True):
        grads = vjp_nodes([node], [cotangent], leaves, create_graph)
    with grad_mode(create_graph):
        for owner, g in zip(owners, grads, strict=True):
            if owner is not None:
                owner._grad = g if owner._grad is None else owner._grad + g


# ***** containers *****


def flatten(tree: Any) -> tuple[list[Any], Any]:
    """Leaves of nested dicts, lists, tuples, named tuples and dataclasses, and what ``unflatten`` needs."""
    import dataclasses

    if tree is None:
        return [], None
    if isinstance(tree, dict):
        keys: Any = list(tree)
        make: Callable[[Any], Any]
        parts, make = [tree[k] for k in keys], lambda p: type(tree)(zip(keys, p, strict=True))
    elif isinstance(tree, (list, tuple)):
        parts = list(tree)
        make = (lambda p: type(tree)(*p)) if hasattr(tree, "_fields") else (lambda p: type(tree)(p))
    elif dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        names = [f.name for f in dataclasses.fields(tree)]
        parts, make = [getattr(tree, n) for n in names], lambda p: dataclasses.replace(tree, **dict(zip(names, p, strict=True)))
    else:
        return [tree], ...
    flat = [flatten(p) for p in parts]
    return [x for leaves, _ in flat for x in leaves], (make, [(len(leaves), spec) for leaves, spec in flat])


def unflatten(leaves: Sequence[Any], spec: Any) -> Any:
    """The inverse of ``flatten``."""
    if spec is None:
        return None
    if spec is ...:
        return leaves[0]
    make, parts = spec
    out, at = [], 0
    for n, sub in parts:
        out.append(unflatten(leaves[at : at + n], sub))
        at += n
    return make(out)


def argument(x: Any) -> Tensor:
    """A fresh variable with ``x``'s value, so that differentiation sees this use of it alone."""
    x = as_tensor(x)
    if x.dtype not in FLOATS:
        raise DTypeError(fail_line() + "differentiation", f"an argument of dtype {x.dtype}", "floats")
    node = Node("alias", (x._node,), (), x._node.type, -3, x._node.where)
    node.depth, node.grad, node.bound = x._node.depth + 1, True, False
    return wrap(node)


def to_arrays(tensors: Sequence[Tensor]) -> list[np.ndarray]:
    """Values of several Tensors, computed together."""
    from tilegrad.frontend import evaluate

    evaluate.evaluate([t._node for t in tensors])
    return [t.numpy() for t in tensors]
