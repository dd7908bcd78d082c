"""The two gradients of a convolution as operators: any number of spatial axes, stride, padding, dilation, groups.

Layouts are N, C, spatial for images and O, I/groups, spatial for weights. ``padding`` gives the amounts before every
spatial axis, then after, as Relax does.
"""

from __future__ import annotations

from tilegrad._base.tvm import relax, te
from tilegrad.relax_ext.ops.register import register, tensor
from tilegrad.schedules.te import conv as _te

Ints = tuple[int, ...]


def _pairs(padding: Ints) -> tuple[tuple[int, int], ...]:
    n = len(padding) // 2
    return tuple(zip(padding[:n], padding[n:], strict=True))


def _by_data(dy: te.Tensor, w: te.Tensor, x_shape: Ints, strides: Ints, padding: Ints, dilation: Ints, groups: int) -> te.Tensor:
    """The cotangent of a convolution's image, given that of its result and the weights: a transposed convolution."""
    return _te.conv_by_data(dy, w, x_shape, strides, _pairs(padding), dilation, groups)


def _by_weight(
    dy: te.Tensor, x: te.Tensor, w_shape: Ints, strides: Ints, padding: Ints, dilation: Ints, groups: int
) -> te.Tensor:
    """The cotangent of a convolution's weights, given that of its result and the image."""
    return _te.conv_by_weight(dy, x, w_shape, strides, _pairs(padding), dilation, groups)


def _image(dy: relax.TensorType, w: relax.TensorType, *, x_shape: Ints, **_: object) -> relax.Type:
    return tensor(x_shape, dy.dtype)


def _weights(dy: relax.TensorType, x: relax.TensorType, *, w_shape: Ints, **_: object) -> relax.Type:
    return tensor(w_shape, dy.dtype)


conv_by_data = register("tilegrad.conv_by_data", _image, _by_data)
conv_by_weight = register("tilegrad.conv_by_weight", _weights, _by_weight)
