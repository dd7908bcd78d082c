"""Convolution in 1, 2 or 3 dimensions and its two gradients, each as one contraction stage.

Layouts are NC* for images and OI* for weights. Padding is a bounds test inside the read: no padded copy exists.
A transposed convolution is ``conv_by_data``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilegrad._base.errors import ShapeError
from tilegrad._base.tvm import te, tirx
from tilegrad.schedules.te.matmul import cast, dims, result_types

Pads = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class ConvAttrs:
    """Per spatial dimension: stride, (zeros before, zeros after), dilation; and the number of channel groups."""

    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    groups: int = 1

    def out_size(self, size: Sequence[int], kernel: Sequence[int]) -> tuple[int, ...]:
        """Spatial extents of the convolution's result."""
        return tuple(
            (n + sum(p) - d * (k - 1) - 1) // s + 1
            for n, k, s, p, d in zip(size, kernel, self.strides, self.padding, self.dilation, strict=True)
        )


def conv_attrs(rank: int, strides: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1) -> ConvAttrs:
    """ConvAttrs from scalars, one value a dimension, or (for padding) a (before, after) pair a dimension."""
    spread = [tuple(v) if isinstance(v, Sequence) else (v,) * rank for v in (strides, padding, dilation)]
    pads = tuple((p, p) if isinstance(p, int) else (int(p[0]), int(p[1])) for p in spread[1])
    if any(len(v) != rank for v in (*spread, pads)):
        raise ShapeError("conv", f"strides {strides}, padding {padding}, dilation {dilation}", f"{rank} values each")
    return ConvAttrs(spread[0], pads, spread[2], groups)


def conv(
    x: te.Tensor,
    w: te.Tensor,
    strides: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    out_dtype: str | None = None,
) -> te.Tensor:
    """Cross-correlation of ``x [n, c, *size]`` with ``w [o, c / groups, *kernel]`` to ``[n, o, *out]``.

    Sums in float32 for 16-bit floats and in int32 for int8. Raises ShapeError and DTypeError.
    """
    rank, where = len(x.shape) - 2, f"conv{len(x.shape) - 2}d"
    at = conv_attrs(rank, strides, padding, dilation, groups)
    _check(where, dims(x), dims(w), at)
    acc, out = result_types(x, w, out_dtype, where)
    size, kernel = dims(x)[2:], dims(w)[2:]
    (per_o, per_c) = (dims(w)[0] // groups, dims(w)[1])
    taps = _reduce_axes(w.shape[1:], "ck")

    def product(n: Any, o: Any, *pos: Any) -> Any:
        c, *k = (t.var for t in taps)
        src = [p * s + t * d - b for p, t, s, d, (b, _) in zip(pos, k, at.strides, at.dilation, at.padding, strict=True)]
        read = _guarded(x, (n, _grouped(o, per_o, per_c, groups) + c, *src), _reach(at, kernel, size), acc)
        return te.sum(read * w(o, c, *k).astype(acc), axis=taps)

    shape = (x.shape[0], w.shape[0], *(_like(x, e) for e in at.out_size(size, kernel)))
    return _result(shape, product, where, out, dims(x), dims(w), at)


def conv_by_data(
    dy: te.Tensor,
    w: te.Tensor,
    x_shape: Sequence[int],
    strides: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    out_dtype: str | None = None,
) -> te.Tensor:
    """The gradient of ``conv`` by its image of shape ``x_shape``, given ``dy [n, o, *out]``: a transposed convolution.

    A strided one is written by phase: position x = s * x1 + x2 meets only every s-th tap, chosen by x2, so that no
    product with a zero between the samples of ``dy`` is formed.
    """
    rank, where = len(dy.shape) - 2, f"conv{len(dy.shape) - 2}d_by_data"
    at = conv_attrs(rank, strides, padding, dilation, groups)
    _check(where, tuple(map(int, x_shape)), dims(w), at)
    acc, out = result_types(dy, w, out_dtype, where)
    kernel, size = dims(w)[2:], dims(dy)[2:]
    (per_o, per_c) = (dims(w)[0] // groups, dims(w)[1])
    phased = [s > 1 and math.gcd(s, d) == 1 for s, d in zip(at.strides, at.dilation, strict=True)]
    counts = [-(-k // s) if ph else k for k, s, ph in zip(kernel, at.strides, phased, strict=True)]
    taps = _reduce_axes((_like(w, per_o), *(_like(w, c) for c in counts)), "ok")

    def product(n: Any, c: Any, *pos: Any) -> Any:
        o, *k = (t.var for t in taps)
        tap, src, tap_ok, src_ok = [], [], [], []
        for x, t, s, d, (b, _), kn, n_out, ph in zip(
            pos, k, at.strides, at.dilation, at.padding, kernel, size, phased, strict=True
        ):
            if ph:
                first = tirx.floormod((tirx.floormod(x, s) + b) * pow(d, -1, s), s)
                tap.append(t * s + first)
                src.append(tirx.floordiv(x, s) + tirx.floordiv(tirx.floormod(x, s) + b - first * d, s) - t * d)
                tap_ok += [tap[-1] < kn] if kn % s else []
            else:
                num = x + b - t * d
                tap.append(t)
                src.append(num if s == 1 else tirx.floordiv(num, s))
                src_ok += [tirx.floormod(num, s).equal(0)] if s > 1 else []
            src_ok += [src[-1] >= 0, src[-1] < n_out]
        index_o = _grouped(c, per_c, per_o, groups) + o
        read = _where(src_ok, dy(n, index_o, *src).astype(acc), acc)
        weight = _where(tap_ok, w(index_o, c if groups == 1 else tirx.floormod(c, per_c), *tap).astype(acc), acc)
        return te.sum(read * weight, axis=taps)

    shape = (dy.shape[0], _like(dy, int(x_shape[1])), *(_like(dy, int(e)) for e in x_shape[2:]))
    return _result(shape, product, where, out, tuple(map(int, x_shape)), dims(w), at)


def conv_by_weight(
    dy: te.Tensor,
    x: te.Tensor,
    w_shape: Sequence[int],
    strides: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    out_dtype: str | None = None,
) -> te.Tensor:
    """The gradient of ``conv`` by its weights of shape ``w_shape``, given ``dy [n, o, *out]`` and the image ``x``."""
    rank, where = len(x.shape) - 2, f"conv{len(x.shape) - 2}d_by_weight"
    at = conv_attrs(rank, strides, padding, dilation, groups)
    _check(where, dims(x), tuple(map(int, w_shape)), at)
    acc, out = result_types(dy, x, out_dtype, where)
    size, kernel = dims(x)[2:], tuple(int(k) for k in w_shape[2:])
    (per_o, per_c) = (int(w_shape[0]) // groups, int(w_shape[1]))
    sums = _reduce_axes((dy.shape[0], *dy.shape[2:]), "np")

    def product(o: Any, c: Any, *k: Any) -> Any:
        n, *pos = (t.var for t in sums)
        src = [p * s + t * d - b for p, t, s, d, (b, _) in zip(pos, k, at.strides, at.dilation, at.padding, strict=True)]
        read = _guarded(x, (n, _grouped(o, per_o, per_c, groups) + c, *src), _reach(at, kernel, size), acc)
        return te.sum(dy(n, o, *pos).astype(acc) * read, axis=sums)

    shape = tuple(_like(x, int(e)) for e in w_shape)
    return _result(shape, product, where, out, dims(x), tuple(map(int, w_shape)), at)


def _result(shape: Any, product: Any, name: str, out: str, x: tuple[int, ...], w: tuple[int, ...], at: ConvAttrs) -> te.Tensor:
    """The stage, with the whole geometry as text for its workload, and the cast to the result's type."""
    y = (x[0], w[0], *at.out_size(x[2:], w[2:]))
    shapes = " ".join(f"{k}={'x'.join(map(str, v))}" for k, v in (("x", x), ("w", w), ("y", y)))
    pads = ",".join(f"{a}:{b}" for a, b in at.padding)
    steps = f"stride={','.join(map(str, at.strides))} pad={pads} dilation={','.join(map(str, at.dilation))} groups={at.groups}"
    return cast(te.compute(shape, product, name=name, attrs={"geometry": f"{shapes} {steps}"}), out)


def _reduce_axes(extents: Sequence[Any], names: str) -> list[Any]:
    """One reduce axis for the first extent, named by ``names[0]``, and numbered ones for the spatial rest."""
    return [te.reduce_axis((0, e), names[0] if not i else f"{names[1]}{i - 1}") for i, e in enumerate(extents)]


def _grouped(channel: Any, per_group: int, other_per_group: int, groups: int) -> Any:
    """First channel, on the other side, of the group that ``channel`` is in."""
    return 0 if groups == 1 else tirx.floordiv(channel, per_group) * other_per_group


def _reach(at: ConvAttrs, kernel: Sequence[int], size: Sequence[int]) -> list[tuple[bool, bool, int]]:
    """Per dimension: may an index fall below 0, may it pass the end, and the extent."""
    outs = at.out_size(size, kernel)
    last = [
        (o - 1) * s + (k - 1) * d - p[0] for o, k, s, d, p in zip(outs, kernel, at.strides, at.dilation, at.padding, strict=True)
    ]
    return [(p[0] > 0, end >= n, n) for p, end, n in zip(at.padding, last, size, strict=True)]


def _guarded(x: te.Tensor, index: Sequence[Any], reach: Sequence[tuple[bool, bool, int]], acc: str) -> Any:
    """``x`` at ``index``, zero where a spatial index is outside."""
    tests = []
    for i, (below, above, n) in zip(index[2:], reach, strict=True):
        tests += [i >= 0] if below else []
        tests += [i < n] if above else []
    return _where(tests, x(*index).astype(acc), acc)


def _where(tests: Sequence[Any], value: Any, dtype: str) -> Any:
    return tirx.if_then_else(tirx.all(*tests), value, tirx.const(0, dtype)) if tests else value


def _like(x: te.Tensor, value: int) -> Any:
    """``value`` in the integer type of ``x``'s extents, so that one kernel's index variables are of one type."""
    dim = x.shape[0]
    return value if isinstance(dim, int) else tirx.const(value, dim.ty.dtype)


def _check(where: str, x: tuple[int, ...], w: tuple[int, ...], at: ConvAttrs) -> None:
    if len(x) != len(w) or not 3 <= len(x) <= 5:
        raise ShapeError(
            where, f"an image {x} and weights {w}", "[n, c, *size] and [o, c / groups, *kernel] with 1 to 3 spatial dimensions"
        )
    if x[1] != w[1] * at.groups or w[0] % at.groups:
        raise ShapeError(
            where, f"{x[1]} channels, weights {w}, {at.groups} groups", "channels = groups * weights' second dimension"
        )
    if any(e < 1 for e in at.out_size(x[2:], w[2:])):
        raise ShapeError(where, f"an image {x} under a kernel {w}", "a kernel no larger than the padded image")
