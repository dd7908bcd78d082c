"""TE definitions of scatter-additions: zero the result, then add every update at its place, in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tilegrad._base.tvm import te, tirx

Ints = tuple[int, ...]
Place = Callable[[Any, Sequence[tirx.Expr]], Sequence[tirx.Expr]]


def take_backward(g: te.Tensor, indices: te.Tensor, x_shape: Ints, axis: int | None, mode: str) -> te.Tensor:
    """dx[..., indices[i], ...] += g[..., i, ...]; negative indices count from the end."""
    flat = axis is None
    shape, at = ((prod(x_shape),), 0) if axis is None else (x_shape, axis)
    k = len(indices.shape)

    def place(index: Any, u: Sequence[tirx.Expr]) -> Sequence[tirx.Expr]:
        return [*u[:at], _wrap(index[tuple(u[at : at + k])] if k else index[()], shape[at], mode), *u[at + k :]]

    dx = _scatter_add("take_backward", g, indices, shape, place)
    if not flat or len(x_shape) == 1:
        return dx
    return te.compute(x_shape, lambda *i: dx(_ravel(i, x_shape)), name="reshape")


def gather_elements_backward(g: te.Tensor, indices: te.Tensor, x_shape: Ints, axis: int) -> te.Tensor:
    """dx[i, indices[i, j], ...] += g[i, j, ...] for axis 1, and so on."""

    def place(index: Any, u: Sequence[tirx.Expr]) -> Sequence[tirx.Expr]:
        return [*u[:axis], _wrap(index[tuple(u)], x_shape[axis], "wrap"), *u[axis + 1 :]]

    return _scatter_add("gather_elements_backward", g, indices, x_shape, place)


def gather_nd_backward(g: te.Tensor, indices: te.Tensor, x_shape: Ints, batch_dims: int) -> te.Tensor:
    """dx[batch, indices[batch, i, :], ...] += g[batch, i, ...]."""
    k, depth = len(indices.shape) - 1, int(indices.shape[-1])

    def place(index: Any, u: Sequence[tirx.Expr]) -> Sequence[tirx.Expr]:
        found = [_wrap(index[(*u[:k], d)], x_shape[batch_dims + d], "wrap") for d in range(depth)]
        return [*u[:batch_dims], *found, *u[k:]]

    return _scatter_add("gather_nd_backward", g, indices, x_shape, place)


def _wrap(index: tirx.Expr, extent: int, mode: str) -> tirx.Expr:
    """An index inside the axis: negative ones from the end; clipped where the operator clips."""
    index = tirx.Cast("int64", index)
    if mode == "clip":
        return tirx.min(tirx.max(index, 0), extent - 1)
    return tirx.Select(index < 0, index + extent, index)


def _ravel(i: Sequence[tirx.Expr], shape: Ints) -> tirx.Expr:
    place = i[0]
    for d in range(1, len(shape)):
        place = place * shape[d] + i[d]
    return place


def _scatter_add(name: str, updates: te.Tensor, indices: te.Tensor, shape: Ints, place: Place) -> te.Tensor:
    extents = [int(d) for d in updates.shape]

    def body(ins: Sequence[tirx.Buffer], outs: Sequence[tirx.Buffer]) -> tirx.Stmt:
        g, index, out = ins[0], ins[1], outs[0]
        with IRBuilder() as ib:
            with T.seq_scope():
                with T.grid(*shape) as i:
                    T.buffer_store(out, tirx.const(0, updates.dtype), _list(i))
                with T.grid(*extents) as u:
                    at = list(place(index, _list(u)))
                    T.buffer_store(out, out[tuple(at)] + g[tuple(_list(u))], at)
            return ib.get()

    out = tirx.decl_buffer(shape, updates.dtype, name, layout=None)
    return te.extern([shape], [updates, indices], body, dtype=updates.dtype, out_buffers=[out], name=name, tag=name)


def _list(i: Any) -> list[tirx.Expr]:
    """Loop variables of a grid, which gives a lone variable for one axis."""
    return [i] if isinstance(i, tirx.Var) else list(i)
