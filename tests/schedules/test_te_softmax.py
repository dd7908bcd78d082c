"""Softmax and arg-reductions in TE, against NumPy and PyTorch's conventions."""

from __future__ import annotations

import numpy as np
import pytest

from tests.schedules.kernels import Kernel, normal, tensor
from tilegrad.schedules.te.softmax import argmax, argmin, log_softmax, softmax


@pytest.mark.parametrize("shape,axis", [((40, 100), 1), ((40, 100), 0), ((3, 5, 7), 1)])
def test_softmax_and_its_logarithm(shape: tuple[int, ...], axis: int) -> None:
    x = tensor(*shape)
    a = normal(*shape) * 20
    d = a.astype("float64") - a.max(axis, keepdims=True)
    log = d - np.log(np.exp(d).sum(axis, keepdims=True))
    y, z = Kernel([x], softmax(x, axis), log_softmax(x, axis))(a)
    np.testing.assert_allclose(y, np.exp(log), rtol=1e-5, atol=1e-30)
    np.testing.assert_allclose(z, log, rtol=1e-6, atol=1e-6)


def test_arg_reductions_take_the_first_and_see_nan() -> None:
    x = tensor(6, 50)
    a = np.round(normal(6, 50))
    a[2, 30] = a[2, 40] = np.nan
    high, low = Kernel([x], argmax(x, 1), argmin(x, 1))(a)
    np.testing.assert_array_equal(high, a.argmax(1))
    np.testing.assert_array_equal(low, a.argmin(1))
    assert high[2] == 30
