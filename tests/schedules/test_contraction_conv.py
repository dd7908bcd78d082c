"""Convolution and its gradients as implicit GEMM, against PyTorch in float64."""

import numpy as np
import pytest

from tests.schedules.convolutions import kinds, reference
from tests.schedules.test_contraction import run, tensor
from tilegrad.schedules.contraction import TEMPLATE
from tilegrad.schedules.dispatch import task_of
from tilegrad.schedules.stages import create
from tilegrad.schedules.te.conv import conv, conv_attrs

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


def _check(inputs, out, want):
    workload = TEMPLATE.match(create([*inputs, out]))
    assert workload is not None
    arrays, (got,) = run(inputs, [out])
    np.testing.assert_allclose(got, want(*(torch.tensor(a).double() for a in arrays)).numpy(), rtol=1e-4, atol=1e-4)
    return workload


@pytest.mark.parametrize("x_shape, w_shape, strides, padding, dilation, groups", CASES)
def test_forward_and_gradients(x_shape, w_shape, strides, padding, dilation, groups):
    for inputs, out, want in kinds(x_shape, w_shape, strides, padding, dilation, groups).values():
        workload = _check(inputs, out, want)
        assert TEMPLATE.match(TEMPLATE.define(workload)).key == workload.key


def test_gathered_blocks_cut_rows_anywhere():
    """Blocks of N that begin and end inside a row of the image and inside a segment."""
    x, w = tensor(3, 4, 7, 13), tensor(5, 4, 3, 3, name="w")
    at = conv_attrs(2, 1, 1)
    for config in ({"nc": 16, "kc": 10, "split": [1, 2, 1]}, {"nc": 48, "kc": 36, "split": [2, 1, 1]}):
        arrays, (got,) = run([x, w], [conv(x, w, 1, 1)], config)
        want = reference(*(torch.tensor(a).double() for a in arrays), at, 1).numpy()
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("config", [{"pack_a": True, "mr": 2, "kc": 8}, {"pack_a": True, "mr": 3, "kc": 64, "split": [1, 1, 1]}])
def test_phases_pack_their_weights_together(config):
    """Phases of unlike depth and K blocks, whose weights lie in the same cache lines, in several groups of tiles."""
    inputs, out, want = kinds((1, 41, 9, 10), (10, 41, 3, 3), 2, 1, 1, 1)["by_data"]
    arrays, (got,) = run(inputs, [out], config)
    np.testing.assert_allclose(got, want(*(torch.tensor(a).double() for a in arrays)).numpy(), rtol=1e-4, atol=1e-4)


NARROW = [  # as above; pairs are channels: an odd number, of a group, none (the padded taps of one channel)
    ("int8", (2, 5, 7, 9), (7, 5, 3, 2), 1, 1, 1, 1),
    ("int16", (2, 6, 9, 5), (8, 3, 3, 1), (2, 1), [(1, 1), (0, 2)], (1, 2), 2),
    ("int8", (1, 1, 40), (6, 1, 7), 1, 0, 1, 1),
    ("uint8", (2, 1, 40), (6, 1, 7), 1, 3, 1, 1),
]


@pytest.mark.parametrize("dtype, x_shape, w_shape, strides, padding, dilation, groups", NARROW)
def test_narrow_integers_are_exact(dtype, x_shape, w_shape, strides, padding, dilation, groups):
    """Random ones, and sums of nothing but the most extreme."""
    rng, ends = np.random.default_rng(0), np.iinfo(dtype)
    for inputs, out, want in kinds(x_shape, w_shape, strides, padding, dilation, groups, dtype=dtype).values():
        arrays = [rng.integers(ends.min, ends.max, tuple(map(int, t.shape)), dtype, endpoint=True) for t in inputs]
        for a in arrays:
            a[: (len(a) + 1) // 2] = ends.min or ends.max
        _, (got,) = run(inputs, [out], arrays=arrays)
        exact = want(*(torch.tensor(a.astype("float64")) for a in arrays)).numpy()  # integers below 2 ** 53
        np.testing.assert_array_equal(got, exact.astype("int64").astype("int32"))


def test_narrow_integers_against_sums_of_int64():
    """A dense layer whose default for floats is the window template; blocks of K that end anywhere."""
    x, w = (tensor(*shape, dtype="int8", name=name) for shape, name in (((2, 7, 9, 16), "x"), ((8, 7, 3, 3), "w")))
    out = conv(x, w, 1, 1)
    assert task_of(create([x, w, out]))[0] is TEMPLATE
    for config in ({"kc": 5, "split": [1, 1, 2]}, {"kc": 16, "nc": 16, "split": [1, 2, 1]}):
        (image, weights), (got,) = run([x, w], [out], config)
        padded = np.pad(image.astype("int64"), ((0, 0), (0, 0), (1, 1), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
        np.testing.assert_array_equal(got, np.einsum("nchwij,ocij->nohw", windows, weights.astype("int64")))
