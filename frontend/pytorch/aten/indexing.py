"""Gathering: embedding, index, gather, take. Every general index becomes one ``take`` over joined axes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tilegrad.frontend.pytorch.aten.reduction import gather
from tilegrad.frontend.pytorch.lowering import Cannot, Lowering, Number, axis_of
from tilegrad.frontend.pytorch.table import aten, refuse
from tilegrad.relax_ext.vjp.values import F, Value


def take(k: Lowering, x: Value, index: Value, axis: int) -> Value:
    """``take`` for any dtype; an index out of range reads the nearest element, where PyTorch raises."""
    if x.dtype == "bool":
        return k.value(F.take(k.value(x, "uint8"), index, axis, mode="clip"), "bool")
    return F.take(x, index, axis, mode="clip")


def counted_from_start(k: Lowering, index: Value, n: int) -> Value:
    """Negative indices count from the end."""
    index = index.astype("int64")
    return F.where(F.less(index, 0), index + n, index)


@aten("embedding")
def embedding(
    k: Lowering, weight: Value, indices: Value, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Value:
    """Rows at ``padding_idx`` get no gradient."""
    from tilegrad.relax_ext import ops

    if scale_grad_by_freq:
        raise Cannot("embedding with scale_grad_by_freq")
    rows = take(k, weight, indices, 0)
    if padding_idx < 0:
        return rows
    padding = F.equal(indices, padding_idx).reshape((*indices.shape, 1))
    return F.where(padding, k.call(ops.stop_gradient, rows), rows)


@aten("embedding_dense_backward")
def embedding_dense_backward(
    k: Lowering, grad: Value, indices: Value, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> Value:
    from tilegrad.relax_ext import ops

    if scale_grad_by_freq:
        raise Cannot("embedding with scale_grad_by_freq")
    if padding_idx >= 0:
        padding = F.equal(indices, padding_idx).reshape((*indices.shape, 1))
        grad = F.where(padding, k.number(0, grad.dtype), grad)
    return k.call(ops.take_backward, grad, indices, x_shape=k.out.shape, axis=0, mode="clip")


@aten("index_select", "index_select_copy")
def index_select(k: Lowering, x: Value, dim: int, index: Value) -> Value:
    if x.ndim == 0:
        return x.broadcast_to(index.shape).reshape(k.out.shape)
    return take(k, x, index.reshape((1,)) if index.ndim == 0 else index, axis_of(dim, x.ndim))


@aten("gather")
def aten_gather(k: Lowering, x: Value, dim: int, index: Value, sparse_grad: bool = False) -> Value:
    """PyTorch lets the index be shorter than ``x`` on the other axes."""
    from tilegrad.frontend.pytorch.aten.movement import sliced

    if x.ndim == 0 or index.ndim == 0:
        source = x.reshape((math.prod(x.shape),))
        return take(k, source, index.reshape((math.prod(index.shape),)), 0).reshape(k.out.shape)
    axis = axis_of(dim, x.ndim)
    for a in range(x.ndim):
        if a != axis and index.shape[a] < x.shape[a]:
            x = sliced(k, x, a, 0, index.shape[a])
    return gather(k, x, index, axis)


@aten("take")
def aten_take(k: Lowering, x: Value, index: Value) -> Value:
    n = math.prod(x.shape)
    return take(k, x.reshape((n,)), counted_from_start(k, index, n), 0)


class AdvancedIndex:
    """NumPy's advanced index: which axes are indexed, their joined index, and where the result's axes go."""

    def __init__(self, k: Lowering, shape: Sequence[int], indices: Sequence[Value | None]) -> None:
        self.axes = [i for i, index in enumerate(indices) if index is not None]
        found = [index for index in indices if index is not None]
        if any(i.dtype in ("bool", "uint8") for i in found):
            raise Cannot("boolean indices select a number of elements that depends on values: use torch.where")
        self.index_shape = np.broadcast_shapes(*(i.shape for i in found))
        self.rest = [a for a in range(len(shape)) if a not in self.axes]
        self.order = [*self.axes, *self.rest]
        self.rest_shape = [shape[a] for a in self.rest]
        self.rows = math.prod(shape[a] for a in self.axes)
        """How many places the indexed axes have together."""
        joined: Value | None = None
        for axis, index in zip(self.axes, found, strict=True):
            place = counted_from_start(k, index, shape[axis]).broadcast_to(self.index_shape)
            joined = place if joined is None else joined * shape[axis] + place
        assert joined is not None
        self.joined = joined
        adjacent = self.axes == list(range(self.axes[0], self.axes[-1] + 1))
        self.at = self.axes[0] if adjacent else 0
        """Where the index's axes stand in the result."""

    def rows_first(self, x: Value) -> Value:
        """``x`` as [rows, the other axes]."""
        return x.permute(self.order).reshape([self.rows, *self.rest_shape])

    def restored(self, rows: Value, shape: Sequence[int]) -> Value:
        """The inverse of ``rows_first``."""
        moved = rows.reshape([shape[a] for a in self.order])
        return moved.permute([self.order.index(a) for a in range(len(shape))])

    def result(self, taken: Value) -> Value:
        """[index axes, the other axes] in the order of the result."""
        n = len(self.index_shape)
        before = list(range(n, n + self.at))
        return taken.permute([*before, *range(n), *range(n + self.at, taken.ndim)])

    def from_result(self, values: Value) -> Value:
        """The inverse of ``result``."""
        n = len(self.index_shape)
        return values.permute([*range(self.at, self.at + n), *range(self.at), *range(self.at + n, values.ndim)])


@aten("index.Tensor", "_unsafe_index.Tensor")
def index(k: Lowering, x: Value, indices: Sequence[Value | None]) -> Value:
    if len([i for i in indices if i is not None]) == 1:
        axis = next(a for a, i in enumerate(indices) if i is not None)
        only = indices[axis]
        assert only is not None
        if only.dtype not in ("bool", "uint8"):
            return take(k, x, counted_from_start(k, only, x.shape[axis]), axis)
    at = AdvancedIndex(k, x.shape, indices)
    return at.result(take(k, at.rows_first(x), at.joined, 0))


@aten("_unsafe_masked_index")
def unsafe_masked_index(k: Lowering, x: Value, mask: Value, indices: Sequence[Value | None], fill: Number) -> Value:
    """Where the mask is False, ``fill``; the index there may be anything."""
    at = AdvancedIndex(k, x.shape, indices)
    taken = at.result(take(k, at.rows_first(x), at.joined, 0))
    return F.where(mask, taken, k.number(fill, x.dtype)).broadcast_to(k.out.shape)


@aten("take_along_dim")
def take_along_dim(k: Lowering, x: Value, indices: Value, dim: int | None = None) -> Value:
    if dim is None:
        return aten_take(k, x, indices.reshape((math.prod(indices.shape),)))
    axis = axis_of(dim, x.ndim)
    shape = np.broadcast_shapes(*([d for i, d in enumerate(s) if i != axis] for s in (x.shape, indices.shape)))
    full = [*shape[:axis], 0, *shape[axis:]]
    x = x.broadcast_to([x.shape[axis] if i == axis else d for i, d in enumerate(full)])
    indices = indices.broadcast_to([indices.shape[axis] if i == axis else d for i, d in enumerate(full)])
    return gather(k, x, counted_from_start(k, indices, x.shape[axis]), axis)


@aten("nonzero_static")
def nonzero_static(k: Lowering, x: Value, *, size: int, fill_value: int = -1) -> Value:
    """The first ``size`` places that are not zero, a row each; rows behind the last hold the fill value."""
    n = math.prod(x.shape)
    found = k.value(x, "bool").reshape((n,))
    rank = F.cumsum(k.value(found, "int64"), 0) - 1
    wanted = F.logical_and(F.equal(rank, k.arange(size).reshape((size, 1))), found)
    place = F.sum(F.where(wanted, k.arange(n), k.number(0, "int64")), [1], False)
    count = F.sum(k.value(found, "int64"), [0], False)
    columns = []
    for axis, extent in enumerate(x.shape):
        stride = math.prod(x.shape[axis + 1 :])
        columns.append(F.mod(F.floor_divide(place, k.number(stride, "int64")), k.number(extent, "int64")).reshape((size, 1)))
    there = F.less(k.arange(size), count).reshape((size, 1))
    return F.where(there, F.concat(columns, 1), k.number(fill_value, "int64"))


_DATA_DEPENDENT = "the result's size depends on values; tilegrad's shapes are static. Use a mask with torch.where instead"
refuse(
    _DATA_DEPENDENT, "nonzero", "masked_select", "_unique2", "unique_consecutive", "unique_dim",
    "repeat_interleave.Tensor", "argwhere",
    "item", "_local_scalar_dense", "bincount",
)  # fmt: skip
