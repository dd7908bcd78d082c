"""Pooling by windows. The result's extents are PyTorch's (ceil mode included); indices are places in the image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from tilegrad._base.tvm import relax
from tilegrad.frontend.pytorch.aten.indexing import take
from tilegrad.frontend.pytorch.lowering import Lowering, Number, pair
from tilegrad.frontend.pytorch.table import aten
from tilegrad.relax_ext import ops
from tilegrad.relax_ext.vjp.values import F, Value

Ints = int | Sequence[int]


def _image(x: Value, n: int) -> Value:
    """With batch and channel axes."""
    lead = x.shape[: x.ndim - n]
    return x.reshape((1, *x.shape)) if len(lead) == 1 else x.reshape((1, 1, *x.shape)) if not lead else x


def _max_window(
    x: Value, extents: Sequence[int], n: int, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints
) -> dict[str, Any]:
    """Attributes with as much padding behind as the result's extents need."""
    pool, pad, dil = pair(kernel, n), pair(padding, n), pair(dilation, n)
    strides = pair(stride, n) if not isinstance(stride, (list, tuple)) or len(stride) else pool
    behind = []
    for d in range(n):
        needed = (extents[d] - 1) * strides[d] + dil[d] * (pool[d] - 1) + 1 - x.shape[2 + d] - pad[d]
        behind.append(max(needed, 0))
    return {"pool": pool, "strides": strides, "padding": (*pad, *behind), "dilation": dil}


def _max_pool(k: Lowering, n: int, x: Value, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints) -> tuple[Value, Value]:
    """Maxima and their places in the image (int64)."""
    image = _image(x, n)
    extents = k.out.shape[-n:]
    w = _max_window(image, extents, n, kernel, stride, padding, dilation)
    make = getattr(relax.op.nn, f"max_pool{n}d")
    y = k.tape.bind(make(image.expr, list(w["pool"]), list(w["strides"]), list(w["padding"]), list(w["dilation"])))
    window = k.call(ops.max_pool_index, image, y, **w)
    return y.reshape(k.out.shape), _places(k, window, image.shape[2:], w).reshape(k.out.shape)


def _places(k: Lowering, window: Value, size: Sequence[int], w: dict[str, Any]) -> Value:
    """Places in windows -> row-major places in the image."""
    n, rest, flat = len(size), window.astype("int64"), None
    ks: list[Value] = []
    for extent in reversed(w["pool"]):
        ks.insert(0, F.floor_mod(rest, k.number(extent, "int64")))
        rest = F.floor_divide(rest, k.number(extent, "int64"))
    for d in range(n):
        start = np.arange(window.shape[2 + d]) * w["strides"][d] - w["padding"][d]
        start = start.reshape([-1 if i == 2 + d else 1 for i in range(2 + n)])
        at = ks[d] * w["dilation"][d] + k.constant(start)
        flat = at if flat is None else flat * size[d] + at
    assert flat is not None
    return flat


def _register_max(n: int) -> None:
    @aten(f"max_pool{n}d_with_indices")
    def with_indices(
        k: Lowering,
        x: Value,
        kernel_size: Ints,
        stride: Ints = (),
        padding: Ints = 0,
        dilation: Ints = 1,
        ceil_mode: bool = False,
    ) -> list[Value]:
        return list(_max_pool(k, n, x, kernel_size, stride, padding, dilation))

    @aten(f"max_pool{n}d")
    def values_only(
        k: Lowering,
        x: Value,
        kernel_size: Ints,
        stride: Ints = (),
        padding: Ints = 0,
        dilation: Ints = 1,
        ceil_mode: bool = False,
    ) -> Value:
        return _max_pool(k, n, x, kernel_size, stride, padding, dilation)[0]

    @aten(f"avg_pool{n}d")
    def avg(
        k: Lowering, x: Value, kernel_size: Ints, stride: Ints = (), padding: Ints = 0, ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: int | None = None,
    ) -> Value:  # fmt: skip
        return _avg_pool(k, n, x, kernel_size, stride, padding, count_include_pad, divisor_override)


for _n in (1, 2, 3):
    _register_max(_n)


def _avg_pool(
    k: Lowering, n: int, x: Value, kernel: Ints, stride: Ints, padding: Ints, include_pad: bool, divisor: int | None
) -> Value:
    image = k.wide(_image(x, n)) if "float" in x.dtype else _image(x, n)
    pool, pad = pair(kernel, n), pair(padding, n)
    strides = pair(stride, n) if not isinstance(stride, (list, tuple)) or len(stride) else pool
    if divisor is not None:
        widths = [0, 0, 0, 0]
        for d in range(n):
            needed = (k.out.shape[-n + d] - 1) * strides[d] + pool[d] - image.shape[2 + d] - pad[d]
            widths += [pad[d], max(needed, 0)]
        image, pad = F.pad(image, widths, "constant", 0.0), (0,) * n
    y = k.call(
        ops.avg_pool, image, y_shape=(*image.shape[:2], *k.out.shape[-n:]), pool=pool, strides=strides, padding=pad * 2,
        dilation=(1,) * n, count_include_pad=include_pad,
    )  # fmt: skip
    if divisor is not None:
        y = y * (math.prod(pool) / divisor)
    return k.narrow(y.reshape(k.out.shape))


def _register_backward(n: int) -> None:
    @aten(f"max_pool{n}d_with_indices_backward")
    def max_backward(
        k: Lowering,
        g: Value,
        x: Value,
        kernel: Ints,
        stride: Ints,
        padding: Ints,
        dilation: Ints,
        ceil_mode: bool,
        indices: Value,
    ) -> Value:
        rows = math.prod(x.shape[:-n])
        size, places = math.prod(x.shape[-n:]), math.prod(g.shape[-n:])
        dx = k.call(
            ops.gather_elements_backward, g.reshape((rows, places)), indices.reshape((rows, places)), x_shape=(rows, size), axis=1
        )
        return dx.reshape(x.shape)

    @aten(f"avg_pool{n}d_backward")
    def avg_backward(
        k: Lowering, g: Value, x: Value, kernel: Ints, stride: Ints, padding: Ints, ceil_mode: bool, include_pad: bool,
        divisor: int | None = None,
    ) -> Value:  # fmt: skip
        image, grad = _image(x, n), _image(g, n)
        pool, pad = pair(kernel, n), pair(padding, n)
        strides = pair(stride, n) if not isinstance(stride, (list, tuple)) or len(stride) else pool
        if divisor is not None:  # every window counts the same
            behind = [max((grad.shape[2 + d] - 1) * strides[d] + pool[d] - image.shape[2 + d] - pad[d], 0) for d in range(n)]
            window = {"padding": (*pad, *behind), "count_include_pad": True}
            grad = grad * (math.prod(pool) / divisor)
        else:
            window = {"padding": pad * 2, "count_include_pad": include_pad}
        dx = k.call(ops.avg_pool_backward, grad, x_shape=image.shape, pool=pool, strides=strides, dilation=(1,) * n, **window)
        return dx.reshape(x.shape)


for _n in (1, 2, 3):
    _register_backward(_n)


def _register_adaptive(n: int) -> None:
    @aten(f"adaptive_max_pool{n}d")
    def adaptive_max(k: Lowering, x: Value, output_size: Ints) -> list[Value]:
        outs = pair(output_size, n)
        runs = []
        for size, out in zip(x.shape[-n:], outs, strict=True):
            starts = [o * size // out for o in range(out)]
            stops = [-(-(o + 1) * size // out) for o in range(out)]
            runs.append(_padded_runs(starts, stops))
        return _max_of_runs(k, x, n, runs)

    @aten(f"adaptive_avg_pool{n}d", f"_adaptive_avg_pool{n}d")
    def adaptive_avg(k: Lowering, x: Value, output_size: Ints) -> Value:
        outs = pair(output_size, n)
        if all(o == 1 for o in outs):
            wide = k.wide(x)
            total = F.sum(wide, list(range(x.ndim - n, x.ndim)), True)
            return k.narrow(total / math.prod(x.shape[-n:]))
        image = k.wide(_image(x, n))
        y = k.tape.bind(getattr(relax.op.nn, f"adaptive_avg_pool{n}d")(image.expr, list(outs)))
        return k.narrow(y.reshape(k.out.shape))


for _n in (1, 2, 3):
    _register_adaptive(_n)


@aten("_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward")
def adaptive_avg_backward(k: Lowering, g: Value, x: Value) -> Value:
    n = 2 if "2d" in k.name else 3
    dx = k.call(ops.adaptive_avg_pool_backward, _image(g, n), x_shape=_image(x, n).shape)
    return dx.reshape(x.shape)


def _padded_runs(starts: Sequence[int], stops: Sequence[int]) -> np.ndarray:
    """[out, longest run] of positions; short runs repeat their last one, which changes no maximum."""
    longest = max(b - a for a, b in zip(starts, stops, strict=True))
    return np.array([[min(a + i, b - 1) for i in range(longest)] for a, b in zip(starts, stops, strict=True)])


def _max_of_runs(k: Lowering, x: Value, n: int, runs: Sequence[np.ndarray]) -> list[Value]:
    """Maxima over the product of one run for each spatial axis, and their places in the image."""
    lead, size = x.shape[:-n], x.shape[-n:]
    outs = [r.shape[0] for r in runs]
    places = np.zeros([*outs, math.prod(r.shape[1] for r in runs)], np.int64)
    for window, offsets in enumerate(product(*(range(r.shape[1]) for r in runs))):
        at = np.zeros(outs, np.int64)
        for d, (r, offset) in enumerate(zip(runs, offsets, strict=True)):
            at = at * size[d] + r[:, offset].reshape([-1 if i == d else 1 for i in range(n)])
        places[..., window] = at
    windows = take(k, x.reshape((*lead, math.prod(size))), k.constant(places), len(lead))
    axis = windows.ndim - 1
    best = F.argmax(windows, axis, True).astype("int64")
    values = F.gather_elements(windows, best, axis).reshape((*lead, *outs))
    spread = k.constant(places).broadcast_to(windows.shape)
    return [values, F.gather_elements(spread, best, axis).reshape((*lead, *outs))]


@aten("max_unpool2d", "max_unpool3d")
def max_unpool(k: Lowering, x: Value, indices: Value, output_size: Ints, *ignored: Any) -> Value:
    n = 2 if "2d" in k.name else 3
    rows, places, size = math.prod(x.shape[:-n]), math.prod(x.shape[-n:]), math.prod(k.out.shape[-n:])
    zeros = k.zeros((rows, size), x.dtype)
    y = F.scatter_elements(zeros, indices.reshape((rows, places)), x.reshape((rows, places)), 1, "update")
    return y.reshape(k.out.shape)


@aten("fractional_max_pool2d", "fractional_max_pool3d")
def fractional_max_pool(k: Lowering, x: Value, kernel_size: Ints, output_size: Ints, random_samples: Value) -> list[Value]:
    from tilegrad.frontend.pytorch.lowering import Cannot

    raise Cannot("fractional max pooling draws its windows at run time")


def scale_of(value: Number | None) -> Number:
    """A scale that may be absent."""
    return 1.0 if value is None else value
