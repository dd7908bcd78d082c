"""Attention and its gradient as operators; ``schedules/attention`` makes each one kernel that keeps no matrix of weights."""

from __future__ import annotations

from typing import Any

from tilegrad._base.tvm import relax, te
from tilegrad.relax_ext.ops.register import register, shape, tensor
from tilegrad.schedules.te import attention as _te


def _forward(q: te.Tensor, k: te.Tensor, v: te.Tensor, *bias: te.Tensor, scale: float, diagonal: int | None) -> list[te.Tensor]:
    """softmax(q k^T scale + bias) v, and each row's log sum of exponentials."""
    return _te.attention(q, k, v, *bias, scale=scale, diagonal=diagonal)


def _backward(*tensors: te.Tensor, scale: float, diagonal: int | None) -> list[te.Tensor]:
    """The cotangents of q, k and v from them, the result's cotangent g, the log sums, rows' sums of g times result, and bias."""
    return _te.attention_backward(*tensors, scale=scale, diagonal=diagonal)


def _results(q: relax.TensorType, _: Any, v: relax.TensorType, *bias: Any, **attrs: Any) -> relax.Type:
    rows = shape(q)[:-1]
    return relax.TupleType([tensor((*rows, shape(v)[-1]), q.dtype), tensor(rows, q.dtype)])


def _cotangents(q: relax.TensorType, k: relax.TensorType, v: relax.TensorType, *rest: Any, **attrs: Any) -> relax.Type:
    return relax.TupleType([q, k, v])


attention = register("tilegrad.attention", _results, _forward)
attention_backward = register("tilegrad.attention_backward", _cotangents, _backward)
