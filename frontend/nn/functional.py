"""Layers as functions. Shapes and defaults are PyTorch's (channels first)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilegrad._base.errors import ShapeError, UsageError
from tilegrad.frontend import functions as F
from tilegrad.frontend.apply import apply, as_tensor, axes_of
from tilegrad.frontend.arguments import check_all
from tilegrad.frontend.functions import log_softmax, pad, relu, sigmoid, silu, softmax, tanh
from tilegrad.frontend.nn.losses import (
    binary_cross_entropy,
    binary_cross_entropy_with_logits,
    cross_entropy,
    huber_loss,
    kl_div,
    l1_loss,
    mse_loss,
    nll_loss,
    smooth_l1_loss,
    softplus,
)
from tilegrad.frontend.nn.normalisation import dropout, group_norm, layer_norm, rms_norm
from tilegrad.frontend.nn.scaled_dot_product import scaled_dot_product_attention
from tilegrad.frontend.recording import fail_line
from tilegrad.frontend.tensor import Tensor

Size = int | Sequence[int]


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
    if w.ndim != rank + 2:
        raise ShapeError(fail_line() + what, f"a weight of shape {w.shape}", f"[out, in / groups and {rank} more axes]")
    if groups < 1 or x.shape[1] != w.shape[1] * groups or w.shape[0] % groups:
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
    x = as_tensor(x)
    if x.ndim != rank + 2 or w.ndim != rank + 2:
        got = f"an input of shape {x.shape} and a weight of shape {w.shape}"
        raise ShapeError(
            fail_line() + what, got, f"[batch, channels and {rank} more axes] and [channels, out / groups and {rank} more]"
        )
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
    if min(sizes) < 1:
        raise UsageError(fail_line() + what, f"windows of {sizes}", "at least one element")
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
    x = as_tensor(x)
    if x.ndim != rank + 2:
        raise ShapeError(
            fail_line() + f"adaptive_avg_pool{rank}d", f"an input of shape {x.shape}", f"[batch, channels and {rank} more axes]"
        )
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


def elu(x: Any, alpha: float = 1.0) -> Tensor:
    """``x`` above 0, ``alpha * (exp(x) - 1)`` below."""
    x = as_tensor(x)
    return F.where(x <= 0, alpha * (F.exp(F.clip(x, None, 0.0)) - 1.0), x)


def selu(x: Any) -> Tensor:
    """Scaled ``elu`` that keeps mean 0 and variance 1 (Klambauer et al. 2017)."""
    return 1.0507009873554805 * elu(x, 1.6732632423543772)


def relu6(x: Any) -> Tensor:
    """``min(max(x, 0), 6)``; gradient 0 at 0 and 6."""
    return hardtanh(x, 0.0, 6.0)


def hardtanh(x: Any, low: float = -1.0, high: float = 1.0) -> Tensor:
    """``min(max(x, low), high)``; gradient 0 at the bounds, where ``clip`` has 1."""
    x = as_tensor(x)
    return F.where(x <= low, low, F.where(x >= high, high, x))


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
    if weight.size != 1 and (x.ndim < 2 or weight.shape != x.shape[1:2]):
        raise ShapeError(
            fail_line() + "prelu, argument 'weight'", f"shape {weight.shape} for an input {x.shape}", "one, or one per channel"
        )
    w = weight if weight.size == 1 else weight.reshape(-1, *(1,) * (x.ndim - 2))
    return F.where(x > 0, x, x * w)


def glu(x: Any, axis: int = -1) -> Tensor:
    """The first half times the sigmoid of the second."""
    x = as_tensor(x)
    (place,) = axes_of(axis, x.ndim, "glu")
    if x.shape[place] % 2:
        raise ShapeError(fail_line() + "glu", f"{x.shape[place]} elements along axis {axis}", "an even number")
    a, b = F.chunk(x, 2, axis)
    return a * sigmoid(b)


def normalize(x: Any, axis: int = 1, eps: float = 1e-12) -> Tensor:
    """Divided by the Euclidean length along the axis."""
    x = as_tensor(x)
    return x / F.clip(F.norm(x, axis, True), eps)


__all__ = [
    "adaptive_avg_pool", "adaptive_avg_pool2d", "avg_pool1d", "avg_pool2d", "avg_pool3d", "binary_cross_entropy",
    "binary_cross_entropy_with_logits", "conv1d", "conv2d", "conv3d", "conv_transpose", "cross_entropy", "dropout", "elu",
    "gelu", "glu", "group_norm", "hardsigmoid", "hardswish", "hardtanh", "huber_loss", "kl_div", "l1_loss", "layer_norm",
    "leaky_relu", "linear", "log_softmax", "logsigmoid", "max_pool1d", "max_pool2d", "max_pool3d", "mish", "mse_loss",
    "nll_loss", "normalize", "pad", "prelu", "relu", "relu6", "rms_norm", "scaled_dot_product_attention", "selu", "sigmoid",
    "silu", "smooth_l1_loss", "softmax", "softplus", "tanh",
]  # fmt: skip


check_all(globals(), __all__)
