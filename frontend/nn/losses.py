"""Losses. Shapes, reductions and conventions are PyTorch's."""

from __future__ import annotations

from typing import Any, Literal

from tilegrad._base.errors import DTypeError, IndexingError, ShapeError, UsageError
from tilegrad.frontend import functions as F
from tilegrad.frontend.apply import apply, as_tensor
from tilegrad.frontend.blocks import custom_vjp
from tilegrad.frontend.functions import log_softmax
from tilegrad.frontend.recording import FLOATS, fail_line, limit
from tilegrad.frontend.tensor import Tensor

Reduction = Literal["mean", "sum", "none"]


def softplus(x: Any, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """``log(1 + exp(beta * x)) / beta``; ``x`` itself above the threshold."""
    return apply("softplus", x, attrs=(float(beta), float(threshold)))


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
    _check_classes(t, x, axis, "cross_entropy")
    return _hard_nll(logp, t, axis, weight, ignore_index, reduction, label_smoothing)


def _check_classes(t: Tensor, x: Tensor, axis: int, what: str) -> None:
    expected = x.shape[:axis] + x.shape[axis + 1 :]
    if not x.ndim or t.shape != expected or t.dtype in FLOATS:
        got = f"{t.dtype}{list(t.shape)} for scores of shape {x.shape}"
        raise ShapeError(
            fail_line() + f"{what}, argument 'target'", got, f"class numbers of shape {expected}, scores [N, C, ...]"
        )


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
    t = _class_numbers(t, classes, ignore)
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
    known = F.equal(t, ignore) | ((t >= 0) & (t < classes))
    losses = F.where(known, losses, float("nan"))  # a class that does not exist must not look like a good prediction
    if reduction == "mean":
        return losses.sum() / scale.sum()
    return _reduce(losses, reduction)


def _class_numbers(t: Tensor, classes: int, ignore: int) -> Tensor:
    """Class numbers as integers that hold ``ignore`` too. IndexingError outside the range: here for known values, at each
    call for those of a compiled function's arguments."""
    value = t._node.value if t._node.op == "leaf" else None
    if value is not None and ((value != ignore) & ((value < 0) | (value >= classes))).any():
        bad = value[(value != ignore) & ((value < 0) | (value >= classes))].flat[0]
        raise IndexingError(f"{fail_line()}class numbers", f"class {bad}", f"0 to {classes - 1}, or ignore_index {ignore}")
    limit(t._node, 0, classes - 1, ignore)
    return t.astype("int64") if t.dtype in ("uint8", "int8", "bool") else t


def nll_loss(logp: Any, target: Any, weight: Any = None, ignore_index: int = -100, reduction: Reduction = "mean") -> Tensor:
    """Negative log-likelihood of class numbers, given log-probabilities [N, C, ...]."""
    x, t = as_tensor(logp), as_tensor(target)
    axis = 1 if x.ndim > 1 else 0
    _check_classes(t, x, axis, "nll_loss")
    return _hard_nll(x, t, axis, weight, ignore_index, reduction, 0.0)


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
    return _reduce(_bernoulli_nll(*_pair(p, target, "binary_cross_entropy")), reduction)


@custom_vjp
def _bernoulli_nll(p: Tensor, target: Tensor) -> Tensor:
    a, b = F.clip(F.log(p), -100.0), F.clip(F.log(1.0 - p), -100.0)
    return -(target * a + (1.0 - target) * b)


@_bernoulli_nll.backward
def _(inputs: tuple[Tensor, Tensor], _: Any, cotangents: tuple[Tensor]) -> tuple[Tensor, Tensor]:
    """PyTorch's: finite where p is 0 or 1, so that a saturated sigmoid before it passes on 0 and not NaN."""
    (p, target), (g,) = inputs, cotangents
    odds = F.log(1.0 - p) - F.log(p)
    return g * (p - target) / F.clip(p * (1.0 - p), 1e-12), g * odds


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
