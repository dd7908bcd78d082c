"""Layers as functions. Shapes and defaults are PyTorch's (channels first)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from tilegrad._base.errors import DTypeError, ShapeError, UsageError
from tilegrad.frontend import functions as F
from tilegrad.frontend.apply import apply, as_tensor
from tilegrad.frontend.functions import log_softmax, pad, relu, sigmoid, silu, softmax, tanh
from tilegrad.frontend.recording import FLOATS, fail_line
from tilegrad.frontend.tensor import Tensor

Size = int | Sequence[int]
Reduction = Literal["mean", "sum", "none"]


def _per_axis(value: Size, rank: int, what: str) -> tuple[int, ...]:
    given = (value,) * rank if isinstance(value, int) else tuple(int(v) for v in value)
    if len(given) != rank:
        raise ShapeError(fail_line() + what, f"{value}", f"one whole number or {rank}")
    return given


# ***** linear and convolution *****


def linear(x: Any, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x @ weight.T + bias``: x [..., in], weight [out, in], bias [out]."""
    y = F.matmul(x, weight.T)
    return y if bias is None else y + bias


def _conv(
    rank: int, x: Any, w: Tensor, b: Tensor | None, stride: Size, padding: Size | str, dilation: Size, groups: int
) -> Tensor:
    x = as_tensor(x)
    what = f"conv{rank}d"
    if x.ndim != rank + 2:
        raise ShapeError(fail_line() + what, f"an input of shape {x.shape}", f"[batch, channels and {rank} more axes]")
    if x.shape[1] != w.shape[1] * groups:
        raise ShapeError(
            fail_line() + what,
            f"{x.shape[1]} channels",
            f"{w.shape[1] * groups}, as the weight {w.shape} with groups={groups} has",
        )
    strides, dilations = _per_axis(stride, rank, what), _per_axis(dilation, rank, what)
    if isinstance(padding, str):
        x, padding = _named_padding(x, w, padding, strides, dilations)
    y = apply(what, x, w, attrs=(strides, _per_axis(padding, rank, what), dilations, groups))
    return y if b is None else y + F.reshape(b, (-1, *(1,) * rank))


def _named_padding(x: Tensor, w: Tensor, name: str, strides: Sequence[int], dilations: Sequence[int]) -> tuple[Tensor, Size]:
    rank = len(strides)
    if name == "valid":
        return x, 0
    if name != "same" or any(s != 1 for s in strides):
        raise UsageError(
            fail_line() + "convolution, argument 'padding'",
            f"{name!r} with stride {tuple(strides)}",
            "'valid', or 'same' with stride 1",
        )
    total = [d * (k - 1) for d, k in zip(dilations, w.shape[2:], strict=True)]
    if any(t % 2 for t in total):
        x = pad(x, [(0, 0), (0, 0), *[(0, t % 2) for t in total]])
    return x, [t // 2 for t in total] if rank else 0


def conv1d(
    x: Any,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size | str = 0,
    dilation: Size = 1,
    groups: int = 1,
) -> Tensor:
    """x [N, C, L], weight [O, C / groups, K] -> [N, O, L']."""
    return _conv(1, x, weight, bias, stride, padding, dilation, groups)


def conv2d(
    x: Any,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size | str = 0,
    dilation: Size = 1,
    groups: int = 1,
) -> Tensor:
    """x [N, C, H, W], weight [O, C / groups, KH, KW] -> [N, O, H', W']."""
    return _conv(2, x, weight, bias, stride, padding, dilation, groups)


def conv3d(
    x: Any,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size | str = 0,
    dilation: Size = 1,
    groups: int = 1,
) -> Tensor:
    """x [N, C, D, H, W], weight [O, C / groups, KD, KH, KW] -> [N, O, D', H', W']."""
    return _conv(3, x, weight, bias, stride, padding, dilation, groups)


def conv_transpose(
    rank: int,
    x: Any,
    w: Tensor,
    b: Tensor | None = None,
    stride: Size = 1,
    padding: Size = 0,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
) -> Tensor:
    """The gradient of a convolution by its input, as a layer: weight [C, O / groups, *kernel]."""
    what = f"conv{rank}d_transpose"
    attrs = tuple(_per_axis(v, rank, what) for v in (stride, padding, output_padding, dilation))
    y = apply(what, x, w, attrs=(*attrs, groups))
    return y if b is None else y + F.reshape(b, (-1, *(1,) * rank))


# ***** pooling *****


def _pool(
    kind: str, rank: int, x: Any, size: Size, stride: Size | None, padding: Size, dilation: Size, ceil: bool, count: bool
) -> Tensor:
    what = f"{kind}_pool{rank}d"
    x = as_tensor(x)
    if x.ndim != rank + 2:
        raise ShapeError(fail_line() + what, f"an input of shape {x.shape}", f"[batch, channels and {rank} more axes]")
    sizes, pads = _per_axis(size, rank, what), _per_axis(padding, rank, what)
    if any(2 * p > s for p, s in zip(pads, sizes, strict=True)):
        raise UsageError(fail_line() + what, f"padding {pads} for windows of {sizes}", "at most half a window")
    attrs = (sizes, _per_axis(size if stride is None else stride, rank, what), pads, _per_axis(dilation, rank, what), ceil, count)
    return apply(what, x, attrs=attrs)


def max_pool1d(
    x: Any, size: Size, stride: Size | None = None, padding: Size = 0, dilation: Size = 1, ceil_mode: bool = False
) -> Tensor:
    """Largest value of each window of [N, C, L]; stride defaults to the window."""
    return _pool("max", 1, x, size, stride, padding, dilation, ceil_mode, False)


def max_pool2d(
    x: Any, size: Size, stride: Size | None = None, padding: Size = 0, dilation: Size = 1, ceil_mode: bool = False
) -> Tensor:
    """Largest value of each window of [N, C, H, W]; stride defaults to the window. At ties the first takes the gradient."""
    return _pool("max", 2, x, size, stride, padding, dilation, ceil_mode, False)


def max_pool3d(
    x: Any, size: Size, stride: Size | None = None, padding: Size = 0, dilation: Size = 1, ceil_mode: bool = False
) -> Tensor:
    """Largest value of each window of [N, C, D, H, W]; stride defaults to the window."""
    return _pool("max", 3, x, size, stride, padding, dilation, ceil_mode, False)


def avg_pool1d(
    x: Any, size: Size, stride: Size | None = None, padding: Size = 0, ceil_mode: bool = False, count_include_pad: bool = True
) -> Tensor:
    """Mean of each window of [N, C, L]; padding counts unless told otherwise."""
    return _pool("avg", 1, x, size, stride, padding, 1, ceil_mode, count_include_pad)


def avg_pool2d(
    x: Any, size: Size, stride: Size | None = None, padding: Size = 0, ceil_mode: bool = False, count_include_pad: bool = True
) -> Tensor:
    """Mean of each window of [N, C, H, W]; padding counts unless told otherwise."""
    return _pool("avg", 2, x, size, stride, padding, 1, ceil_mode, count_include_pad)


def avg_pool3d(
    x: Any, size: Size, stride: Size | None = None, padding: Size = 0, ceil_mode: bool = False, count_include_pad: bool = True
) -> Tensor:
    """Mean of each window of [N, C, D, H, W]; padding counts unless told otherwise."""
    return _pool("avg", 3, x, size, stride, padding, 1, ceil_mode, count_include_pad)


def adaptive_avg_pool(rank: int, x: Any, size: Size) -> Tensor:
    """Means of windows chosen so that the result has the extents ``size``."""
    return apply(f"adaptive_avg_pool{rank}d", x, attrs=(_per_axis(size, rank, "adaptive_avg_pool"),))


def adaptive_avg_pool2d(x: Any, size: Size) -> Tensor:
    """``adaptive_avg_pool`` of [N, C, H, W]."""
    return adaptive_avg_pool(2, x, size)


# ***** activations *****


def gelu(x: Any, approximate: str = "none") -> Tensor:
    """``x`` times the normal distribution function at ``x``; 'tanh' for the usual approximation."""
    if approximate not in ("none", "tanh"):
        raise UsageError(fail_line() + "gelu, argument 'approximate'", repr(approximate), "'none' or 'tanh'")
    return apply("gelu" if approximate == "none" else "gelu_tanh", x)


def leaky_relu(x: Any, negative_slope: float = 0.01) -> Tensor:
    """``x`` above 0, ``negative_slope * x`` below."""
    return apply("leaky_relu", x, attrs=(float(negative_slope),))


def softplus(x: Any, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """``log(1 + exp(beta * x)) / beta``; ``x`` itself above the threshold."""
    return apply("softplus", x, attrs=(float(beta), float(threshold)))


def elu(x: Any, alpha: float = 1.0) -> Tensor:
    """``x`` above 0, ``alpha * (exp(x) - 1)`` below."""
    x = as_tensor(x)
    return F.where(x > 0, x, alpha * (F.exp(F.minimum(x, 0.0)) - 1.0))


def selu(x: Any) -> Tensor:
    """Scaled ``elu`` that keeps mean 0 and variance 1 (Klambauer et al. 2017)."""
    return 1.0507009873554805 * elu(x, 1.6732632423543772)


def relu6(x: Any) -> Tensor:
    """``min(max(x, 0), 6)``."""
    return F.clip(x, 0.0, 6.0)


def hardtanh(x: Any, low: float = -1.0, high: float = 1.0) -> Tensor:
    """``min(max(x, low), high)``."""
    return F.clip(x, low, high)


def hardsigmoid(x: Any) -> Tensor:
    """``relu6(x + 3) / 6``."""
    return relu6(as_tensor(x) + 3.0) / 6.0


def hardswish(x: Any) -> Tensor:
    """``x * hardsigmoid(x)``."""
    x = as_tensor(x)
    return x * hardsigmoid(x)


def mish(x: Any) -> Tensor:
    """``x * tanh(softplus(x))``."""
    x = as_tensor(x)
    return x * tanh(softplus(x))


def logsigmoid(x: Any) -> Tensor:
    """``log(sigmoid(x))``, without underflow."""
    return -softplus(-as_tensor(x))


def prelu(x: Any, weight: Tensor) -> Tensor:
    """``x`` above 0, ``weight * x`` below: one weight, or one per channel (axis 1)."""
    x = as_tensor(x)
    w = weight if weight.size == 1 else weight.reshape(-1, *(1,) * (x.ndim - 2))
    return F.where(x > 0, x, x * w)


def glu(x: Any, axis: int = -1) -> Tensor:
    """The first half times the sigmoid of the second."""
    a, b = F.chunk(x, 2, axis)
    return a * sigmoid(b)


def normalize(x: Any, axis: int = 1, eps: float = 1e-12) -> Tensor:
    """Divided by the Euclidean length along the axis."""
    x = as_tensor(x)
    return x / F.maximum(F.norm(x, axis, True), eps)


# ***** losses *****


def _reduce(x: Tensor, reduction: Reduction) -> Tensor:
    if reduction == "mean":
        return x.mean()
    if reduction == "sum":
        return x.sum()
    if reduction == "none":
        return x
    raise UsageError(fail_line() + "loss, argument 'reduction'", repr(reduction), "'mean', 'sum' or 'none'")


def cross_entropy(
    logits: Any,
    target: Any,
    weight: Any = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Negative log-likelihood of softmax(logits).

    logits [N, C] or [N, C, ...]; target: class numbers [N, ...] (``ignore_index`` counts for nothing), or probabilities of
    the shape of the logits. ``weight`` [C] scales classes; the mean is over the weights of the targets, as PyTorch's is.
    """
    x, t = as_tensor(logits), as_tensor(target)
    axis = 1 if x.ndim > 1 else 0
    logp = log_softmax(x, axis)
    if t.dtype in FLOATS:
        return _soft_cross_entropy(logp, t, axis, weight, reduction, label_smoothing)
    if t.shape != x.shape[:axis] + x.shape[axis + 1 :]:
        raise ShapeError(
            fail_line() + "cross_entropy, argument 'target'",
            f"shape {t.shape} for logits {x.shape}",
            f"{x.shape[:1] * axis + x.shape[2:]}",
        )
    return _hard_nll(logp, t, axis, weight, ignore_index, reduction, label_smoothing)


def _class_weight(weight: Any, logp: Tensor, axis: int) -> Tensor:
    return as_tensor(weight).astype(logp.dtype).reshape(-1, *(1,) * (logp.ndim - 1 - axis))


def _soft_cross_entropy(logp: Tensor, t: Tensor, axis: int, weight: Any, reduction: Reduction, smoothing: float) -> Tensor:
    classes = logp.shape[axis]
    if t.shape != logp.shape:
        raise ShapeError(fail_line() + "cross_entropy, argument 'target'", f"probabilities of shape {t.shape}", f"{logp.shape}")
    if smoothing:
        t = t * (1.0 - smoothing) + smoothing / classes
    if weight is not None:
        logp = logp * _class_weight(weight, logp, axis)
    losses = -(logp * t).sum(axis)
    return losses.sum() / float(max(1, losses.size)) if reduction == "mean" else _reduce(losses, reduction)


def _hard_nll(logp: Tensor, t: Tensor, axis: int, weight: Any, ignore: int, reduction: Reduction, smoothing: float) -> Tensor:
    """The class is picked by comparison, not by a gather: its gradient is then elementwise too."""
    classes = logp.shape[axis]
    numbers = F.positions(classes, t.dtype).reshape(-1, *(1,) * (logp.ndim - 1 - axis))
    picked = F.equal(t.unsqueeze(axis), numbers)
    kept = F.not_equal(t, ignore).astype(logp.dtype)
    scale = kept
    if weight is not None:
        w = _class_weight(weight, logp, axis)
        scale = F.where(picked, w, 0.0).sum(axis) * kept
        logp = logp * w
    losses = -F.where(picked, logp, 0.0).sum(axis) * kept
    if smoothing:
        losses = losses * (1.0 - smoothing) - logp.sum(axis) * kept * (smoothing / classes)
    if reduction == "mean":
        return losses.sum() / scale.sum()
    return _reduce(losses, reduction)


def nll_loss(logp: Any, target: Any, weight: Any = None, ignore_index: int = -100, reduction: Reduction = "mean") -> Tensor:
    """Negative log-likelihood of class numbers, given log-probabilities [N, C, ...]."""
    x = as_tensor(logp)
    return _hard_nll(x, as_tensor(target), 1 if x.ndim > 1 else 0, weight, ignore_index, reduction, 0.0)


def _pair(a: Any, b: Any, what: str) -> tuple[Tensor, Tensor]:
    x, y = as_tensor(a), as_tensor(b)
    if x.shape != y.shape:
        raise ShapeError(
            fail_line() + what,
            f"shapes {x.shape} and {y.shape}",
            "two equal shapes",
            "Broadcasting here is usually a mistake; reshape one.",
        )
    if x.dtype not in FLOATS:
        raise DTypeError(fail_line() + what, x.dtype, "floats")
    return x, y


def mse_loss(x: Any, target: Any, reduction: Reduction = "mean") -> Tensor:
    """Squared difference."""
    x, target = _pair(x, target, "mse_loss")
    d = x - target
    return _reduce(d * d, reduction)


def l1_loss(x: Any, target: Any, reduction: Reduction = "mean") -> Tensor:
    """Absolute difference."""
    x, target = _pair(x, target, "l1_loss")
    return _reduce(F.abs(x - target), reduction)


def smooth_l1_loss(x: Any, target: Any, reduction: Reduction = "mean", beta: float = 1.0) -> Tensor:
    """``d**2 / (2 * beta)`` where ``|d| < beta``, ``|d| - beta / 2`` elsewhere."""
    x, target = _pair(x, target, "smooth_l1_loss")
    d = F.abs(x - target)
    return _reduce(F.where(d < beta, d * d * (0.5 / beta), d - 0.5 * beta) if beta else d, reduction)


def huber_loss(x: Any, target: Any, reduction: Reduction = "mean", delta: float = 1.0) -> Tensor:
    """``d**2 / 2`` where ``|d| < delta``, ``delta * (|d| - delta / 2)`` elsewhere."""
    x, target = _pair(x, target, "huber_loss")
    d = F.abs(x - target)
    return _reduce(F.where(d < delta, 0.5 * d * d, delta * (d - 0.5 * delta)), reduction)


def binary_cross_entropy(p: Any, target: Any, reduction: Reduction = "mean") -> Tensor:
    """Of probabilities; logarithms are kept above -100, as PyTorch does."""
    p, target = _pair(p, target, "binary_cross_entropy")
    a, b = F.maximum(F.log(p), -100.0), F.maximum(F.log(1.0 - p), -100.0)
    return _reduce(-(target * a + (1.0 - target) * b), reduction)


def binary_cross_entropy_with_logits(x: Any, target: Any, reduction: Reduction = "mean", pos_weight: Any = None) -> Tensor:
    """Of sigmoid(x), without overflow."""
    x, target = _pair(x, target, "binary_cross_entropy_with_logits")
    scale = 1.0 if pos_weight is None else (as_tensor(pos_weight) - 1.0) * target + 1.0
    return _reduce((1.0 - target) * x + softplus(-x) * scale, reduction)


def kl_div(
    logq: Any, p: Any, reduction: Literal["mean", "sum", "none", "batchmean"] = "mean", log_target: bool = False
) -> Tensor:
    """``p * (log p - logq)``, zero where p is."""
    logq, p = _pair(logq, p, "kl_div")
    d = F.exp(p) * (p - logq) if log_target else F.where(p > 0, p * (F.log(F.where(p > 0, p, 1.0)) - logq), 0.0)
    return d.sum() / float(d.shape[0]) if reduction == "batchmean" else _reduce(d, reduction)


def scaled_dot_product_attention(
    q: Any, k: Any, v: Any, mask: Any = None, causal: bool = False, scale: float | None = None
) -> Tensor:
    """``softmax(q @ k.T * scale) @ v`` over the last two axes; a boolean mask says who may be seen, a float one is added."""
    q, k = as_tensor(q), as_tensor(k)
    scores = q @ k.mT * (scale if scale is not None else 1.0 / math.sqrt(q.shape[-1]))
    if causal:
        n, m = scores.shape[-2:]
        scores = F.where(F.positions(n).reshape(n, 1) >= F.positions(m), scores, -math.inf)
    if mask is not None:
        mask = as_tensor(mask)
        scores = F.where(mask, scores, -math.inf) if mask.dtype == "bool" else scores + mask
    return softmax(scores, -1) @ v


__all__ = [n for n in dir() if not n.startswith("_")]
_ = (relu, silu)
