"""Gradients at kinks, ties, poles, NaN and infinities, against PyTorch's; and forward values of what we lower ourselves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest

from tests.gradients.checker import run_library
from tilegrad._base.tvm import relax, tirx
from tilegrad.relax_ext import ops
from tilegrad.relax_ext.gradient import vjp
from tilegrad.relax_ext.graph import GraphBuilder

torch = pytest.importorskip("torch")
R, NN = relax.op, relax.op.nn
TF = torch.nn.functional
INF, NAN = np.inf, np.nan


@dataclass(frozen=True)
class Special:
    """Inputs at which ``ours`` and ``theirs`` must have equal gradients (of the sum of the results)."""

    name: str
    ours: Any
    theirs: Any
    inputs: tuple[Any, ...]
    dtype: str = "float64"


def clip(low: float, high: float):
    """Relax's clip with float64 bounds."""
    return lambda x: R.clip(x, tirx.FloatImm("float64", low), tirx.FloatImm("float64", high))


LINE = [-INF, -1e4, -30.0, -1.0, -1e-300, 0.0, 1e-300, 1.0, 30.0, 1e4, INF, NAN]
HUGE = [3e38, -3e38, 3.4e38, -3.4e38, 1e20, -1e20, 1e19, -1e19, 1e13, -1e13, 100.0, -100.0, INF, -INF, NAN]
FINITE = [-1e4, -30.0, -1.0, 0.0, 1.0, 30.0, 1e4]
PAIRS = ([0.0, 1.0, 2.0, -INF, INF, 3.0, 0.0, NAN, 1.0, NAN], [0.0, 1.0, -2.0, 1.0, INF, 3.0, -0.0, 1.0, NAN, NAN])
TIES = [[1.0, 3.0, 3.0, 2.0], [5.0, 5.0, 5.0, 5.0], [-INF, 0.0, 0.0, -1.0], [NAN, 1.0, 2.0, 3.0]]
CONST = relax.const
IMAGE = np.array([[1.0, 1.0, 0.0, 2.0], [1.0, 1.0, 2.0, 2.0], [0.0, 0.0, -1.0, -1.0], [0.0, 0.0, -1.0, -2.0]])[None, None]

CASES = [
    Special("relu", NN.relu, torch.relu, (LINE,)),
    Special("abs", R.abs, torch.abs, (LINE,)),
    Special("leaky relu", lambda x: NN.leakyrelu(x, 0.1), lambda x: TF.leaky_relu(x, 0.1), (FINITE,)),
    Special("selu", NN.selu, torch.selu, (FINITE,)),
    Special("clip", clip(-1.0, 1.0), lambda x: x.clamp(-1.0, 1.0), ([-INF, -2.0, -1.0, 0.0, 1.0, 2.0, INF, NAN],)),
    Special("maximum", R.maximum, torch.maximum, PAIRS),
    Special("minimum", R.minimum, torch.minimum, PAIRS),
    Special("max", lambda x: R.max(x, 1), lambda x: x.amax(1), (TIES,)),
    Special("min", lambda x: R.min(x, 1), lambda x: x.amin(1), (TIES,)),
    Special("max of all", lambda x: R.max(x), lambda x: x.amax(), (TIES[:3],)),
    Special("max of all, NaNs", lambda x: R.max(x), lambda x: x.max(), (TIES,)),
    Special("max of all, several NaNs", lambda x: R.max(x), lambda x: x.max(), ([NAN, 1.0, NAN, INF],)),
    Special("min of all, several NaNs", lambda x: R.min(x), lambda x: x.min(), ([NAN, 1.0, NAN, -INF],)),
    Special("max along an axis, several NaNs", lambda x: R.max(x, 1), lambda x: x.amax(1), ([[NAN, 1.0, NAN], [2.0, 2.0, 1.0]],)),
    Special("gelu", NN.gelu, TF.gelu, (HUGE,), dtype="float32"),
    Special("gelu by tanh", NN.gelu_tanh, lambda x: TF.gelu(x, approximate="tanh"), (HUGE,), dtype="float32"),
    Special("leaky relu of NaN", lambda x: NN.leakyrelu(x, 0.1), lambda x: TF.leaky_relu(x, 0.1), ([NAN, -INF, INF],)),
    Special("sign", R.sign, torch.sign, (LINE,)),
    Special("times zero", lambda x: R.multiply(x, CONST(0.0, "float64")), lambda x: x * 0.0, (LINE,)),
    Special("minus itself", lambda x: R.subtract(x, x), lambda x: x - x, (LINE,)),
    Special(
        "where it is no number",
        lambda x: R.where(R.not_equal(x, x), CONST(0.0, "float64"), R.multiply(x, x)),
        lambda x: torch.where(x != x, 0.0, x * x),
        ([NAN, 1.0, -2.0],),
    ),
    Special(
        "max pool of NaN", lambda x: NN.max_pool1d(x, 2, 2), lambda x: TF.max_pool1d(x, 2), ([[[NAN, 1.0, 2.0, NAN, 3.0, 3.0]]],)
    ),
    Special("sqrt", R.sqrt, torch.sqrt, ([0.0, 1e-300, 1.0, INF, -1.0, NAN],)),
    Special("rsqrt", R.rsqrt, torch.rsqrt, ([0.0, 1.0, INF, -1.0],)),
    Special("log", R.log, torch.log, ([0.0, 1e-300, 1.0, INF, -1.0],)),
    Special("exp", R.exp, torch.exp, ([-INF, -800.0, 0.0, 700.0, 800.0, INF, NAN],)),
    Special("divide", R.divide, torch.div, ([0.0, 1.0, INF, 1.0], [1.0, 0.0, 1.0, INF])),
    Special("power", R.power, torch.pow, ([0.0, 0.0, 0.0, 0.0, 2.0, 2.0, -2.0, 1.0], [0.0, 0.5, 1.0, 2.0, 0.0, 3.0, 2.0, 0.0])),
    Special("square by power", lambda x: R.power(x, CONST(2.0, "float64")), lambda x: x**2, (FINITE,)),
    Special("power of constant 0", lambda x: R.power(x, CONST(0.0, "float64")), lambda x: x**0.0, ([0.0, 1.0, -1.0],)),
    Special("prod with one zero", lambda x: R.prod(x, 0), lambda x: x.prod(0), ([0.0, 2.0, 3.0],)),
    Special("prod with two zeros", lambda x: R.prod(x, 0), lambda x: x.prod(0), ([0.0, 2.0, 0.0],)),
    Special("cumprod with zeros", lambda x: R.cumprod(x, 0), lambda x: x.cumprod(0), ([2.0, 0.0, 3.0, 0.0, 4.0],)),
    Special("std of equal numbers", lambda x: R.std(x, 1), lambda x: x.std(1, correction=0), ([[1.0, 1.0], [1.0, 2.0]],)),
    Special("sigmoid", R.sigmoid, torch.sigmoid, (LINE,)),
    Special("tanh", R.tanh, torch.tanh, (LINE,)),
    Special("softplus", NN.softplus, TF.softplus, (FINITE + [19.9999, 20.0001],)),
    Special("gelu", NN.gelu, TF.gelu, (FINITE,)),
    Special("gelu tanh", NN.gelu_tanh, lambda x: TF.gelu(x, approximate="tanh"), (FINITE,)),
    Special("silu", NN.silu, TF.silu, (FINITE,)),
    Special(
        "softmax", lambda x: R.multiply(NN.softmax(x), x), lambda x: x.softmax(-1) * x, ([[1e4, 0.0, -1e4], [30.0, 30.0, 30.0]],)
    ),
    Special(
        "log softmax",
        lambda x: R.multiply(NN.log_softmax(x), x),
        lambda x: x.log_softmax(-1) * x,
        ([[1e4, 0.0, -1e4], [3.0, 3.0, 3.0]],),
    ),
    Special(
        "where hides NaN",
        lambda x: R.where(R.greater(x, CONST(0.0, "float64")), R.log(x), CONST(0.0, "float64")),
        lambda x: torch.where(x > 0, torch.log(x), torch.zeros(())),
        ([0.5, 1.0, 2.0],),
    ),
    Special("atan2", R.atan2, torch.atan2, ([1.0, 0.0, -1.0, 1.0], [0.0, 1.0, 0.0, -1.0])),
    Special("asin", R.asin, torch.asin, ([-1.0, 0.0, 1.0],)),
    Special("atanh", R.atanh, torch.atanh, ([-1.0, 0.0, 1.0],)),
    Special("max pool, ties", lambda x: NN.max_pool2d(x, (2, 2), (2, 2)), lambda x: TF.max_pool2d(x, 2, 2), (IMAGE,)),
    Special(
        "max pool, overlapping ties, padding",
        lambda x: NN.max_pool2d(x, (3, 3), (1, 1), (1, 1)),
        lambda x: TF.max_pool2d(x, 3, 1, 1),
        (IMAGE,),
    ),
    Special(
        "avg pool, padding counted",
        lambda x: NN.avg_pool2d(x, (3, 3), (2, 2), (1, 1), count_include_pad=True),
        lambda x: TF.avg_pool2d(x, 3, 2, 1, count_include_pad=True),
        (IMAGE,),
    ),
    Special(
        "sort, ties",
        lambda x: R.multiply(R.sort(x, 1), CONST(np.arange(4.0), "float64")),
        lambda x: x.sort(dim=1, stable=True)[0] * torch.arange(4.0),
        (TIES[:2],),
    ),
    Special("mod", R.floor_mod, torch.remainder, ([5.5, -5.5, 5.5, -5.5], [2.0, 2.0, -2.0, -2.0])),
    Special("trunc mod", R.mod, torch.fmod, ([5.5, -5.5, 5.5, -5.5], [2.0, 2.0, -2.0, -2.0])),
    Special("erf", R.erf, torch.erf, (FINITE,), dtype="float32"),
    Special(
        "resize bilinear",
        lambda x: relax.op.image.resize2d(x, (7, 3)),
        lambda x: TF.interpolate(x, (7, 3), mode="bilinear"),
        (IMAGE,),
    ),
    Special(
        "resize bilinear, corners",
        lambda x: relax.op.image.resize2d(x, (7, 3), coordinate_transformation_mode="align_corners"),
        lambda x: TF.interpolate(x, (7, 3), mode="bilinear", align_corners=True),
        (IMAGE,),
    ),
    Special(
        "resize nearest",
        lambda x: relax.op.image.resize2d(
            x, (6, 3), method="nearest_neighbor", coordinate_transformation_mode="asymmetric", rounding_method="floor"
        ),
        lambda x: TF.interpolate(x, (6, 3), mode="nearest"),
        (IMAGE,),
    ),
    Special(
        "resize bicubic",
        lambda x: relax.op.image.resize2d(x, (7, 5), method="cubic"),
        lambda x: TF.interpolate(x, (7, 5), mode="bicubic"),
        (IMAGE,),
    ),
    Special("stop gradient", lambda x: R.multiply(x, ops.stop_gradient(x)), lambda x: x * x.detach(), (FINITE,)),
]


@cache
def ours() -> dict[str, np.ndarray]:
    """Results and gradients of every case, from one module."""
    b, feeds = GraphBuilder(), {}
    for k, case in enumerate(CASES):
        args = []
        for j, value in enumerate(case.inputs):
            feeds[f"{k}_{j}"] = np.asarray(value, case.dtype)
            args.append(b.input(f"{k}_{j}", feeds[f"{k}_{j}"].shape, case.dtype))
        y = b.emit(case.ours(*args))
        b.output(f"{k}_y", y)
        one = CONST(np.ones([int(d) for d in y.ty.shape]), case.dtype)
        for j, g in enumerate(vjp(b, [y], [one], args)):
            b.output(f"{k}_g{j}", g if g is not None else b.emit(R.zeros_like(args[j])))
    return run_library(b.finish(), feeds)


@pytest.fixture
def without_onednn() -> Iterator[None]:
    """PyTorch's own kernels, the same on all CPUs: oneDNN's, which some CPUs take, call gelu of 3e38 infinite."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)  # torch.backends.mkldnn.flags warns of settings for GPUs
    yield
    torch._C._set_mkldnn_enabled(before)


@pytest.mark.usefixtures("without_onednn")
@pytest.mark.parametrize("k", range(len(CASES)), ids=[c.name for c in CASES])
def test_equals_pytorch(k: int) -> None:
    case = CASES[k]
    args = [torch.tensor(np.asarray(v, case.dtype), requires_grad=True) for v in case.inputs]
    y = case.theirs(*args)
    y.sum().backward()
    tol = {"rtol": 1e-9, "atol": 1e-12} if case.dtype == "float64" else {"rtol": 1e-5, "atol": 1e-7}
    np.testing.assert_allclose(ours()[f"{k}_y"], y.detach().numpy(), **tol)
    for j, a in enumerate(args):
        np.testing.assert_allclose(ours()[f"{k}_g{j}"], a.grad.numpy(), err_msg=f"gradient by argument {j}", **tol)
