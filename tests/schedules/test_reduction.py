"""The reduction template against NumPy in float64: axes, tails, fused passes, accuracy, determinism."""

from __future__ import annotations

import numpy as np
import pytest

from tests.schedules.kernels import TARGET, Kernel, normal, tensor
from tilegrad._base.tvm import te, tirx, topi
from tilegrad.schedules.reduction import TEMPLATE

f32 = lambda v: tirx.const(v, "float32")  # noqa: E731


def softmax(a: np.ndarray, axis: int = -1) -> np.ndarray:
    a = a.astype("float64")
    e = np.exp(a - a.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 2), (0, 1, 2)])
@pytest.mark.parametrize("shape", [(5, 33, 17), (40, 41, 64)])
def test_sums_over_any_axes(axes: tuple[int, ...], shape: tuple[int, ...]) -> None:
    x = tensor(*shape)
    a = normal(*shape)
    kernel = Kernel([x], topi.sum(x, axes))
    assert kernel.template.name == "reduction/1"
    np.testing.assert_allclose(kernel(a), a.astype("float64").sum(axes), atol=2e-6 * np.sqrt(a.size))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("kind", ["max", "min", "prod"])
def test_other_reductions(kind: str, axis: int) -> None:
    x = tensor(70, 90)
    a = 1 + normal(70, 90) * np.float32(0.1)
    got = Kernel([x], getattr(topi, kind)(x, axis))(a)
    np.testing.assert_allclose(got, getattr(a.astype("float64"), kind)(axis), rtol=1e-5)


@pytest.mark.parametrize("shape", [(1797, 10), (64, 1000), (2, 100_003), (1, 7)])
@pytest.mark.parametrize("axis", [0, 1])
def test_softmax(shape: tuple[int, int], axis: int) -> None:
    x = tensor(*shape)
    a = normal(*shape) * 5
    np.testing.assert_allclose(Kernel([x], topi.nn.softmax(x, axis))(a), softmax(a, axis), rtol=2e-5, atol=1e-9)


def test_log_softmax_is_stable() -> None:
    x = tensor(40, 100)
    a = normal(40, 100) * 1000
    want = a.astype("float64") - a.max(1, keepdims=True)
    want -= np.log(np.exp(want).sum(1, keepdims=True))
    np.testing.assert_allclose(Kernel([x], topi.nn.log_softmax(x))(a), want, rtol=1e-6, atol=1e-6)


def test_statistics_and_their_use_in_one_kernel() -> None:
    """A batch norm: mean and variance over three axes are outputs, and feed the third."""
    x = tensor(4, 6, 9, 11)
    n = f32(1 / (4 * 9 * 11))
    mean = topi.multiply(topi.sum(x, (0, 2, 3), True), n)
    centred = topi.subtract(x, mean)
    var = topi.multiply(topi.sum(topi.multiply(centred, centred), (0, 2, 3), True), n)
    kernel = Kernel([x], topi.multiply(centred, topi.rsqrt(topi.add(var, f32(1e-5)))), mean, var)
    a = normal(4, 6, 9, 11) + 100
    d = a.astype("float64")
    m, v = d.mean((0, 2, 3), keepdims=True), d.var((0, 2, 3), keepdims=True)
    for got, want in zip(kernel(a), ((d - m) / np.sqrt(v + 1e-5), m, v), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-4)


def test_reductions_in_two_directions() -> None:
    x = tensor(64, 100)
    y = topi.nn.relu(x)
    a = normal(64, 100)
    r = np.maximum(a, 0).astype("float64")
    for got, want in zip(Kernel([x], y, topi.sum(y, 0), topi.sum(y, 1))(a), (r, r.sum(0), r.sum(1)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(300, 33), (8, 500), (70, 1), (5, 13, 40)])
def test_sums_over_the_rows_beside_the_rows(shape: tuple[int, ...]) -> None:
    """What a norm's backward and a loss need: by rows, and over all rows by columns; the same bits on any threads."""
    x, last = tensor(*shape), len(shape) - 1
    over = tuple(range(last))
    d = topi.subtract(x, topi.multiply(topi.sum(x, last, True), f32(1 / shape[-1])))
    square = topi.multiply(d, d)
    outputs = [d, topi.sum(square, over), topi.max(square, over), topi.add(topi.sum(topi.sum(square, last), over), f32(1.0))]
    a = normal(*shape)
    f = a.astype("float64")
    f -= f.mean(-1, keepdims=True)
    got = Kernel([x], *outputs)(a)
    for g, want in zip(got, (f, (f * f).sum(over), (f * f).max(over), (f * f).sum() + 1), strict=True):
        np.testing.assert_allclose(g, want, rtol=1e-5, atol=1e-5)
    for g, other in zip(got, Kernel([x], *outputs, target=TARGET.with_threads(1))(a), strict=True):
        np.testing.assert_array_equal(g, other)


def test_a_square_array_is_not_read_across_its_rows() -> None:
    """Sums in both directions have one shape; the second is a side of the first, without a strided read."""
    x = tensor(64, 64)
    kernel = Kernel([x], topi.sum(x, 1), topi.sum(x, 0))
    assert "parts" in str(kernel.done.func)
    a = normal(64, 64)
    for got, axis in zip(kernel(a), (1, 0), strict=True):
        np.testing.assert_allclose(got, a.astype("float64").sum(axis), rtol=1e-5, atol=1e-5)


def test_long_sums_over_rows_stay_accurate() -> None:
    x = tensor(100_000, 3)
    a = np.full((100_000, 3), 0.1, "float32")
    _, total = Kernel([x], topi.max(x, 1), topi.sum(x, 0))(a)
    np.testing.assert_allclose(total, a.astype("float64").sum(0), rtol=1e-6)


def test_a_reduction_of_a_reduction() -> None:
    """The second sum runs over the first one's rows, so it starts when all of them are known."""
    x = tensor(30, 40)
    square = topi.sum(topi.multiply(x, x), 1)
    total = topi.sqrt(topi.sum(square, 0))
    a = normal(30, 40)
    got = Kernel([x], topi.divide(x, total), total)(a)
    norm = np.linalg.norm(a.astype("float64"))
    np.testing.assert_allclose(got[1], norm, rtol=1e-6)
    np.testing.assert_allclose(got[0], a / norm, rtol=1e-5)


@pytest.mark.parametrize("kind,count", [("max", None), ("avg", True), ("avg", False)])
def test_windows(kind: str, count: bool | None) -> None:
    torch = pytest.importorskip("torch")
    x = tensor(2, 3, 21, 34)
    options = {} if count is None else {"count_include_pad": count}
    kernel = Kernel([x], topi.nn.pool2d(x, [3, 3], [2, 2], [1, 1], [1, 1, 1, 1], kind, **options))
    a = normal(2, 3, 21, 34)
    pool = torch.nn.functional.max_pool2d if kind == "max" else torch.nn.functional.avg_pool2d
    np.testing.assert_allclose(kernel(a), pool(torch.from_numpy(a), 3, 2, 1, **options).numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("axis", [0, 1, (0, 1)])
def test_sums_are_as_accurate_as_pairwise_ones(axis: int | tuple[int, int]) -> None:
    shape = (1, 400_000) if axis == 1 else (400_000, 1) if axis == 0 else (500, 800)
    a = np.random.default_rng(0).uniform(0, 1, shape).astype(np.float32)
    want = a.astype("float64").sum(axis)
    x = tensor(*shape)
    got = Kernel([x], topi.sum(x, axis))(a)
    pairwise = np.abs(a.reshape(-1).sum(dtype=np.float32) - want).max()
    assert np.abs(got - want).max() <= max(4 * pairwise, 4 * np.spacing(np.float32(want.max())))


def test_nan_and_infinity() -> None:
    x = tensor(4, 50)
    a = normal(4, 50)
    a[0, 7], a[1, 49], a[2] = np.nan, np.inf, -np.inf
    high, total = Kernel([x], topi.max(x, 1), topi.sum(x, 1))(a)
    np.testing.assert_array_equal(high[:3], [np.nan, np.inf, -np.inf])
    np.testing.assert_array_equal(total[:3], [np.nan, np.inf, -np.inf])


def test_integers_booleans_and_doubles() -> None:
    x, b, d = tensor(9, 300, dtype="int64"), tensor(9, 300, dtype="bool", name="b"), tensor(9, 300, dtype="float64", name="d")
    rng = np.random.default_rng(0)
    a, c, e = rng.integers(-9, 9, (9, 300)), rng.random((9, 300)) < 0.003, rng.standard_normal((9, 300))
    np.testing.assert_array_equal(Kernel([x], topi.sum(x, 1))(a), a.sum(1))
    np.testing.assert_array_equal(Kernel([b], topi.any(b, 1))(c), c.any(1))
    np.testing.assert_allclose(Kernel([d], topi.sum(topi.exp(d), 0))(e), np.exp(e).sum(0), rtol=1e-14)


def test_a_reduction_that_is_no_plain_one() -> None:
    """A linear recurrence: y = y / 2 + x[k], in the order of k."""
    x = tensor(20, 13)
    step = te.comm_reducer(lambda y, v: y * f32(0.5) + v, lambda t: tirx.const(0, t), name="decay")
    k = te.reduce_axis((0, 13), "k")
    a = normal(20, 13)
    want = np.zeros(20)
    for j in range(13):
        want = want / 2 + a[:, j]
    np.testing.assert_allclose(Kernel([x], te.compute((20,), lambda i: step(x[i, k], axis=k), name="y"))(a), want, rtol=1e-5)


def test_the_same_bits_every_time() -> None:
    x = tensor(3, 50_000)
    kernel = Kernel([x], topi.sum(topi.exp(x), 1))
    a = normal(3, 50_000)
    first = kernel(a)
    for _ in range(5):
        np.testing.assert_array_equal(kernel(a), first)


def test_every_config_of_the_space_is_right() -> None:
    x = tensor(300, 130)
    kernel = Kernel([x], topi.nn.softmax(x))
    assert kernel.template.default(kernel.workload, TARGET) in TEMPLATE.space(kernel.workload, TARGET)
    a = normal(300, 130)
    for config in TEMPLATE.space(kernel.workload, TARGET):
        np.testing.assert_allclose(Kernel([x], topi.nn.softmax(x), config=config)(a), softmax(a), rtol=1e-5)


def test_no_memory_is_allocated_in_the_kernel() -> None:
    x = tensor(64, 3000)
    kernel = Kernel([x], topi.nn.softmax(x))
    assert kernel.done.scratch_bytes >= 3000 * 4
    assert "AllocWorkspace" not in kernel.assembly


def test_a_sum_that_reads_another_pass_comes_after_it() -> None:
    """Sums over rows of a and of a (b - mean b): the second must not join the first, which runs before the means."""
    a, b = tensor(64, 48, name="a"), tensor(64, 48, name="b")
    k, r, q = (te.reduce_axis((0, n), name) for n, name in ((48, "k"), (64, "r"), (64, "q")))
    first = te.compute((48,), lambda c: te.sum(a[r, c], axis=r), name="first")
    mean = te.compute((64,), lambda i: te.sum(b[i, k], axis=k), name="mean")
    second = te.compute((48,), lambda c: te.sum(a[q, c] * (b[q, c] - mean[q] / 48), axis=q), name="second")
    x, y = normal(64, 48), normal(64, 48, seed=1)
    got = Kernel([a, b], first, second)(x, y)
    np.testing.assert_allclose(got[0], x.sum(0), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(got[1], (x * (y - y.mean(1, keepdims=True))).sum(0), rtol=1e-5, atol=1e-5)


def test_a_guarded_read_at_a_place_that_a_sum_gives() -> None:
    """more[place] is computed where it is read, and its index has its value by then."""
    x, y = tensor(6), tensor(9, name="y")
    k = te.reduce_axis((0, 6), "k")
    total = te.compute((1,), lambda i: te.sum(x[k], axis=k), name="total")
    place = te.compute((1,), lambda i: tirx.Cast("int32", total[i]), name="place")
    more = te.compute((9,), lambda j: y[j] + f32(1.0), name="more")
    z = te.compute((1,), lambda i: tirx.if_then_else(total[i] > f32(2.0), more[place[i]], f32(0.0)), name="z")
    b = normal(9)
    np.testing.assert_array_equal(Kernel([x, y], place, z)(np.full(6, 0.5, "float32"), b)[1], b[3:4] + 1)
