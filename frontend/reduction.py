"""Reductions, running sums, softmax and matrix products."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tilegrad._base.errors import ShapeError
from tilegrad.frontend.apply import Axes, apply, as_tensor, axes_of, cast, node_of, wrap
from tilegrad.frontend.elementwise import astype, exp, isfinite, log, multiply, sqrt, where
from tilegrad.frontend.movement import squeeze
from tilegrad.frontend.recording import FLOATS, fail_line, record

if TYPE_CHECKING:
    from tilegrad.frontend.tensor import Tensor


def _reduction(op: str, x: Any, axis: Axes, keepdims: builtins.bool, whole: str | None = None) -> Tensor:
    node = node_of(x)
    if whole is not None and node.type.dtype not in FLOATS:
        node = cast(node, whole)
    axes = axes_of(axis, len(node.type.shape), op)
    if not axes:
        return wrap(record("reshape", (node,), (node.type.shape,)))
    return wrap(record(op, (node,), (None if axis is None else axes, keepdims)))


def _extreme(op: str, x: Any, axis: Axes, keepdims: builtins.bool) -> Tensor:
    x = as_tensor(x)
    _some(op, x.shape, axes_of(axis, x.ndim, op))
    return _reduction(op, x, axis, keepdims)


def _some(op: str, shape: Sequence[builtins.int], axes: Sequence[builtins.int]) -> None:
    if 0 in [shape[a] for a in axes]:
        raise ShapeError(f"{fail_line()}{op}", f"no elements along axes {tuple(axes)} of shape {tuple(shape)}", "at least one")


def sum(x: Any, axis: Axes = None, keepdims: builtins.bool = False) -> Tensor:
    """Sum over the axes (all by default). Whole numbers and booleans are added as int64."""
    return _reduction("sum", x, axis, keepdims, "int64")


def mean(x: Any, axis: Axes = None, keepdims: builtins.bool = False) -> Tensor:
    """Arithmetic mean of floats; whole numbers are taken as float32."""
    return _reduction("mean", x, axis, keepdims, "float32")


def max(x: Any, axis: Axes = None, keepdims: builtins.bool = False) -> Tensor:
    """Largest value; NaN if there is one. Raises ShapeError for no elements.

    The gradient is shared evenly among ties, and among the NaNs of the whole array. With axes given it is NaN throughout a
    slice that holds a NaN.
    """
    return _extreme("max", x, axis, keepdims)


def min(x: Any, axis: Axes = None, keepdims: builtins.bool = False) -> Tensor:
    """Smallest value; NaN if there is one. Raises ShapeError for no elements.

    The gradient is shared evenly among ties, and among the NaNs of the whole array. With axes given it is NaN throughout a
    slice that holds a NaN.
    """
    return _extreme("min", x, axis, keepdims)


def prod(x: Any, axis: Axes = None, keepdims: builtins.bool = False) -> Tensor:
    """Product."""
    return _reduction("prod", x, axis, keepdims, "int64")


def var(x: Any, axis: Axes = None, correction: builtins.int = 1, keepdims: builtins.bool = False) -> Tensor:
    """Sum of squared deviations over ``n - correction``; the unbiased variance by default, as in PyTorch."""
    x = as_tensor(x)
    axes = axes_of(axis, x.ndim, "var")
    d = x - mean(x, axes, True)
    n = math.prod(x.shape[a] for a in axes)
    return sum(d * d, axes, keepdims) * (1.0 / (n - correction) if n > correction else math.inf)


def std(x: Any, axis: Axes = None, correction: builtins.int = 1, keepdims: builtins.bool = False) -> Tensor:
    """Square root of ``var``; gradient 0 where all elements are equal."""
    return _length(var(x, axis, correction, keepdims))


def norm(x: Any, axis: Axes = None, keepdims: builtins.bool = False) -> Tensor:
    """Euclidean length; gradient 0 at 0."""
    return _length(sum(multiply(x, x), axis, keepdims))


def _length(square: Tensor) -> Tensor:
    """Square root whose gradient is 0 at 0, the least of the subgradients, as PyTorch takes it for lengths."""
    square = square if square.dtype in FLOATS else astype(square, "float32")
    zero = square == 0
    return where(zero, 0.0, sqrt(where(zero, 1.0, square)))


def all(x: Any, axis: Axes = None, keepdims: builtins.bool = False) -> Tensor:
    """Whether all are true (not zero); of no elements, true."""
    return _reduction("min", astype(astype(x, "bool"), "uint8"), axis, keepdims) != 0


def any(x: Any, axis: Axes = None, keepdims: builtins.bool = False) -> Tensor:
    """Whether one is true (not zero); of no elements, false."""
    return _reduction("max", astype(astype(x, "bool"), "uint8"), axis, keepdims) != 0


def logsumexp(x: Any, axis: Axes = None, keepdims: builtins.bool = False) -> Tensor:
    """``log(sum(exp(x)))``, without overflow; minus infinity over no elements."""
    x = as_tensor(x)
    top = _reduction("max", x, axis, True).detach()
    top = where(isfinite(top), top, 0.0)
    total = log(sum(exp(x - top), axis, True)) + top
    return total if keepdims else squeeze(total, axes_of(axis, x.ndim, "logsumexp"))


def _arg(op: str, x: Any, axis: builtins.int | None, keepdims: builtins.bool) -> Tensor:
    x = as_tensor(x)
    if axis is None:
        x, axis = x.reshape(-1), 0
    (axis,) = axes_of(axis, x.ndim, op)
    _some(op, x.shape, (axis,))
    return astype(apply(op, x, attrs=(axis, keepdims)), "int64")


def argmax(x: Any, axis: builtins.int | None = None, keepdims: builtins.bool = False) -> Tensor:
    """Index of the (first) largest value along the axis, or in the flattened array."""
    return _arg("argmax", x, axis, keepdims)


def argmin(x: Any, axis: builtins.int | None = None, keepdims: builtins.bool = False) -> Tensor:
    """Index of the (first) smallest value along the axis, or in the flattened array."""
    return _arg("argmin", x, axis, keepdims)


def _along(op: str, doc: str) -> Callable[..., Tensor]:
    def f(x: Any, axis: builtins.int = -1) -> Tensor:
        node = node_of(x)
        (a,) = axes_of(axis, len(node.type.shape), op)
        return wrap(record(op, (node,), (a,)))

    f.__name__ = f.__qualname__ = op
    f.__doc__ = doc
    return f


cumsum = _along("cumsum", "Running sum along the axis.")
cumprod = _along("cumprod", "Running product along the axis.")
softmax = _along("softmax", "``exp(x) / sum(exp(x))`` along the axis, without overflow.")
log_softmax = _along("log_softmax", "``x - log(sum(exp(x)))`` along the axis, without overflow.")


def matmul(a: Any, b: Any) -> Tensor:
    """Matrix product over the last two axes, the others broadcast; vectors as NumPy treats them. One dtype for both."""
    na, nb = node_of(a), node_of(b)
    if not na.type.shape or not nb.type.shape:
        raise ShapeError(
            fail_line() + "matmul", f"{na.type!r} and {nb.type!r}", "arrays of at least one axis", "Scale with * instead."
        )
    return wrap(record("matmul", (na, nb)))
