"""float32 mathematics against float64: dense bit patterns, edges; NaN, infinities, signed zeros, denormals."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.schedules.kernels import Kernel, tensor
from tilegrad._base.tvm import te, tirx
from tilegrad.schedules import math as own

EDGES = np.array(
    [0, 1, 2, 0.5, 1e-45, 1e-38, 1.17549435e-38, 3.4e38, np.inf, 88.72283, 88.7229, 87.3, 103.97, 104.1, 127.999, 128, 149, 150]
    + [126, 0.6, 0.9, 4, 5e-8, 0.78539816, 3.1415927, 1e10, 8388608.5, 16777217, 1 / 3, 2.5, 3, 5],
    np.float32,
)
EDGES = np.concatenate([EDGES, -EDGES, np.array([np.nan], np.float32)])
N = 1 << 17


def points() -> np.ndarray:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, N // 2, dtype=np.uint64).astype(np.uint32).view(np.float32)
    bits = bits[~np.isnan(bits)]  # signalling ones make NumPy itself complain
    near = rng.uniform(-10, 10, N // 8), rng.uniform(-1, 1, N // 8), rng.uniform(-105, 90, N - N // 4 - len(EDGES) - len(bits))
    return np.concatenate([EDGES, bits, *near]).astype(np.float32)


def ulps(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Distance in units of the last place of the float32 result; infinite where one is special and the other is not."""
    with np.errstate(all="ignore"):
        rounded = want.astype(np.float32)
    out = np.full(got.shape, np.inf)
    same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    out[same] = 0
    both = np.isfinite(rounded) & np.isfinite(got)
    unit = np.maximum(np.spacing(np.abs(rounded[both])).astype("float64"), 2.0**-149)
    out[both] = np.abs(got[both].astype("float64") - want[both]) / unit
    return out


def unary(function: object) -> Kernel:
    x = tensor(N)
    return Kernel([x], te.compute((N,), lambda i: function(x[i]), name="y"))


def erf(x: np.ndarray) -> np.ndarray:
    return np.vectorize(math.erf)(x)


def sigmoid(x: np.ndarray) -> np.ndarray:
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, 1) / (1 + e)


CASES = {
    "exp": (tirx.exp, np.exp), "exp2": (tirx.exp2, np.exp2), "expm1": (own.expm1, np.expm1), "log": (tirx.log, np.log),
    "log2": (tirx.log2, np.log2), "log10": (tirx.log10, np.log10), "log1p": (tirx.log1p, np.log1p), "tanh": (tirx.tanh, np.tanh),
    "sigmoid": (tirx.sigmoid, sigmoid), "erf": (tirx.erf, erf), "sin": (tirx.sin, np.sin), "cos": (tirx.cos, np.cos),
    "sinh": (tirx.sinh, np.sinh), "cosh": (tirx.cosh, np.cosh), "tan": (tirx.tan, np.tan),
    "asin": (tirx.asin, np.arcsin), "acos": (tirx.acos, np.arccos), "atan": (tirx.atan, np.arctan),
    "asinh": (tirx.asinh, np.arcsinh), "acosh": (tirx.acosh, np.arccosh), "atanh": (tirx.atanh, np.arctanh),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_within_four_ulp_and_as_libm_at_the_edges(name: str) -> None:
    function, reference = CASES[name]
    x, kernel = points(), unary(function)
    with np.errstate(all="ignore"):
        want = reference(x.astype("float64"))
    got = kernel(x)
    far = ulps(got, want)
    worst = int(far.argmax())
    assert far[worst] <= 4, (x[worst], got[worst], want[worst])
    zero = (want == 0) & (got == 0)
    np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(want[zero]))
    assert not libm_calls(kernel)


def test_power() -> None:
    rng = np.random.default_rng(1)
    x, y = (a.ravel() for a in np.meshgrid(EDGES, EDGES))
    m = N - len(x)
    x = np.concatenate([x, np.exp(rng.uniform(-80, 80, m // 2)), rng.uniform(-5, 5, m - m // 2)]).astype(np.float32)
    y = np.concatenate([y, rng.uniform(-3, 3, m // 2), np.round(rng.uniform(-50, 50, m - m // 2))]).astype(np.float32)
    a, b = tensor(N, name="a"), tensor(N, name="b")
    kernel = Kernel([a, b], te.compute((N,), lambda i: tirx.pow(a[i], b[i]), name="y"))
    with np.errstate(all="ignore"):
        want = np.power(x.astype("float64"), y.astype("float64"))
    got = kernel(x, y)
    assert ulps(got, want).max() <= 1
    zero = (want == 0) & (got == 0)
    np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(want[zero]))
    assert not libm_calls(kernel)


def test_angle() -> None:
    rng = np.random.default_rng(2)
    y, x = (a.ravel() for a in np.meshgrid(EDGES, EDGES))
    more = np.exp(rng.uniform(-60, 60, (2, N - len(x)))) * rng.choice([-1, 1], (2, N - len(x)))
    y, x = np.concatenate([y, more[0]]).astype(np.float32), np.concatenate([x, more[1]]).astype(np.float32)
    a, b = tensor(N, name="a"), tensor(N, name="b")
    kernel = Kernel([a, b], te.compute((N,), lambda i: tirx.atan2(a[i], b[i]), name="y"))
    want = np.arctan2(y.astype("float64"), x.astype("float64"))
    got = kernel(y, x)
    assert ulps(got, want).max() <= 4
    np.testing.assert_array_equal(np.signbit(got[want == 0]), np.signbit(want[want == 0]))
    assert not libm_calls(kernel)


@pytest.mark.parametrize("function", [tirx.fmod, tirx.truncmod])
def test_remainder_is_exact(function: Callable[..., Any]) -> None:
    """C's fmod has no rounding: the same bits as NumPy's for any two floats, quotients of 2^276 included."""
    rng = np.random.default_rng(3)
    x, y = (a.ravel() for a in np.meshgrid(EDGES, EDGES))
    m = (N - len(x)) // 2
    bits = rng.integers(0, 2**32, (2, m), dtype=np.uint64).astype(np.uint32).view(np.float32)
    bits[np.isnan(bits)] = 1.0  # signalling ones make NumPy itself complain
    near = rng.uniform(-1000, 1000, N - m - len(x)), np.round(rng.uniform(-40, 40, N - m - len(x))) / 8
    x, y = (np.concatenate([e, b, n]).astype(np.float32) for e, b, n in zip((x, y), bits, near, strict=True))
    a, b = tensor(N, name="a"), tensor(N, name="b")
    kernel = Kernel([a, b], te.compute((N,), lambda i: function(a[i], b[i]), name="y"))
    with np.errstate(all="ignore"):
        want = np.fmod(x, y)
    got = kernel(x, y)
    np.testing.assert_array_equal(got, want)
    assert (np.abs(want) > 0).sum() > N // 4
    number = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got[number]), np.signbit(want[number]))
    assert not libm_calls(kernel)


@pytest.mark.parametrize("function", [tirx.fmod, tirx.truncmod])
def test_remainder_of_doubles_is_the_c_librarys(function: Callable[..., Any]) -> None:
    rng = np.random.default_rng(4)
    x, y = rng.uniform(-1e6, 1e6, N), rng.uniform(-40, 40, N)
    a, b = tensor(N, dtype="float64", name="a"), tensor(N, dtype="float64", name="b")
    kernel = Kernel([a, b], te.compute((N,), lambda i: function(a[i], b[i]), name="y"))
    np.testing.assert_array_equal(kernel(x, y), np.fmod(x, y))


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0, 3.0, 4.0, -0.5, -1.0, -2.0])
def test_constant_powers(power: float) -> None:
    x = tensor(64)
    kernel = Kernel([x], te.compute((64,), lambda i: tirx.pow(x[i], tirx.const(power, "float32")), name="y"))
    values = np.linspace(0.1, 9, 64, dtype=np.float32)
    np.testing.assert_allclose(kernel(values), values.astype("float64") ** power, rtol=3e-7)


def test_sixteen_bits_compute_in_float32() -> None:
    x = tensor(40, dtype="float16")
    values = np.linspace(-4, 4, 40).astype(np.float16)
    got = Kernel([x], te.compute((40,), lambda i: tirx.exp(x[i]), name="y"))(values)
    np.testing.assert_array_equal(got, np.exp(values.astype("float64")).astype(np.float16))


def test_float64_keeps_libm() -> None:
    x = tensor(40, dtype="float64")
    kernel = Kernel([x], te.compute((40,), lambda i: own.expm1(x[i]) + tirx.sigmoid(x[i]), name="y"))
    values = np.concatenate([np.linspace(-3, 3, 37), [1e-12, -745.0, 1e-300]])
    np.testing.assert_allclose(kernel(values), np.expm1(values) + sigmoid(values), rtol=1e-14)


def libm_calls(kernel: Kernel) -> set[str]:
    """Functions of the C library's mathematics that the kernel's code calls."""
    return set(re.findall(r"call\w*\s+(\w+)@PLT", kernel.assembly)) & {
        f"{n}{s}" for n in (*CASES, "pow", "atan2", "fmod") for s in ("", "f")
    }


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8"])
def test_integer_division_by_data_does_not_trap(dtype: str) -> None:
    """0 where the divisor is 0 (as NumPy), wrap-around for the smallest integer by -1."""
    low = np.iinfo(dtype).min
    a = np.array([7, 7, low, low, 5], dtype)
    b = np.array([2, 0, 0, 3, 5], dtype) if dtype == "uint8" else np.array([-2, 0, -1, 3, -1], dtype)
    x, y = tensor(5, dtype=dtype, name="x"), tensor(5, dtype=dtype, name="y")
    quotient = te.compute((5,), lambda i: tirx.floordiv(x[i], y[i]), name="quotient")
    rest = te.compute((5,), lambda i: tirx.floormod(x[i], y[i]), name="rest")
    got = Kernel([x, y], quotient, rest)(a, b)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(got[0], np.floor_divide(a, b))
        np.testing.assert_array_equal(got[1], np.remainder(a, b))
