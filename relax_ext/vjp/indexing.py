"""Rules of gathering, scattering and sorting. Indices carry no gradient; duplicates add up."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilegrad._base.errors import UnsupportedOperatorError
from tilegrad.relax_ext import ops
from tilegrad.relax_ext.ops import indexing as index_ops
from tilegrad.relax_ext.vjp.table import vjp_rule
from tilegrad.relax_ext.vjp.values import F, Node, Value


@vjp_rule("relax.take")
def take(n: Node, g: Value):
    """z = x[..., i, ...]: g added at the indices."""
    axis, mode = n.attr("axis"), n.attr("mode")
    axis = axis if axis is None else axis % n.x.ndim
    return g.tape.bind(ops.take_backward(g.expr, n.y.expr, x_shape=n.x.shape, axis=axis, mode=mode))


@vjp_rule("tilegrad.take_backward")
def take_backward(n: Node, g: Value):
    """z = the addition of y at indices: g taken there."""
    return F.take(g, n.y, n.attr("axis"), "wrap" if n.attr("mode") == "fast" else n.attr("mode"))


@vjp_rule("relax.gather_elements")
def gather_elements(n: Node, g: Value):
    """z[i, j] = x[i, k[i, j]]: g added at the indices."""
    return gather_elements_transpose(g, n.y, n.x.shape, n.attr("axis") % n.x.ndim)


def gather_elements_transpose(g: Value, indices: Value, shape: tuple[int, ...], axis: int) -> Value:
    """Zeros of ``shape`` with ``g`` added at ``indices`` along ``axis``."""
    return g.tape.bind(index_ops.gather_elements_backward(g.expr, indices.expr, x_shape=shape, axis=axis))


@vjp_rule("tilegrad.gather_elements_backward")
def gather_elements_backward(n: Node, g: Value):
    """z = the addition of y at indices: g gathered there."""
    return F.gather_elements(g, n.y, n.attr("axis"))


@vjp_rule("relax.gather_nd")
def gather_nd(n: Node, g: Value):
    """z[i] = x[k[i, :]]: g added at the indices."""
    return gather_nd_transpose(g, n.y, n.x.shape, n.attr("batch_dims"))


def gather_nd_transpose(g: Value, indices: Value, shape: tuple[int, ...], batch_dims: int = 0) -> Value:
    """Zeros of ``shape`` with ``g`` added at ``indices``."""
    return g.tape.bind(index_ops.gather_nd_backward(g.expr, indices.expr, x_shape=shape, batch_dims=batch_dims))


@vjp_rule("tilegrad.gather_nd_backward")
def gather_nd_backward(n: Node, g: Value):
    """z = the addition of y at indices: g gathered there."""
    return F.gather_nd(g, n.y, n.attr("batch_dims"))


def _joined(indices: list[Value]) -> Value:
    """Index tensors, one per axis, as one tensor whose last axis holds an element's indices."""
    shape = np.broadcast_shapes(*(i.shape for i in indices))
    parts = [i.broadcast_to(shape).astype("int64").reshape([*shape, 1]) for i in indices]
    return parts[0] if len(parts) == 1 else F.concat(parts, len(shape))


def _index_list(n: Node) -> list[Value]:
    return n.y if isinstance(n.y, list) else [n.y]


@vjp_rule("relax.index_tensor")
def index_tensor(n: Node, g: Value):
    """z = x[i, j, ...]: g added at the indices."""
    return gather_nd_transpose(g, _joined(_index_list(n)), n.x.shape)


@vjp_rule("relax.index_put")
def index_put(n: Node, g: Value):
    """z = x with z[i, j, ...] = y, or += y: (g, zero where overwritten; g taken at the indices)."""
    indices = _joined(_index_list(n))
    gy = F.gather_nd(g, indices)
    gx = g if n.attr("accumulate") else F.where(gather_nd_transpose(gy.zeros_like() + 1.0, indices, n.x.shape) > 0.0, 0.0, g)
    return gx, None, gy


@vjp_rule("relax.scatter_nd")
def scatter_nd(n: Node, g: Value):
    """z = x with y put or added at indices: (g, zero where overwritten; g gathered at the indices)."""
    gy = F.gather_nd(g, n.y)
    if n.attr("reduction") == "add":
        return g, None, gy
    _require(n, "update")
    return F.where(gather_nd_transpose(gy.zeros_like() + 1.0, n.y, n.x.shape) > 0.0, 0.0, g), None, gy


@vjp_rule("relax.scatter_elements")
def scatter_elements(n: Node, g: Value):
    """z = x with y put, added or multiplied at indices, or the extreme kept (ties in equal parts)."""
    axis, reduction = n.attr("axis") % n.x.ndim, n.attr("reduction")
    x, indices, y = n.args

    def gathered(v: Value) -> Value:
        return F.gather_elements(v, indices, axis)

    def scattered(v: Value) -> Value:
        return gather_elements_transpose(v, indices, x.shape, axis)

    if reduction == "add":
        return g, None, gathered(g)
    if reduction == "update":
        return F.where(scattered(y.zeros_like() + 1.0) > 0.0, 0.0, g), None, gathered(g)
    if reduction == "mul":
        gz = g * n.out
        return gz / x, None, gathered(gz) / y
    if reduction in ("min", "max"):
        kept, won = x.equals(n.out).astype(g.dtype), y.equals(gathered(n.out)).astype(g.dtype)
        share = g / (kept + scattered(won))
        return share * kept, None, gathered(share) * won
    return _require(n, "update, add, mul, min or max")


def _require(n: Node, accepted: str) -> None:
    if n.attr("reduction") not in accepted:
        raise UnsupportedOperatorError(f"gradient of {n.op}", f"reduction '{n.attr('reduction')}'", accepted)


@vjp_rule("relax.sort")
def sort(n: Node, g: Value):
    """z = x in order: g back where each element came from."""
    axis = n.attr("axis") % n.x.ndim
    order = F.argsort(n.x, axis, n.attr("descending"), "int64")
    return gather_elements_transpose(g, order, n.x.shape, axis)


@vjp_rule("relax.topk")
def topk(n: Node, g: Any):
    """The k extreme elements: g of the values back where they came from."""
    axis = n.attr("axis") % n.x.ndim
    if n.attr("ret_type") == "both":
        return None if g[0] is None else gather_elements_transpose(g[0], n.out[1], n.x.shape, axis)
    largest = n.attr("largest")
    order = F.argsort(n.x, axis, largest, "int64")
    from tilegrad.relax_ext.vjp.movement import piece

    return gather_elements_transpose(g, piece(order, axis, 0, g.shape[axis]), n.x.shape, axis)


@vjp_rule("relax.median")
def median(n: Node, g: Any):
    """The lower middle element: g of the value to the element that was taken."""
    axes = n.attr("axis")
    if axes is None:
        flat = n.x.reshape([-1]) if n.x.ndim != 1 else n.x
        order = F.argsort(flat, 0, False, "int64")
        from tilegrad.relax_ext.vjp.movement import piece

        middle = (flat.shape[0] - 1) // 2
        return gather_elements_transpose(g.reshape([1]), piece(order, 0, middle, middle + 1), flat.shape, 0).reshape(n.x.shape)
    axis = n.axes()[0]
    kept = [1 if i == axis else d for i, d in enumerate(n.x.shape)]
    return None if g[0] is None else gather_elements_transpose(g[0].reshape(kept), n.out[1].reshape(kept), n.x.shape, axis)
