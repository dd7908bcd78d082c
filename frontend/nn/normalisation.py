"""Normalisation, dropout and embedding layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilegrad._base.errors import DTypeError, ShapeError, UsageError
from tilegrad.frontend import functions as F
from tilegrad.frontend import init, random
from tilegrad.frontend.apply import apply, as_tensor
from tilegrad.frontend.arguments import check_all
from tilegrad.frontend.blocks import custom_vjp
from tilegrad.frontend.nn.module import Module, Parameter
from tilegrad.frontend.recording import FLOATS, fail_line, grad_mode
from tilegrad.frontend.tensor import Tensor, tensor

_EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}
"""The distance from 1 to the next number."""


def layer_norm(
    x: Any, normalized_shape: int | Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Zero mean and unit variance over the last axes, whose extents are ``normalized_shape``; then scaled and shifted."""
    x = as_tensor(x)
    axes = _last_axes(x, normalized_shape, "layer_norm")
    return _affine(_standardised(x, axes, eps), weight, bias, x.shape[axes[0] :], "layer_norm")


def rms_norm(x: Any, normalized_shape: int | Sequence[int], weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    """Divided by the root mean square over the last axes (Zhang and Sennrich 2019)."""
    x = as_tensor(x)
    axes = _last_axes(x, normalized_shape, "rms_norm")
    eps = _EPS.get(str(x.dtype), _EPS["float32"]) if eps is None else eps
    return _affine(x * F.rsqrt((x * x).mean(axes, True) + eps), weight, None, x.shape[axes[0] :], "rms_norm")


def group_norm(x: Any, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """Zero mean and unit variance over each group of channels of [N, C, ...] (Wu and He 2018)."""
    x = as_tensor(x)
    if x.ndim < 2 or x.shape[1] % num_groups:
        raise ShapeError(fail_line() + "group_norm", f"{x.shape} in {num_groups} groups", "[N, C, ...], C a multiple of them")
    y = _standardised(x.reshape(x.shape[0], num_groups, -1), (2,), eps).reshape(x.shape)
    return _affine(y, weight, bias, (x.shape[1],), "group_norm", (-1, *(1,) * (x.ndim - 2)))


def _affine(y: Tensor, weight: Any, bias: Any, shape: tuple[int, ...], where: str, view: tuple[int, ...] | None = None) -> Tensor:
    """``y * weight + bias``, seen as ``view``. Raises ShapeError where they are of another shape than ``shape``."""
    given = {name: as_tensor(v) for name, v in (("weight", weight), ("bias", bias)) if v is not None}
    for name, value in given.items():
        if value.shape != shape:
            raise ShapeError(fail_line() + f"{where}, argument '{name}'", f"shape {value.shape}", f"shape {shape}")
        given[name] = value if view is None else value.reshape(view)
    y = y * given["weight"] if "weight" in given else y
    return y + given["bias"] if "bias" in given else y


def _last_axes(x: Tensor, extents: int | Sequence[int], where: str) -> tuple[int, ...]:
    """The axes that ``extents`` names. Raises ShapeError where x does not end in them."""
    shape = (extents,) if isinstance(extents, int) else tuple(extents)
    axes = tuple(range(x.ndim - len(shape), x.ndim))
    if not 0 < len(shape) <= x.ndim or x.shape[x.ndim - len(shape) :] != shape:
        raise ShapeError(fail_line() + where, f"an input of shape {x.shape}", f"last extents {shape}")
    return axes


def _standardised(x: Tensor, axes: tuple[int, ...], eps: float) -> Tensor:
    """(x - mean) / sqrt(variance + eps) over ``axes``. Its gradient r (g - mean g - u mean(g u)) takes both means in one pass."""

    def parts(x: Tensor) -> tuple[Tensor, Tensor]:
        d = x - x.mean(axes, True)
        scale = F.rsqrt((d * d).mean(axes, True) + eps)
        return d * scale, scale

    @custom_vjp
    def unit(x: Tensor) -> Tensor:
        return parts(x)[0]

    @unit.backward
    def _(inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...], cotangents: tuple[Tensor, ...]) -> Tensor:
        (g,), (u, scale) = cotangents, parts(inputs[0])
        return scale * (g - g.mean(axes, True) - u * (g * u).mean(axes, True))

    return unit(x)


def dropout(x: Any, p: float = 0.5, training: bool = True) -> Tensor:
    """Each element zero with probability ``p``, the rest scaled by 1 / (1 - p); nothing outside training."""
    x = as_tensor(x)
    if x.dtype not in FLOATS:
        raise DTypeError(fail_line() + "dropout, argument 'x'", x.dtype, f"one of {', '.join(sorted(FLOATS))}")
    if not training or p == 0:
        return x
    return apply("dropout", x, random.key(), attrs=(float(p),))


class LayerNorm(Module):
    """``layer_norm`` with learned scale and shift."""

    def __init__(
        self, normalized_shape: int | Sequence[int], eps: float = 1e-5, elementwise_affine: bool = True, bias: bool = True
    ) -> None:
        super().__init__()
        self.normalized_shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        self.eps = eps
        shape = self.normalized_shape
        self.register_parameter("weight", Parameter(np.ones(shape, np.float32)) if elementwise_affine else None)
        self.register_parameter("bias", Parameter(np.zeros(shape, np.float32)) if elementwise_affine and bias else None)

    def forward(self, x: Any) -> Tensor:
        return layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}"


class RMSNorm(Module):
    """``rms_norm`` with learned scale."""

    def __init__(self, normalized_shape: int | Sequence[int], eps: float | None = None, elementwise_affine: bool = True) -> None:
        super().__init__()
        self.normalized_shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        self.eps = eps
        self.register_parameter("weight", Parameter(np.ones(self.normalized_shape, np.float32)) if elementwise_affine else None)

    def forward(self, x: Any) -> Tensor:
        return rms_norm(x, self.normalized_shape, self.weight, self.eps)


class GroupNorm(Module):
    """``group_norm`` with learned scale and shift per channel."""

    def __init__(self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True) -> None:
        super().__init__()
        if num_channels % num_groups:
            raise UsageError(f"{type(self).__name__}, argument 'num_groups'", f"{num_groups} for {num_channels}", "a divisor")
        self.num_groups, self.num_channels, self.eps = num_groups, num_channels, eps
        self.register_parameter("weight", Parameter(np.ones(num_channels, np.float32)) if affine else None)
        self.register_parameter("bias", Parameter(np.zeros(num_channels, np.float32)) if affine else None)

    def forward(self, x: Any) -> Tensor:
        return group_norm(x, self.num_groups, self.weight, self.bias, self.eps)


class _InstanceNorm(GroupNorm):
    """Zero mean and unit variance over each channel of each example."""

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = False) -> None:
        super().__init__(num_features, num_features, eps, affine)


class _BatchNorm(Module):
    """Zero mean and unit variance over batch and positions, per channel (Ioffe and Szegedy 2015).

    In training the batch's statistics are used and the running ones follow; in evaluation the running ones are used.
    """

    ranks: tuple[int, ...] = ()

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
    ) -> None:
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.register_parameter("weight", Parameter(np.ones(num_features, np.float32)) if affine else None)
        self.register_parameter("bias", Parameter(np.zeros(num_features, np.float32)) if affine else None)
        self.register_buffer("running_mean", tensor(np.zeros(num_features), "float32") if track_running_stats else None)
        self.register_buffer("running_var", tensor(np.ones(num_features), "float32") if track_running_stats else None)
        self.register_buffer("num_batches_tracked", tensor(0, "int64") if track_running_stats else None)

    def forward(self, x: Any) -> Tensor:
        x = as_tensor(x)
        if x.ndim not in self.ranks or x.shape[1] != self.num_features:
            expected = f"[N, {self.num_features}, ...] of {' or '.join(map(str, self.ranks))} axes"
            raise ShapeError(fail_line() + type(self).__name__, f"an input of shape {x.shape}", expected)
        channels = (-1, *(1,) * (x.ndim - 2))
        if self.training or self.running_mean is None:
            y = self._by_batch(x)
        else:
            y = (x - self.running_mean.reshape(channels)) * F.rsqrt(self.running_var.reshape(channels) + self.eps)
        y = y if self.weight is None else y * self.weight.reshape(channels)
        return y if self.bias is None else y + self.bias.reshape(channels)

    def _by_batch(self, x: Tensor) -> Tensor:
        """Normalised by the batch's statistics, which the running ones follow in training."""
        axes = (0, *range(2, x.ndim))
        n = x.size // x.shape[1]
        if n < 2:
            raise UsageError(fail_line() + type(self).__name__, f"one value per channel, shape {x.shape}", "several in training")
        if self.training and self.running_mean is not None:
            with grad_mode(False):
                mean = x.mean(axes, True)
                d = x - mean
                self._follow(mean.reshape(-1), (d * d).mean(axes, True).reshape(-1) * (n / (n - 1)))
        return _standardised(x, axes, self.eps)

    def _follow(self, mean: Tensor, var: Tensor) -> None:
        """Running statistics move by ``momentum``, or to the mean of all batches for None."""
        self.num_batches_tracked.assign_(self.num_batches_tracked + 1)
        share: Any = self.momentum if self.momentum is not None else 1.0 / self.num_batches_tracked.astype("float32")
        self.running_mean.assign_(self.running_mean * (1.0 - share) + mean * share)
        self.running_var.assign_(self.running_var * (1.0 - share) + var * share)

    def extra_repr(self) -> str:
        return f"{self.num_features}, eps={self.eps}, momentum={self.momentum}"


class BatchNorm1d(_BatchNorm):
    """Batch normalisation of [N, C] or [N, C, L]."""

    ranks = (2, 3)


class BatchNorm2d(_BatchNorm):
    """Batch normalisation of [N, C, H, W]."""

    ranks = (4,)


class BatchNorm3d(_BatchNorm):
    """Batch normalisation of [N, C, D, H, W]."""

    ranks = (5,)


class InstanceNorm1d(_InstanceNorm):
    """Instance normalisation of [N, C, L]."""


class InstanceNorm2d(_InstanceNorm):
    """Instance normalisation of [N, C, H, W]."""


class InstanceNorm3d(_InstanceNorm):
    """Instance normalisation of [N, C, D, H, W]."""


class Dropout(Module):
    """``dropout`` in training, nothing in evaluation. Seeded by ``manual_seed``."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Any) -> Tensor:
        return dropout(x, self.p, self.training)

    def extra_repr(self) -> str:
        return f"p={self.p}"


class Dropout2d(Dropout):
    """Whole channels of [N, C, H, W] dropped together."""

    def forward(self, x: Any) -> Tensor:
        x = as_tensor(x)
        return x * dropout(F.broadcast_to(tensor(1.0, x.dtype), (*x.shape[:2], 1, 1)), self.p, self.training)


class Embedding(Module):
    """Rows of ``weight`` [num_embeddings, embedding_dim] at whole-number indices."""

    def __init__(self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
        values = init.generator().standard_normal((num_embeddings, embedding_dim)).astype(np.float32)
        if self.padding_idx is not None:
            values[self.padding_idx] = 0
        self.weight = Parameter(values)

    def forward(self, index: Any) -> Tensor:
        index = as_tensor(index)
        rows = F.take(self.weight, index, 0)
        if self.padding_idx is None:
            return rows
        return F.where((index == self.padding_idx).unsqueeze(-1), rows.detach(), rows)  # the padding row gets no gradient

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}"


check_all(globals(), [name for name, v in globals().items() if isinstance(v, type) and v.__module__ == __name__])
