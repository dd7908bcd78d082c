"""How array functions reach the recorder: arguments to nodes, dtypes promoted, axes checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tilegrad._base.errors import DTypeError, ShapeError
from tilegrad.frontend import dtypes, evaluate
from tilegrad.frontend.recording import FLOATS, Node, const, fail_line, leaf, record

if TYPE_CHECKING:
    from tilegrad.frontend.tensor import Tensor

Axes = int | Sequence[int] | None


def wrap(node: Node) -> Tensor:
    """A Tensor on a node."""
    return _tensor_class[0](node)


_tensor_class: list[Any] = []  # filled in by ``tensor``, which imports this module


def data_node(data: Any, dtype: str | None = None) -> Node:
    """A leaf with a copy of the data."""
    if hasattr(data, "_node"):
        data = data.numpy()
    elif hasattr(data, "detach") and hasattr(data, "cpu"):  # a PyTorch tensor
        data = data.detach().cpu().numpy()
    elif not isinstance(data, (np.ndarray, np.generic, float, int)):
        data = _plain(data)
    node = leaf(*dtypes.from_data(data, dtype))
    evaluate.new_data(node)
    return node


def _plain(data: Any) -> Any:
    """Nested sequences with Tensors in them as nested sequences of numbers."""
    if hasattr(data, "_node"):
        return data.tolist()
    return [_plain(d) for d in data] if isinstance(data, (list, tuple)) else data


def as_tensor(x: Any, dtype: str | None = None) -> Tensor:
    """``x`` if it is a Tensor, otherwise a Tensor with a copy of it."""
    return x if hasattr(x, "_node") else wrap(data_node(x, dtype))


def node_of(x: Any) -> Node:
    """The node of a Tensor, or of a new one made from data. Chains that have grown too long are computed first."""
    try:
        node: Node = x._node
    except AttributeError:
        return data_node(x)
    return node if node.depth < evaluate.MAX_DEPTH_WITHOUT_GRADIENT else _shortened(node)


def _shortened(node: Node) -> Node:
    """A chain that has become too long is computed up to here; of memory that somebody else may write, a copy is read."""
    if node.op == "leaf" and node.depth == evaluate.SHARED:
        assert node.value is not None
        copy = leaf(node.value.copy(), node.type.dtype)
        evaluate.new_data(copy)
        return copy
    if evaluate.is_too_deep(node):
        evaluate.value_of(node)
    return node


def apply(op: str, *inputs: Any, attrs: tuple[Any, ...] = ()) -> Tensor:
    """Record one operator of the table."""
    return wrap(record(op, tuple([node_of(x) for x in inputs]), attrs))


def several(op: str, *inputs: Any, attrs: tuple[Any, ...] = ()) -> list[Tensor]:
    """Record an operator with several results."""
    group = record(op, tuple([node_of(x) for x in inputs]), attrs)
    return results(group)


def results(group: Node) -> list[Tensor]:
    """One Tensor per result of a node."""
    return [wrap(record("get", (group,), (i,))) for i in range(len(group.type))]


def detached(node: Node) -> Node:
    """An alias that no gradient passes."""
    alias = Node("detach", (node,), (), node.type, -2, node.where)
    alias.depth, alias.stop, alias.value = node.depth, node.grad or node.stop, node.value
    if alias.value is not None:
        alias.op, alias.inputs, alias.owner = "leaf", (), node.owner
    return alias


def operands(a: Any, b: Any, floats: bool = False) -> tuple[Node, Node]:
    """Both as nodes of one dtype, promoted as PyTorch does. Python numbers take the array's dtype where they can.

    Raises DTypeError for a number that the whole numbers of that dtype do not hold.
    """
    if isinstance(b, _NUMBER):
        na = node_of(a)
        dtype = _beside(b, na.type.dtype, floats)
        return cast(na, dtype), const(b, dtype)
    if isinstance(a, _NUMBER):
        nb = node_of(b)
        dtype = _beside(a, nb.type.dtype, floats)
        return const(a, dtype), cast(nb, dtype)
    na, nb = node_of(a), node_of(b)
    if na.type is not nb.type or floats:
        dtype = dtypes.promote(na.type, nb.type)
        dtype = "float32" if floats and dtype not in FLOATS else dtype
        return cast(na, dtype), cast(nb, dtype)
    return na, nb


_NUMBER = (bool, int, float)


def _beside(number: bool | int | float, other: str, floats: bool) -> str:
    """The common dtype of a number and an array's."""
    dtype = dtypes.scalar_dtype(number, other)
    if floats and dtype not in FLOATS:
        return "float32"
    if not dtypes.fits(number, dtype):
        raise DTypeError(fail_line() + "number", repr(number), f"a value of {dtype}", "Convert the array with astype first.")
    return dtype


def cast(node: Node, dtype: str) -> Node:
    """The node in another dtype, or itself."""
    return node if node.type.dtype == dtype else record("astype", (node,), (dtype,))


def axes_of(axis: Axes, rank: int, op: str) -> tuple[int, ...]:
    """Axes from 0, in order; all of them for None. Raises ShapeError."""
    if axis is None:
        return tuple(range(rank))
    given = (axis,) if isinstance(axis, int) else tuple(axis)
    if any(not -rank <= a < rank for a in given) or len({a % rank for a in given}) != len(given):
        raise ShapeError(
            fail_line() + f"{op}, argument 'axis'", f"{axis} for {rank} axes", f"different axes from {-rank} to {rank - 1}"
        )
    return tuple(sorted(a % rank for a in given))
