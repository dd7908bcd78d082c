"""Convolution and its gradients as implicit GEMM, against PyTorch in float64."""

import numpy as np
import pytest

from tests.schedules.test_contraction import run, tensor
from tilegrad.schedules.contraction import TEMPLATE
from tilegrad.schedules.stages import create
from tilegrad.schedules.te.conv import conv, conv_attrs, conv_by_data, conv_by_weight

torch = pytest.importorskip("torch")

QUICK = [  # image, weights, strides, padding, dilation, groups
    ((2, 6, 10, 9), (8, 3, 3, 3), 2, 1, 1, 2),
    ((3, 3, 20), (4, 3, 5), 2, 2, 1, 1),
]
SLOW = [
    ((2, 5, 9, 11), (7, 5, 3, 3), 1, 1, 1, 1),
    ((1, 4, 13, 12), (8, 1, 3, 2), (2, 3), [(1, 0), (2, 1)], (1, 2), 4),
    ((2, 4, 16, 16), (6, 4, 1, 1), 1, 0, 1, 1),
    ((1, 2, 5, 6, 7), (3, 2, 3, 3, 3), 1, 1, 1, 1),
    ((2, 8, 9, 9), (8, 1, 3, 3), 1, 1, 1, 8),
    ((1, 5, 14, 15), (7, 5, 1, 1), 2, 0, 1, 1),
    ((2, 3, 15, 14), (4, 3, 7, 7), 2, 3, 1, 1),
    ((1, 4, 8, 6), (5, 4, 4, 4), 2, 1, 1, 1),
    ((1, 4, 8, 6), (5, 4, 2, 2), 2, 0, 1, 1),
    ((1, 4, 17, 11), (6, 4, 3, 2), (3, 2), 1, (2, 1), 1),
    ((2, 4, 6, 7, 8), (3, 4, 3, 3, 3), 2, 1, 1, 1),
    ((1, 6, 29, 29), (4, 3, 3, 3), 2, 1, 1, 2),
]
CASES = [*QUICK, *(pytest.param(*case, marks=pytest.mark.long) for case in SLOW)]


def _forward(x, w, at, groups):
    x = torch.nn.functional.pad(x, [v for pair in reversed(at.padding) for v in pair])
    function = (torch.nn.functional.conv1d, torch.nn.functional.conv2d, torch.nn.functional.conv3d)[x.ndim - 3]
    return function(x, w, None, at.strides, 0, at.dilation, groups)


def _check(inputs, out, reference):
    workload = TEMPLATE.match(create([*inputs, out]))
    assert workload is not None
    arrays, (got,) = run(inputs, [out])
    np.testing.assert_allclose(got, reference(*(torch.tensor(a).double() for a in arrays)).numpy(), rtol=1e-4, atol=1e-4)
    return workload


@pytest.mark.parametrize("x_shape, w_shape, strides, padding, dilation, groups", CASES)
def test_forward_and_gradients(x_shape, w_shape, strides, padding, dilation, groups):
    args = (strides, padding, dilation, groups)
    at = conv_attrs(len(x_shape) - 2, *args)
    y_shape = (x_shape[0], w_shape[0], *at.out_size(x_shape[2:], w_shape[2:]))
    x, w, dy = tensor(*x_shape), tensor(*w_shape, name="w"), tensor(*y_shape, name="dy")
    zeros_x, zeros_w = (torch.zeros(s, dtype=torch.float64) for s in (x_shape, w_shape))
    kinds = [
        ([x, w], conv(x, w, *args), lambda u, v: _forward(u, v, at, groups)),
        (
            [dy, w],
            conv_by_data(dy, w, x_shape, *args),
            lambda g, v: torch.func.vjp(lambda u: _forward(u, v, at, groups), zeros_x)[1](g)[0],
        ),
        (
            [dy, x],
            conv_by_weight(dy, x, w_shape, *args),
            lambda g, u: torch.func.vjp(lambda v: _forward(u, v, at, groups), zeros_w)[1](g)[0],
        ),
    ]
    for inputs, out, reference in kinds:
        workload = _check(inputs, out, reference)
        assert TEMPLATE.match(TEMPLATE.define(workload)).key == workload.key


def test_gathered_blocks_cut_rows_anywhere():
    """Blocks of N that begin and end inside a row of the image and inside a segment."""
    x, w = tensor(3, 4, 7, 13), tensor(5, 4, 3, 3, name="w")
    at = conv_attrs(2, 1, 1)
    for config in ({"nc": 16, "kc": 10, "split": [1, 2, 1]}, {"nc": 48, "kc": 36, "split": [2, 1, 1]}):
        arrays, (got,) = run([x, w], [conv(x, w, 1, 1)], config)
        want = _forward(*(torch.tensor(a).double() for a in arrays), at, 1).numpy()
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
