"""Pooling and its gradients as operators: N, C, spatial; any number of spatial axes, overlap, padding, dilation.

A window is the run of positions ``o stride - pad + k dilation``. Max pooling's gradient goes through the index of the
first maximum in each window, so that gather and scatter by that index are each other's gradients at every order.
"""

from __future__ import annotations

from typing import Any

from tilegrad._base.tvm import relax
from tilegrad.relax_ext.ops import _te_pool as _te
from tilegrad.relax_ext.ops.register import register, shape, tensor

max_pool_index = register(
    "tilegrad.max_pool_index", lambda x, y, pool, **_: tensor(shape(y), _te.index_dtype(pool)), _te.max_pool_index
)


def _gathered(x: relax.TensorType, index: relax.TensorType, **_: Any) -> relax.Type:
    return tensor(shape(index), x.dtype)


def _image(dy: relax.TensorType, *_: relax.Type, x_shape: tuple[int, ...], **__: Any) -> relax.Type:
    return tensor(x_shape, dy.dtype)


def _pooled(x: relax.TensorType, *, y_shape: tuple[int, ...], **_: Any) -> relax.Type:
    return tensor(y_shape, x.dtype)


window_gather = register("tilegrad.window_gather", _gathered, _te.window_gather)
window_scatter = register("tilegrad.window_scatter", _image, _te.window_scatter)
avg_pool = register("tilegrad.avg_pool", _pooled, _te.avg_pool)
avg_pool_backward = register("tilegrad.avg_pool_backward", _image, _te.avg_pool_backward)
adaptive_avg_pool_backward = register("tilegrad.adaptive_avg_pool_backward", _image, _te.adaptive_avg_pool_backward)
