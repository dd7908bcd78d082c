"""A convolution's three computations as TE, with PyTorch in float64 as their reference."""

import pytest

from tests.schedules.kernels import tensor
from tilegrad.schedules.te.conv import conv, conv_attrs, conv_by_data, conv_by_weight

torch = pytest.importorskip("torch")


def reference(x, w, at, groups):
    """The convolution of torch tensors."""
    x = torch.nn.functional.pad(x, [v for pair in reversed(at.padding) for v in pair])
    function = (torch.nn.functional.conv1d, torch.nn.functional.conv2d, torch.nn.functional.conv3d)[x.ndim - 3]
    return function(x, w, None, at.strides, 0, at.dilation, groups)


def kinds(x_shape, w_shape, *args, dtype="float32"):
    """(inputs, result, reference) of the three computations."""
    at, groups = conv_attrs(len(x_shape) - 2, *args), args[-1]
    y_shape = (x_shape[0], w_shape[0], *at.out_size(x_shape[2:], w_shape[2:]))
    shapes = {"x": x_shape, "w": w_shape, "dy": y_shape}
    x, w, dy = (tensor(*shape, dtype=dtype, name=name) for name, shape in shapes.items())
    zeros_x, zeros_w = (torch.zeros(s, dtype=torch.float64) for s in (x_shape, w_shape))
    return {
        "forward": ([x, w], conv(x, w, *args), lambda u, v: reference(u, v, at, groups)),
        "by_data": (
            [dy, w],
            conv_by_data(dy, w, x_shape, *args),
            lambda g, v: torch.func.vjp(lambda u: reference(u, v, at, groups), zeros_x)[1](g)[0],
        ),
        "by_weight": (
            [dy, x],
            conv_by_weight(dy, x, w_shape, *args),
            lambda g, u: torch.func.vjp(lambda v: reference(u, v, at, groups), zeros_w)[1](g)[0],
        ),
    }
