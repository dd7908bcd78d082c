"""TE definitions of pooling by windows, and of its transposes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from tilegrad._base.tvm import te, tirx
from tilegrad.schedules.floats import is_nan

Ints = tuple[int, ...]
Index = Sequence[tirx.Expr]


def index_dtype(pool: Ints) -> str:
    """The type of places in a window: sixteen bits unless the window is huge. (TVM widens int32 to int64 among indices.)"""
    return "int16" if prod(pool) < 1 << 15 else "int32"


def max_pool_index(x: te.Tensor, y: te.Tensor, pool: Ints, strides: Ints, padding: Ints, dilation: Ints) -> te.Tensor:
    """The place in each window (row-major) of the first element that equals the window's maximum y, or is NaN."""
    ks, dtype = _window(pool), index_dtype(pool)

    def element(n: tirx.Var, c: tirx.Var, *o: tirx.Var) -> tirx.Expr:
        at, inside = _position(o, ks, x.shape[2:], strides, padding, dilation)
        value = x(n, c, *[tirx.max(tirx.min(a, d - 1), 0) for a, d in zip(at, x.shape[2:], strict=True)])
        found = tirx.all(inside, tirx.any(value == y(n, c, *o), is_nan(value)))
        place = tirx.Cast(dtype, _flat(ks, pool))
        return te.min(tirx.if_then_else(found, place, tirx.const(prod(pool), dtype)), axis=ks)

    return te.compute(y.shape, element, name="max_pool_index")


def window_gather(x: te.Tensor, index: te.Tensor, pool: Ints, strides: Ints, padding: Ints, dilation: Ints) -> te.Tensor:
    """y[n, c, o] = the element of window o at place index[n, c, o]; 0 where there is none."""

    def element(n: tirx.Var, c: tirx.Var, *o: tirx.Var) -> tirx.Expr:
        rest: tirx.Expr = tirx.Cast("int32", index(n, c, *o))
        ks: list[tirx.Expr] = []
        for size in reversed(pool):
            ks.insert(0, rest % size if len(ks) + 1 < len(pool) else rest)
            rest = rest // size
        at, inside = _position(o, ks, x.shape[2:], strides, padding, dilation)
        return tirx.if_then_else(tirx.all(inside, ks[0] < pool[0]), x(n, c, *at), tirx.const(0, x.dtype))

    return te.compute(index.shape, element, name="window_gather")


def window_scatter(
    dy: te.Tensor, index: te.Tensor, x_shape: Ints, pool: Ints, strides: Ints, padding: Ints, dilation: Ints
) -> te.Tensor:
    """dx[n, c, i] = the sum of dy[n, c, o] over the windows o whose place index[n, c, o] is i."""

    def term(n: tirx.Var, c: tirx.Var, o: Index, k: Index, inside: tirx.Expr) -> tirx.Expr:
        chosen = tirx.all(inside, index(n, c, *o) == tirx.Cast(index.dtype, _flat(k, pool)))
        return tirx.if_then_else(chosen, dy(n, c, *o), tirx.const(0, dy.dtype))

    return _over_windows("window_scatter", dy, term, x_shape, pool, strides, padding, dilation)


def avg_pool(
    x: te.Tensor, y_shape: Ints, pool: Ints, strides: Ints, padding: Ints, dilation: Ints, count_include_pad: bool
) -> te.Tensor:
    """y[n, c, o] = the mean of window o; padding counts as zeros, or not at all."""
    ks = _window(pool)

    def element(n: tirx.Var, c: tirx.Var, *o: tirx.Var) -> tirx.Expr:
        at, inside = _position(o, ks, x.shape[2:], strides, padding, dilation)
        count = _count(o, x.shape[2:], pool, strides, padding, dilation, count_include_pad)
        return te.sum(tirx.if_then_else(inside, x(n, c, *at) / tirx.Cast(x.dtype, count), tirx.const(0, x.dtype)), axis=ks)

    return te.compute(y_shape, element, name="avg_pool")


def avg_pool_backward(
    dy: te.Tensor, x_shape: Ints, pool: Ints, strides: Ints, padding: Ints, dilation: Ints, count_include_pad: bool
) -> te.Tensor:
    """dx[n, c, i] = the sum over the windows o that hold i of dy[n, c, o] / the number of elements of o."""

    def term(n: tirx.Var, c: tirx.Var, o: Index, k: Index, inside: tirx.Expr) -> tirx.Expr:
        count = _count(o, x_shape[2:], pool, strides, padding, dilation, count_include_pad)
        return tirx.if_then_else(inside, dy(n, c, *o) / tirx.Cast(dy.dtype, count), tirx.const(0, dy.dtype))

    return _over_windows("avg_pool_backward", dy, term, x_shape, pool, strides, padding, dilation)


def adaptive_avg_pool_backward(dy: te.Tensor, x_shape: Ints) -> te.Tensor:
    """dx[n, c, i] = the sum over o with floor(o I / O) <= i < ceil((o + 1) I / O) of dy[n, c, o] / the length of that run."""
    ins, outs = x_shape[2:], [int(d) for d in dy.shape[2:]]
    most = [-(-o // i) + 1 for i, o in zip(ins, outs, strict=True)]
    rs = [te.reduce_axis((0, m), name=f"r{d}") for d, m in enumerate(most)]

    def element(n: tirx.Var, c: tirx.Var, *i: tirx.Var) -> tirx.Expr:
        inside, area, at = [], tirx.const(1, dy.dtype), []
        for x, r, size, out in zip(i, rs, ins, outs, strict=True):
            o = x * out // size + r  # the first run that can hold x, and those after it
            start, stop = o * size // out, ((o + 1) * size + out - 1) // out
            inside.append(tirx.all(o < out, start <= x, x < stop))
            area = area * tirx.Cast(dy.dtype, stop - start)
            at.append(tirx.min(o, out - 1))
        return te.sum(tirx.if_then_else(tirx.all(*inside), dy(n, c, *at) / area, tirx.const(0, dy.dtype)), axis=rs)

    return te.compute(x_shape, element, name="adaptive_avg_pool_backward")


def _window(pool: Ints) -> list[tirx.IterVar]:
    return [te.reduce_axis((0, k), name=f"k{d}") for d, k in enumerate(pool)]


def _flat(k: Index, pool: Ints) -> tirx.Expr:
    place = k[0]
    for d in range(1, len(pool)):
        place = place * pool[d] + k[d]
    return place


def _position(
    o: Index, k: Index, size: Sequence[int], strides: Ints, padding: Ints, dilation: Ints
) -> tuple[list[tirx.Expr], tirx.Expr]:
    """Where in the image element k of window o lies, and whether that is inside."""
    at = [o[d] * strides[d] - padding[d] + k[d] * dilation[d] for d in range(len(strides))]
    return at, tirx.all(*[tirx.all(a >= 0, a < n) for a, n in zip(at, size, strict=True)])


def _count(
    o: Index, size: Sequence[int], pool: Ints, strides: Ints, padding: Ints, dilation: Ints, include_pad: bool
) -> tirx.Expr:
    """How many elements window o averages over; positions beyond the padded image (ceil mode) never count."""
    nd, count = len(strides), tirx.const(1, "int32")
    for d in range(nd):
        low, high = (-padding[d], size[d] + padding[nd + d]) if include_pad else (0, size[d])
        start = o[d] * strides[d] - padding[d]
        first = tirx.max(0, (low - start + dilation[d] - 1) // dilation[d])
        last = tirx.min(pool[d] - 1, (high - 1 - start) // dilation[d])
        count = count * tirx.Cast("int32", last - first + 1)
    return tirx.max(count, 1)


def _over_windows(
    name: str,
    dy: te.Tensor,
    term: Callable[..., tirx.Expr],
    x_shape: Ints,
    pool: Ints,
    strides: Ints,
    padding: Ints,
    dilation: Ints,
) -> te.Tensor:
    """Sum ``term`` over the windows that hold each position of the image: one candidate per place in a window."""
    ks = _window(pool)

    def element(n: tirx.Var, c: tirx.Var, *i: tirx.Var) -> tirx.Expr:
        shifted = [i[d] + padding[d] - ks[d] * dilation[d] for d in range(len(pool))]
        o = [s // st for s, st in zip(shifted, strides, strict=True)]
        inside = tirx.all(
            *[
                tirx.all(s >= 0, s % st == 0, s // st < dy.shape[2 + d])
                for d, (s, st) in enumerate(zip(shifted, strides, strict=True))
            ]
        )
        return te.sum(term(n, c, o, ks, inside), axis=ks)

    return te.compute(x_shape, element, name=name)
