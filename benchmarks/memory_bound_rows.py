"""The kernels of ``benchmarks.memory_bound``: each as a Graph of ours and as one call of PyTorch on the same arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilegrad.runtime.arrays import aligned

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Row:
    """``inputs`` are shapes (float32) or (shape, high) of integers below high; ``ours`` emits Relax on a builder.

    ``limited``: bandwidth, not arithmetic, is what bounds the kernel. ``updates`` are states that the outputs replace, in order.
    """

    inputs: Mapping[str, Any]
    ours: Callable[[Any, Any], list[Any]]
    torch: Callable[[Any, Any], Any]
    limited: bool = True
    updates: tuple[str, ...] = ()


def arrays(row: Row) -> Arrays:
    """The same numbers for every contestant."""
    rng = np.random.default_rng(0)
    out: Arrays = {}
    for name, spec in row.inputs.items():
        if isinstance(spec, tuple) and spec and isinstance(spec[0], tuple):
            out[name] = rng.integers(0, spec[1], spec[0])
        else:
            out[name] = rng.standard_normal(spec, dtype=np.float32)
    if "v" in out:  # Adam's second moment, a norm's reciprocal deviation
        out["v"] = np.abs(out["v"]) + np.float32(0.1)
    if out.get("y", np.zeros(0)).ndim == 4:  # a pool's result
        n, c, h, w = out["x"].shape
        out["y"] = out["x"].reshape(n, c, h // 2, 2, w // 2, 2).max((3, 5))
    return {name: aligned(x) for name, x in out.items()}


def graph(row: Row) -> Any:
    """The row's Graph, outputs ``y0``, ``y1``, ..."""
    from tilegrad._base.tvm import relax
    from tilegrad.relax_ext.graph import GraphBuilder

    b = GraphBuilder()
    given = arrays(row)
    names = {n: b.input(n, a.shape, str(a.dtype), "state" if n in row.updates else "input") for n, a in given.items()}

    class Inputs:
        def __getattr__(self, name: str) -> Any:
            return names[name]

    def emit(e: Any) -> Any:
        return b.emit(e)

    emit.op = relax.op  # type: ignore[attr-defined]
    for k, value in enumerate(row.ours(emit, Inputs())):
        b.output(f"y{k}", value, updates=row.updates[k] if row.updates else None)
    return b.finish()


def _const(value: float) -> Any:
    from tilegrad._base.tvm import relax

    return relax.const(value, "float32")


def _mean(e: Any, x: Any, axes: list[int], n: int) -> Any:
    return e(e.op.multiply(e(e.op.sum(x, axes, True)), _const(1.0 / n)))


def _softmax_backward(e: Any, i: Any) -> list[Any]:
    dot = e(e.op.sum(e(e.op.multiply(i.dy, i.y)), [1], True))
    return [e(e.op.multiply(e(e.op.subtract(i.dy, dot)), i.y))]


def _layer_norm_backward(n: int) -> Callable[[Any, Any], list[Any]]:
    """From x, its mean m and reciprocal deviation v, gamma and dy: dx, dgamma, dbeta."""

    def ours(e: Any, i: Any) -> list[Any]:
        hat = e(e.op.multiply(e(e.op.subtract(i.x, i.m)), i.v))
        scaled = e(e.op.multiply(i.dy, i.gamma))
        first = _mean(e, scaled, [1], n)
        second = _mean(e, e(e.op.multiply(scaled, hat)), [1], n)
        dx = e(e.op.multiply(i.v, e(e.op.subtract(e(e.op.subtract(scaled, first)), e(e.op.multiply(hat, second))))))
        return [dx, e(e.op.sum(e(e.op.multiply(i.dy, hat)), [0])), e(e.op.sum(i.dy, [0]))]

    return ours


def _batch_norm(n: int) -> Callable[[Any, Any], list[Any]]:
    def ours(e: Any, i: Any) -> list[Any]:
        mean = _mean(e, i.x, [0, 2, 3], n)
        centred = e(e.op.subtract(i.x, mean))
        var = _mean(e, e(e.op.multiply(centred, centred)), [0, 2, 3], n)
        scale = e(e.op.multiply(e(e.op.rsqrt(e(e.op.add(var, _const(1e-5))))), i.gamma))
        return [e(e.op.add(e(e.op.multiply(centred, scale)), i.beta)), mean, var]

    return ours


def _cross_entropy(e: Any, i: Any) -> list[Any]:
    return [e(e.op.nn.nll_loss(e(e.op.nn.log_softmax(i.x, -1)), i.t, reduction="mean"))]


def _adam(e: Any, i: Any) -> list[Any]:
    """betas 0.9 and 0.999, step 1."""
    m = e(e.op.add(e(e.op.multiply(i.m, _const(0.9))), e(e.op.multiply(i.g, _const(0.1)))))
    v = e(e.op.add(e(e.op.multiply(i.v, _const(0.999))), e(e.op.multiply(e(e.op.multiply(i.g, i.g)), _const(0.001)))))
    root = e(e.op.add(e(e.op.divide(e(e.op.sqrt(v)), _const(math.sqrt(0.001)))), _const(1e-8)))
    return [e(e.op.subtract(i.p, e(e.op.multiply(e(e.op.divide(m, root)), _const(1e-2))))), m, v]


def _dropout(e: Any, i: Any) -> list[Any]:
    from tilegrad.relax_ext.ops import random

    return [e(random.dropout(i.x, e(random.random_key(i.state, stream=0)), rate=0.5))]


def _max_pool_backward(shape: tuple[int, ...]) -> Callable[[Any, Any], list[Any]]:
    def ours(e: Any, i: Any) -> list[Any]:
        from tilegrad.relax_ext.ops import pooling

        window = {"pool": (2, 2), "strides": (2, 2), "padding": (0, 0, 0, 0), "dilation": (1, 1)}
        index = e(pooling.max_pool_index(i.x, i.y, **window))
        return [e(pooling.window_scatter(i.dy, index, x_shape=shape, **window))]

    return ours


def _embedding_backward(shape: tuple[int, int]) -> Callable[[Any, Any], list[Any]]:
    def ours(e: Any, i: Any) -> list[Any]:
        from tilegrad.relax_ext.ops import indexing

        return [e(indexing.take_backward(i.g, i.t, x_shape=shape, axis=0, mode="fast"))]

    return ours


def _torch_adam(t: Any, i: Any) -> Callable[[], Any]:
    p = t.nn.Parameter(i.p.clone())
    p.grad = i.g
    optimizer = t.optim.Adam([p], lr=1e-2, fused=True)
    return optimizer.step


def _torch_pool_backward(t: Any, i: Any) -> Callable[[], Any]:
    _, index = t.nn.functional.max_pool2d(i.x, 2, return_indices=True)
    run = t.ops.aten.max_pool2d_with_indices_backward
    return lambda: run(i.dy, i.x, [2, 2], [2, 2], [0, 0], [1, 1], False, index)


def _norm_rows(m: int, n: int) -> dict[str, Row]:
    at = f"{m}x{n}"
    layer = {"x": (m, n), "gamma": (n,), "beta": (n,)}
    back = {"dy": (m, n), "x": (m, n), "m": (m, 1), "v": (m, 1), "gamma": (n,)}
    return {
        f"softmax_{at}": Row({"x": (m, n)}, lambda e, i: [e(e.op.nn.softmax(i.x, -1))], lambda t, i: lambda: t.softmax(i.x, -1)),
        f"softmax_backward_{at}": Row(
            {"dy": (m, n), "y": (m, n)},
            _softmax_backward,
            lambda t, i: lambda: t.ops.aten._softmax_backward_data(i.dy, i.y, 1, t.float32),
        ),
        f"layer_norm_{at}": Row(
            layer,
            lambda e, i: [e(e.op.nn.layer_norm(i.x, i.gamma, i.beta, axes=[-1]))],
            lambda t, i: lambda: t.nn.functional.layer_norm(i.x, (n,), i.gamma, i.beta),
        ),
        f"layer_norm_backward_{at}": Row(
            back,
            _layer_norm_backward(n),
            lambda t, i: lambda: t.ops.aten.native_layer_norm_backward(i.dy, i.x, [n], i.m, i.v, i.gamma, i.gamma, [True] * 3),
        ),
    }


IMAGE = (16, 64, 32, 32)
HALF = (16, 64, 16, 16)
ROWS: dict[str, Row] = {
    **_norm_rows(1024, 1024),
    **_norm_rows(8192, 256),
    "gelu": Row({"x": (2048, 1024)}, lambda e, i: [e(e.op.nn.gelu(i.x))], lambda t, i: lambda: t.nn.functional.gelu(i.x), False),
    "batch_norm": Row(
        {"x": IMAGE, "gamma": (1, 64, 1, 1), "beta": (1, 64, 1, 1)},
        _batch_norm(16 * 32 * 32),
        lambda t, i: lambda: t.native_batch_norm(i.x, i.gamma.ravel(), i.beta.ravel(), None, None, True, 0.1, 1e-5),
    ),
    "transpose_2048": Row(
        {"x": (2048, 2048)}, lambda e, i: [e(e.op.permute_dims(i.x))], lambda t, i: lambda: i.x.t().contiguous()
    ),
    "transpose_heads": Row(
        {"x": (8, 128, 16, 64)},
        lambda e, i: [e(e.op.permute_dims(i.x, [0, 2, 1, 3]))],
        lambda t, i: lambda: i.x.permute(0, 2, 1, 3).contiguous(),
    ),
    "max_pool": Row(
        {"x": IMAGE}, lambda e, i: [e(e.op.nn.max_pool2d(i.x, (2, 2), (2, 2)))], lambda t, i: lambda: t.max_pool2d(i.x, 2)
    ),
    "max_pool_backward": Row({"x": IMAGE, "y": HALF, "dy": HALF}, _max_pool_backward(IMAGE), _torch_pool_backward),
    "dropout": Row(
        {"x": (2048, 1024), "state": ((2,), 100)}, _dropout, lambda t, i: lambda: t.nn.functional.dropout(i.x, 0.5, True), False
    ),
    "cross_entropy": Row(
        {"x": (512, 8192), "t": ((512,), 8192)}, _cross_entropy, lambda t, i: lambda: t.nn.functional.cross_entropy(i.x, i.t)
    ),
    "adam": Row(dict.fromkeys("pgmv", (10_000_000,)), _adam, _torch_adam, updates=("p", "m", "v")),
    "embedding_gradient": Row(
        {"g": (1024, 256), "t": ((1024,), 8192)},
        _embedding_backward((8192, 256)),
        lambda t, i: lambda: t.ops.aten.embedding_dense_backward(i.g, i.t, 8192, -1, False),
    ),
}
QUICK = ("softmax_1024x1024", "layer_norm_backward_8192x256", "gelu", "transpose_2048", "max_pool", "cross_entropy")
