"""Attention kernels, forward and backward, against NumPy in float64: diagonals, biases, widths, blocks, threads, layouts."""

from __future__ import annotations

import numpy as np
import pytest

from tests.schedules.kernels import Kernel, normal, tensor
from tilegrad._base.target import Target
from tilegrad._base.tvm import te
from tilegrad.schedules.te.attention import attention, attention_backward

SCALE = 0.35


def weights(q, k, bias, diagonal):
    """(softmax, log sum of exponentials) in float64."""
    s = q @ k.swapaxes(-1, -2) * SCALE + (0 if bias is None else bias)
    if diagonal is not None:
        s = np.where(np.arange(k.shape[-2]) <= np.arange(q.shape[-2])[:, None] + diagonal, s, -np.inf)
    high = np.maximum(s.max(-1, keepdims=True), -1e300)
    e = np.exp(s - high)
    total = e.sum(-1, keepdims=True)
    lse = np.where(total == 0, np.inf, high + np.log(np.where(total == 0, 1, total)))
    return e / np.where(total == 0, 1, total), lse[..., 0]


def forward(q, k, v, bias=None, diagonal=None):
    p, lse = weights(q, k, bias, diagonal)
    return p @ v, lse


def backward(q, k, v, g, bias=None, diagonal=None):
    p, _ = weights(q, k, bias, diagonal)
    dw = g @ v.swapaxes(-1, -2)
    ds = p * (dw - (dw * p).sum(-1, keepdims=True)) * SCALE
    return ds @ k, ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ g


def case(lead, m, n, d, e, bias=None, diagonal=None, dtype="float32", config=None, threads=2, target=None):
    """Run both directions and compare."""
    target = target or Target.native(threads)
    q, k, v, g = (normal(*lead, *s, seed=i, dtype=dtype) for i, s in enumerate(((m, d), (n, d), (n, e), (m, e))))
    more = [] if bias is None else [np.asarray(bias, dtype)]
    t = [tensor(*x.shape, dtype=dtype, name=f"x{i}") for i, x in enumerate((q, k, v, *more))]
    run = Kernel(t, *attention(*t, scale=SCALE, diagonal=diagonal), config=config, target=target)
    assert run.template.name == "attention/1"
    out, lse = run(q, k, v, *more)
    wide = [x.astype("float64") for x in (q, k, v, g, *more)]
    expected, expected_lse = forward(*wide[:3], *wide[4:], diagonal=diagonal)
    tol = {"rtol": 1e-10, "atol": 1e-10} if dtype == "float64" else {"rtol": 2e-4, "atol": 2e-5}
    np.testing.assert_allclose(out, expected, **tol)
    np.testing.assert_allclose(lse, expected_lse, **tol)
    arrays = [q, k, v, g, expected_lse.astype(dtype), (expected * wide[3]).sum(-1).astype(dtype), *more]
    t = [tensor(*x.shape, dtype=dtype, name=f"x{i}") for i, x in enumerate(arrays)]
    run = Kernel(t, *attention_backward(*t, scale=SCALE, diagonal=diagonal), config=config, target=target)
    for got, want in zip(run(*arrays), backward(*wide[:4], *wide[4:], diagonal=diagonal), strict=True):
        np.testing.assert_allclose(got, want, **tol)


@pytest.mark.parametrize(
    "m, n, d, e", [(1, 1, 1, 1), (7, 17, 7, 5), (17, 7, 17, 16), (127, 127, 32, 32), (64, 40, 16, 33), (1, 127, 64, 1)]
)
def test_awkward_shapes(m, n, d, e):
    case((2,), m, n, d, e)


@pytest.mark.parametrize("diagonal", [0, 3, -4])
@pytest.mark.parametrize("kc", [8, 128])
def test_the_diagonal_hides_keys_and_skips_blocks(diagonal, kc):
    lanes = Target.native(1).vector_bytes // 4
    case((3,), 45, 50, 9, 10, diagonal=diagonal, config={"mr": 4, "nr": 2 * lanes, "kc": kc})


@pytest.mark.parametrize("shape", [(1, 1, 9), (2, 21, 1), (2, 21, 9)])
def test_bias_is_broadcast(shape):
    bias = normal(*shape, seed=9)
    bias[..., :2] = -np.inf if shape[-1] > 2 else 0
    case((2,), 21, 9, 5, 6, bias=bias, diagonal=1)


def test_a_row_that_sees_nothing_is_zero():
    bias = np.zeros((1, 5, 8))
    bias[0, 2] = -np.inf
    case((2,), 5, 8, 4, 4, bias=bias)


def test_a_row_of_the_least_floats_is_uniform():
    q, k, v = (normal(1, n, 4, seed=n) for n in (5, 8, 8))
    bias = np.full((1, 5, 8), np.finfo("float32").min)
    bias[0, :3, :4] = 0
    t = [tensor(*x.shape, name=f"x{i}") for i, x in enumerate((q, k, v, bias))]
    out, _ = Kernel(t, *attention(*t, scale=SCALE))(q, k, v, bias.astype("float32"))
    np.testing.assert_allclose(out[0, 3:], np.broadcast_to(v.mean(1), (2, 4)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("kc", [16, 64])
def test_panels_of_one_head_are_divided_and_their_sums_added_in_order(threads, kc):
    lanes = Target.native(1).vector_bytes // 4
    case((1,), 100, 70, 8, 24, diagonal=0, config={"mr": 6, "nr": lanes, "kc": kc}, threads=threads)


def test_float64():
    case((2,), 19, 23, 6, 7, dtype="float64", diagonal=2)


def test_narrow_registers():
    case((2,), 37, 29, 11, 12, diagonal=0, target=Target.parse("x86-64-v3", 2))


def test_layouts_come_in_through_the_index_expressions():
    """Heads within the rows of one projection: [batch, length, 3, heads, width]."""
    x = tensor(2, 21, 3, 4, 8)

    def part(p):
        return te.compute((2, 4, 21, 8), lambda b, h, i, d: x(b, i, p, h, d), name=f"part{p}")

    q, k, v = map(part, range(3))
    run = Kernel([x], *attention(q, k, v, scale=SCALE))
    assert run.template.name == "attention/1"
    array = normal(2, 21, 3, 4, 8)
    parts = array.astype("float64").transpose(2, 0, 3, 1, 4)
    out, _ = run(array)
    np.testing.assert_allclose(out, forward(*parts)[0], rtol=2e-4, atol=2e-5)
    assert run.done.scratch_bytes < 2 * 64 * 1024


@pytest.mark.long
def test_every_config_of_the_space_is_right():
    t = [tensor(2, 33, 20, name=f"x{i}") for i in range(3)]
    run = Kernel(t, *attention(*t, scale=SCALE))
    for config in run.template.space(run.workload, Target.native(2))[::7]:
        case((2,), 33, 33, 20, 20, config=config)
