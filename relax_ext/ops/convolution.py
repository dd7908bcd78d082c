"""The two gradients of a convolution as operators: any number of spatial axes, stride, padding, dilation, groups.

Layouts are N, C, spatial for images and O, I/groups, spatial for weights. ``padding`` gives the amounts before every
spatial axis, then after, as Relax does.
"""

from __future__ import annotations

from tilegrad._base.tvm import relax
from tilegrad.relax_ext.ops import _te_conv as _te
from tilegrad.relax_ext.ops.register import register, tensor

Ints = tuple[int, ...]


def _by_data(
    dy: relax.TensorType, w: relax.TensorType, x_shape: Ints, strides: Ints, padding: Ints, dilation: Ints, groups: int
) -> relax.Type:
    return tensor(x_shape, dy.dtype)


def _by_weight(
    dy: relax.TensorType, x: relax.TensorType, w_shape: Ints, strides: Ints, padding: Ints, dilation: Ints, groups: int
) -> relax.Type:
    return tensor(w_shape, dy.dtype)


conv_by_data = register("tilegrad.conv_by_data", _by_data, _te.conv_by_data)
conv_by_weight = register("tilegrad.conv_by_weight", _by_weight, _te.conv_by_weight)
