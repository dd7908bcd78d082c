"""The elementwise template against NumPy: shapes with tails, broadcasting, movement, types, several outputs."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.schedules.kernels import TARGET, Kernel, normal, tensor
from tilegrad._base.tvm import te, tirx, topi
from tilegrad.schedules.elementwise import TEMPLATE

f32 = lambda v: tirx.const(v, "float32")  # noqa: E731


@pytest.mark.parametrize("shape", [(37, 101), (4097, 10), (256, 256), (1, 5), (64, 1)])
def test_bias_and_relu(shape: tuple[int, int]) -> None:
    x, b = tensor(*shape), tensor(shape[1], name="b")
    kernel = Kernel([x, b], topi.nn.relu(topi.add(x, b)))
    assert kernel.template.name == "elementwise/1"
    a, c = normal(*shape), normal(shape[1], seed=1)
    np.testing.assert_array_equal(kernel(a, c), np.maximum(a + c, 0))


MOVES = {
    "transpose": ((70, 129), lambda x: topi.transpose(x), lambda a: a.T),
    "transpose large": ((600, 300), lambda x: topi.transpose(x), lambda a: a.T),
    "permute": ((5, 7, 9, 33), lambda x: topi.transpose(x, (0, 3, 1, 2)), lambda a: a.transpose(0, 3, 1, 2)),
    "reverse": ((5, 7, 9, 3), lambda x: topi.transpose(x, (3, 2, 1, 0)), lambda a: a.transpose(3, 2, 1, 0)),
    "pad": ((3, 4, 28, 27), lambda x: topi.nn.pad(x, [0, 0, 1, 2], [0, 1, 2, 1], 1.5), None),
    "slice": ((4, 8, 28, 28), lambda x: topi.strided_slice(x, [0, 2, 3, 1], [4, 7, 20, 27], [1, 2, 1, 2]), None),
    "reshape": ((4, 8, 14, 14), lambda x: topi.reshape(topi.transpose(x, (0, 2, 1, 3)), (56, 112)), None),
    "flip": ((9, 50), lambda x: topi.flip(x, 1), lambda a: a[:, ::-1]),
}
REFERENCES = {
    "pad": lambda a: np.pad(a, ((0, 0), (0, 1), (1, 2), (2, 1)), constant_values=1.5),
    "slice": lambda a: a[0:4, 2:7:2, 3:20, 1:27:2],
    "reshape": lambda a: a.transpose(0, 2, 1, 3).reshape(56, 112),
}


@pytest.mark.parametrize("name", MOVES)
def test_movement(name: str) -> None:
    shape, move, reference = MOVES[name]
    x = tensor(*shape)
    a = normal(*shape)
    np.testing.assert_array_equal(Kernel([x], move(x))(a), (reference or REFERENCES[name])(a))


@pytest.mark.parametrize("axis", [0, 1])
def test_concatenation(axis: int) -> None:
    shapes = [(20, 33), (20, 33), (20, 33)]
    shapes[1] = (7, 33) if axis == 0 else (20, 5)
    xs = [tensor(*s, name=f"x{k}") for k, s in enumerate(shapes)]
    arrays = [normal(*s, seed=k) for k, s in enumerate(shapes)]
    np.testing.assert_array_equal(Kernel(xs, topi.concatenate(xs, axis))(*arrays), np.concatenate(arrays, axis))


@pytest.mark.parametrize("axis", [0, 1])
def test_gather(axis: int) -> None:
    x, i = tensor(50, 70), tensor(13, dtype="int64", name="i")
    kernel = Kernel([x, i], topi.take(x, i, axis=axis, mode="clip"))
    a, at = normal(50, 70), np.arange(13) * 3
    np.testing.assert_array_equal(kernel(a, at), np.take(a, at, axis))


def test_scalars() -> None:
    s, x = tensor(name="s"), tensor(300)
    np.testing.assert_allclose(Kernel([s], topi.exp(s))(np.float32(1.5)), np.exp(1.5), rtol=1e-6)
    np.testing.assert_array_equal(Kernel([x, s], topi.multiply(x, s))(normal(300), np.float32(2)), normal(300) * 2)


def test_types() -> None:
    x, n = tensor(9, 31), tensor(9, 31, dtype="int64", name="n")
    a, k = normal(9, 31), np.random.default_rng(0).integers(-9, 9, (9, 31))
    got = Kernel([x, n], topi.greater(x, f32(0.5)), topi.cast(topi.multiply(x, f32(10)), "int32"), topi.add(n, n))(a, k)
    np.testing.assert_array_equal(got[0], a > 0.5)
    np.testing.assert_array_equal(got[1], (a * np.float32(10)).astype("int32"))
    np.testing.assert_array_equal(got[2], k + k)


def test_several_outputs_share_their_parts() -> None:
    x = tensor(65, 33)
    y = topi.tanh(x)
    kernel = Kernel([x], y, topi.multiply(y, y), topi.transpose(y))
    a = normal(65, 33)
    want = np.tanh(a.astype("float64"))
    for got, ref in zip(kernel(a), (want, want**2, want.T), strict=True):
        np.testing.assert_allclose(got, ref, rtol=1e-6)


def test_a_long_chain_that_uses_everything_twice_stays_small() -> None:
    x = tensor(128)
    y = x
    for _ in range(40):
        y = topi.multiply(y, topi.add(y, f32(-0.5)))
    a = want = np.random.default_rng(0).uniform(-0.6, 1.4, 128).astype(np.float32)
    for _ in range(40):
        want = want * (want - np.float32(0.5))
    np.testing.assert_allclose(Kernel([x], y)(a), want, rtol=1e-5, atol=1e-30)


def test_a_state_may_be_updated_in_place() -> None:
    """Two outputs where two inputs lie: every value is computed before any is stored."""
    from tilegrad._base.tvm import tvm

    p, m = tensor(101, name="p"), tensor(101, name="m")
    m_new = topi.add(topi.multiply(m, f32(0.5)), p)
    kernel = Kernel([p, m], topi.subtract(p, m_new), m_new)
    a, b = normal(101), normal(101, seed=1)
    left, right = tvm.runtime.tensor(a), tvm.runtime.tensor(b)
    kernel._run(left, right, left, right)
    np.testing.assert_allclose(right.numpy(), b * 0.5 + a, rtol=1e-6)
    np.testing.assert_allclose(left.numpy(), a - (b * 0.5 + a), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("stride", [2, 3, 4, 5])
@pytest.mark.parametrize("length", [3, 17, 40, 333])
def test_strided_reads(length: int, stride: int) -> None:
    """By whole loads that end at the last element needed: nothing behind the array is read."""
    x = tensor(7, (length - 1) * stride + 1)
    a = normal(7, (length - 1) * stride + 1)
    y = topi.add(topi.strided_slice(x, [0, 0], list(a.shape), [1, stride]), f32(1.0))
    kernel = Kernel([x], y)
    assert ("strip" in str(kernel.done.func)) == (stride <= 4)
    np.testing.assert_array_equal(kernel(a), a[:, ::stride] + 1)


def test_a_read_at_a_place_that_the_kernel_computes_is_no_strided_one() -> None:
    """x[i, place[i]] moves by four with i, from a place that is known a lane at a time."""
    x, k = tensor(37, 4), te.placeholder((37,), "int32", name="k")
    place = te.compute((37,), lambda i: k[i] % 4, name="place")
    picked = te.compute((37,), lambda i: x[i, place[i]], name="picked")
    a, b = normal(37, 4), np.arange(37, dtype="int32") * 7
    np.testing.assert_array_equal(Kernel([x, k], place, picked)(a, b)[1], a[np.arange(37), b % 4])


@pytest.mark.parametrize("features", [None, ("avx2", "fma", "avx"), ()])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "uint8"])
def test_transposed_and_straight_reads_together(dtype: str, features: tuple[str, ...] | None) -> None:
    """Squares turned in registers of every width, with what is left over at both edges."""
    target = TARGET if features is None else dataclasses.replace(TARGET, features=features)
    x, y = tensor(3, 53, 150, dtype=dtype), tensor(3, 150, 53, dtype=dtype, name="y")
    a, b = ((normal(*s, seed=k) * 20 + 100).astype(dtype) for k, s in enumerate([(3, 53, 150), (3, 150, 53)]))
    got = Kernel([x, y], topi.add(topi.transpose(x, (0, 2, 1)), y), target=target)(a, b)
    np.testing.assert_array_equal(got, a.transpose(0, 2, 1) + b)


def test_every_config_of_the_space_is_right() -> None:
    x = tensor(45, 77)
    kernel = Kernel([x], topi.transpose(topi.exp(x)))
    assert kernel.template.default(kernel.workload, TARGET) in TEMPLATE.space(kernel.workload, TARGET)
    a = normal(45, 77)
    for config in TEMPLATE.space(kernel.workload, TARGET)[::4]:
        np.testing.assert_allclose(Kernel([x], topi.transpose(topi.exp(x)), config=config)(a), np.exp(a).T, rtol=1e-6)


def test_the_same_workload_can_be_defined_again() -> None:
    x, b = tensor(12, 20), tensor(20, name="b")
    kernel = Kernel([x, b], topi.add(x, b))
    _, again = TEMPLATE, TEMPLATE.match(TEMPLATE.define(kernel.workload))
    assert again.fields["shapes"] == kernel.workload.fields["shapes"]
    width = len(TEMPLATE.features(kernel.workload, {"vector": 1, "tile": 16, "parallel": 1}, TARGET))
    assert width == len(TEMPLATE.features(again, {"vector": 4, "tile": 8, "parallel": 0}, TARGET))
