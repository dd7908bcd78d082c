"""TE definitions of scatter-additions: zero the result, then add every update at its place, in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from tilegrad._base.tvm import te, tirx
from tilegrad.schedules.loops import PARALLEL_WORK, loop, seq
from tilegrad.schedules.stages import id_of, variables

PARTS = 8
"""Into how many ranges the result is cut."""
MIN_ROW = 16
"""Elements that one index moves, below which going through the indices costs more than the threads save; a cache line."""

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
    """Threads own parts of the result: each clears its own and adds the updates that fall there, in their order.

    Parts are ranges of a dimension that the result shares with the updates, where one is long enough; otherwise ranges of
    places, and each part goes through all updates.
    """
    extents = [int(d) for d in updates.shape]
    probe = [tirx.Var("u", "int64") for _ in extents]
    to = place(tirx.decl_buffer(indices.shape, indices.dtype), probe)
    shared = [d for d, u in enumerate(probe) if any(e is u for e in to)]
    axis = next(d for d, e in enumerate(to) if not any(e is u for u in probe))
    inner = [] if {id_of(v) for v in variables(to[axis])} & {id_of(probe[d]) for d in shared} else shared
    order = [*(d for d in range(len(extents)) if d not in inner), *inner]
    last = len(extents) - 1
    long = [d for d in shared if extents[d] >= PARTS * (MIN_ROW if d == last else 1) and (d != last or d not in inner)]
    cut = next((e for e, v in enumerate(to) if any(v is probe[d] for d in long)), axis)
    worth = max(prod(extents), prod(shape)) >= PARALLEL_WORK and (cut != axis or prod(extents[d] for d in inner) >= MIN_ROW)
    parts = min(PARTS, shape[cut]) if worth else 1

    def body(ins: Sequence[tirx.Buffer], outs: Sequence[tirx.Buffer]) -> tirx.Stmt:
        g, index, out = ins[0], ins[1], outs[0]
        part, u = tirx.Var("part", "int64"), [tirx.Var("u", "int64") for _ in extents]
        begin, end = (tirx.floordiv((part + k) * shape[cut], parts) for k in (0, 1))
        at = list(place(index, u))
        work: tirx.Stmt = tirx.BufferStore(out, out[tuple(at)] + g[tuple(u)], at)
        for n, d in reversed(list(enumerate(order))):
            if n == len(order) - len(inner) - 1 and parts > 1 and cut == axis:
                work = tirx.IfThenElse(tirx.And(begin <= at[axis], at[axis] < end), work, None)
            if u[d] is at[cut] and parts > 1:
                stop = tirx.min(end, tirx.const(extents[d], "int64")) if extents[d] < shape[cut] else end
                work = loop(u[d], tirx.max(stop - begin, tirx.const(0, "int64")), work, start=begin)
            else:
                work = loop(u[d], extents[d], work)
        i = [tirx.Var("i", "int64") for _ in shape]
        clear: tirx.Stmt = tirx.BufferStore(out, tirx.const(0, updates.dtype), i)
        for d in reversed(range(len(shape))):
            clear = loop(i[d], end - begin, clear, start=begin) if d == cut else loop(i[d], shape[d], clear)
        return loop(part, parts, seq([clear, work]), tirx.ForKind.PARALLEL if parts > 1 else tirx.ForKind.SERIAL)

    out = tirx.decl_buffer(shape, updates.dtype, name, layout=None)
    return te.extern([shape], [updates, indices], body, dtype=updates.dtype, out_buffers=[out], name=name, tag=name)
