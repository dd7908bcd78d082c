"""Layer, group, batch, instance and RMS normalisation, in evaluation and training."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilegrad.frontend.pytorch.lowering import Lowering, Number
from tilegrad.frontend.pytorch.table import aten
from tilegrad.relax_ext.vjp.values import F, Value


def _moments(x: Value, axes: Sequence[int]) -> tuple[Value, Value]:
    """Mean and biased variance over axes, kept as ones."""
    n = math.prod(x.shape[a] for a in axes)
    mean = F.sum(x, list(axes), True) / n
    deviation = x - mean
    return mean, F.sum(deviation * deviation, list(axes), True) / n


def _per_channel(v: Value, ndim: int) -> Value:
    return v.reshape([v.shape[0] if i == 1 else 1 for i in range(ndim)])


@aten("native_layer_norm")
def native_layer_norm(
    k: Lowering, x: Value, shape: Sequence[int], weight: Value | None, bias: Value | None, eps: float
) -> list[Value]:
    wide = k.wide(x)
    axes = list(range(x.ndim - len(shape), x.ndim))
    mean, variance = _moments(wide, axes)
    gamma = k.value(weight, wide.dtype) if weight is not None else k.full(shape, 1, wide.dtype)
    beta = k.value(bias, wide.dtype) if bias is not None else k.full(shape, 0, wide.dtype)
    y = F.layer_norm(wide, gamma, beta, axes, eps)
    kinds = [t.dtype if t else x.dtype for t in k.types]
    return [k.value(v, d) for v, d in zip((y, mean, F.rsqrt(variance + eps)), kinds, strict=True)]


@aten("layer_norm")
def layer_norm(
    k: Lowering, x: Value, shape: Sequence[int], weight: Value | None = None, bias: Value | None = None, eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Value:  # fmt: skip
    wide = k.wide(x)
    gamma = k.value(weight, wide.dtype) if weight is not None else k.full(shape, 1, wide.dtype)
    beta = k.value(bias, wide.dtype) if bias is not None else k.full(shape, 0, wide.dtype)
    return k.narrow(F.layer_norm(wide, gamma, beta, list(range(x.ndim - len(shape), x.ndim)), eps))


@aten("native_group_norm")
def native_group_norm(
    k: Lowering, x: Value, weight: Value | None, bias: Value | None, n: int, c: int, hxw: int, groups: int, eps: float
) -> list[Value]:
    wide = k.wide(x).reshape((n, groups, (c // groups) * hxw))
    mean, variance = _moments(wide, [2])
    rstd = F.rsqrt(variance + eps)
    y = ((wide - mean) * rstd).reshape(x.shape)
    y = _affine(k, y, weight, bias)
    stats = [s.reshape((n, groups)) for s in (mean, rstd)]
    return [k.value(v, t.dtype) if t else v for v, t in zip((y, *stats), k.types, strict=True)]


def _affine(k: Lowering, y: Value, weight: Value | None, bias: Value | None) -> Value:
    """Scale and shift by channel."""
    if weight is not None:
        y = y * _per_channel(k.value(weight, y.dtype), y.ndim)
    if bias is not None:
        y = y + _per_channel(k.value(bias, y.dtype), y.ndim)
    return y


def _normalised(k: Lowering, x: Value, mean: Value, rstd: Value, weight: Value | None, bias: Value | None) -> Value:
    """(x - mean) rstd weight + bias."""
    return k.value(_affine(k, (x - mean) * rstd, weight, bias), k.out.dtype)


def _trained(
    k: Lowering, x: Value, weight: Value | None, bias: Value | None, momentum: float, eps: float, running: Sequence[Value | None]
) -> tuple[list[Value], list[Value | None]]:
    """[y, batch mean, 1 / batch standard deviation] and the new running mean and (unbiased) variance."""
    wide = k.wide(x)
    axes = [0, *range(2, x.ndim)]
    mean, variance = _moments(wide, axes)
    rstd = F.rsqrt(variance + eps)
    y = _normalised(k, wide, mean, rstd, weight, bias)
    c, n = x.shape[1], math.prod(x.shape[a] for a in axes)
    flat_mean, flat_var = mean.reshape((c,)), variance.reshape((c,))
    new: list[Value | None] = []
    for old, batch in zip(running, (flat_mean, flat_var * (n / max(n - 1, 1))), strict=True):
        if old is None:
            new.append(None)
        else:
            kept = k.value(old, batch.dtype)
            new.append(k.value(kept * (1.0 - momentum) + batch * momentum, old.dtype))
    return [y, flat_mean, rstd.reshape((c,))], new


def _evaluated(k: Lowering, x: Value, weight: Value | None, bias: Value | None, mean: Value, var: Value, eps: float) -> Value:
    wide = k.wide(x)
    rstd = F.rsqrt(k.value(var, wide.dtype) + eps)
    return _normalised(k, wide, _per_channel(k.value(mean, wide.dtype), x.ndim), _per_channel(rstd, x.ndim), weight, bias)


def _batch_norm(
    k: Lowering, x: Value, weight: Value | None, bias: Value | None, mean: Value | None, var: Value | None, training: bool,
    momentum: float, eps: float,
) -> tuple[list[Value], list[Value | None]]:  # fmt: skip
    if training or mean is None or var is None:
        results, new = _trained(k, x, weight, bias, momentum, eps, (mean, var))
        return [k.value(v, t.dtype) if t else v for v, t in zip(results, k.types, strict=False)], new
    empty = [k.zeros(t.shape, t.dtype) if t else None for t in k.types[1:3]]
    return [_evaluated(k, x, weight, bias, mean, var, eps), *empty], [mean, var]  # type: ignore[list-item]


@aten("_native_batch_norm_legit_functional")
def batch_norm_functional(
    k: Lowering,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    mean: Value,
    var: Value,
    training: bool,
    momentum: float,
    eps: float,
) -> list[Value | None]:
    results, new = _batch_norm(k, x, weight, bias, mean, var, training, momentum, eps)
    return [*results, *new]


@aten("_batch_norm_with_update_functional")
def batch_norm_with_update_functional(
    k: Lowering, x: Value, weight: Value | None, bias: Value | None, mean: Value, var: Value, momentum: float, eps: float
) -> list[Value | None]:
    results, new = _batch_norm(k, x, weight, bias, mean, var, True, momentum, eps)
    reserve = k.types[3]
    return [*results, k.zeros(reserve.shape, reserve.dtype) if reserve else None, *new]


@aten("_native_batch_norm_legit.no_stats")
def batch_norm_no_stats(
    k: Lowering, x: Value, weight: Value | None, bias: Value | None, training: bool, momentum: float, eps: float
) -> list[Value]:
    return _batch_norm(k, x, weight, bias, None, None, training, momentum, eps)[0]


@aten("_native_batch_norm_legit_no_training")
def batch_norm_no_training(
    k: Lowering, x: Value, weight: Value | None, bias: Value | None, mean: Value, var: Value, momentum: float, eps: float
) -> list[Value]:
    return _batch_norm(k, x, weight, bias, mean, var, False, momentum, eps)[0]


@aten("native_batch_norm")
def native_batch_norm(
    k: Lowering, x: Value, weight: Value | None, bias: Value | None, mean: Value | None, var: Value | None, training: bool,
    momentum: float, eps: float,
) -> list[Value]:  # fmt: skip
    return _batch_norm(k, x, weight, bias, mean, var, training, momentum, eps)[0]


@aten("_fused_rms_norm")
def fused_rms_norm(k: Lowering, x: Value, shape: Sequence[int], weight: Value | None, eps: Number | None) -> list[Value]:
    import numpy as np

    wide = k.wide(x)
    axes = list(range(x.ndim - len(shape), x.ndim))
    n = math.prod(shape)
    epsilon = float(np.finfo(x.dtype if x.dtype != "bfloat16" else "float32").eps) if eps is None else float(eps)
    rstd = F.rsqrt(F.sum(wide * wide, axes, True) / n + epsilon)
    y = wide * rstd
    if weight is not None:
        y = y * k.value(weight, y.dtype)
    return [k.value(v, t.dtype) if t else v for v, t in zip((y, rstd), k.types, strict=True)]
