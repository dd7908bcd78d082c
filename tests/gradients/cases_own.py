"""Table rows: operators that tilegrad adds to Relax, upstream's gradient operators, and identities."""

from __future__ import annotations

import numpy as np

from tests.gradients.checker import Arg, Case
from tilegrad._base.tvm import relax
from tilegrad.relax_ext import ops
from tilegrad.relax_ext.ops.interpolation import resize_taps

R = relax.op
WINDOW = {"strides": (2, 1), "padding": (1, 0, 1, 1), "dilation": (1, 2), "groups": 2}
POOL = {"pool": (2, 3), "strides": (2, 1), "padding": (0, 1, 0, 1), "dilation": (1, 1)}


def ints(values, dtype: str = "int64") -> Arg:
    """An index tensor."""
    return Arg((), values=np.asarray(values, dtype))


def linear(name: str, shape, build, *more: Arg) -> Case:
    """An operator of our own that is linear in its first argument."""
    return Case(f"tilegrad.{name}", build, (Arg(shape), *more))


PLACES = ints(np.random.default_rng(0).integers(0, 6, (1, 2, 2, 4)), "int32")


def dequantized(q, s):
    """Relax dequantises to float32 at most."""
    return R.astype(R.dequantize(q, R.astype(s, "float32"), relax.const(1, "int8"), 1, "float32"), "float64")


CASES = [
    Case(
        "tilegrad.conv_by_data",
        lambda y, w: ops.conv_by_data(y, w, x_shape=(1, 4, 6, 7), **WINDOW),
        (Arg((1, 4, 3, 4)), Arg((4, 2, 3, 3))),
    ),
    Case(
        "tilegrad.conv_by_weight",
        lambda y, x: ops.conv_by_weight(y, x, w_shape=(4, 2, 3, 3), **WINDOW),
        (Arg((1, 4, 3, 4)), Arg((1, 4, 6, 7))),
    ),
    linear("window_scatter", (1, 2, 2, 4), lambda y, i: ops.window_scatter(y, i, x_shape=(1, 2, 4, 4), **POOL), PLACES),
    linear("window_gather", (1, 2, 4, 4), lambda x, i: ops.window_gather(x, i, **POOL), PLACES),
    linear("avg_pool", (1, 2, 4, 4), lambda x: ops.avg_pool(x, y_shape=(1, 2, 2, 4), count_include_pad=False, **POOL)),
    linear(
        "avg_pool_backward",
        (1, 2, 2, 4),
        lambda y: ops.avg_pool_backward(y, x_shape=(1, 2, 4, 4), count_include_pad=True, **POOL),
    ),
    linear("adaptive_avg_pool_backward", (1, 2, 3, 2), lambda y: ops.adaptive_avg_pool_backward(y, x_shape=(1, 2, 7, 5))),
    linear(
        "take_backward",
        (2, 4, 3),
        lambda g, i: ops.take_backward(g, i, x_shape=(2, 5, 3), axis=1, mode="fast"),
        ints([0, 4, -1, 0]),
    ),
    linear(
        "gather_elements_backward",
        (2, 3),
        lambda g, i: ops.gather_elements_backward(g, i, x_shape=(3, 3), axis=0),
        ints([[0, 2, 0], [1, 2, 0]]),
    ),
    linear(
        "gather_nd_backward",
        (3, 2),
        lambda g, i: ops.gather_nd_backward(g, i, x_shape=(3, 2, 2), batch_dims=0),
        ints([[0, 1], [2, 0], [0, 1]]),
    ),
    linear("interpolate", (2, 4, 3), lambda x: resize_taps(4, 7, "linear", "half_pixel", "", 0.0, False).call(x, 1)),
    linear("dropout", (4, 5), lambda x, k: ops.dropout(x, k, rate=0.4), ints([12345, 678])),
    *[
        Case(
            "tilegrad.attention",
            lambda *a, diagonal=diagonal: ops.attention(*a, scale=0.7, diagonal=diagonal),
            (Arg((2, 3, 4)), Arg((2, 5, 4)), Arg((2, 5, 2)), *more),
            note=note,
        )
        for note, diagonal, more in (("", None, ()), ("bias", None, (Arg((1, 3, 5)),)), ("causal", 1, ()))
    ],
    Case(
        "tilegrad.attention_backward",
        lambda *a: ops.attention_backward(*a, scale=0.7, diagonal=None),
        (Arg((2, 3, 4)), Arg((2, 5, 4)), Arg((2, 5, 2)), Arg((2, 3, 2)), Arg((2, 3), "positive"), Arg((2, 3))),
    ),
    Case("tilegrad.barrier", lambda x, y: ops.barrier(R.exp(x), y), (Arg((3,)), Arg((2,)))),
    *[
        Case(f"relax.grad.{n}", lambda x, n=n: R.exp(getattr(R.grad, n)(x)), (Arg((3,)),))
        for n in ("start_checkpoint", "end_checkpoint")
    ],
    Case("relax.full", lambda v: R.full((2, 3), v), (Arg(()),)),
    Case("relax.dequantize", dequantized, (ints([[1, 5, -3]] * 2, "int8"), Arg((3,), "positive")), tol=1e-3, eps=1e-2),
    Case(
        "relax.grad.max_pool2d_backward",
        lambda y, x: R.grad.max_pool2d_backward(y, x, (2, 2), (2, 2)),
        (Arg((1, 2, 2, 2)), Arg((1, 2, 4, 4), "distinct")),
    ),
    Case(
        "relax.grad.avg_pool2d_backward",
        lambda y, x: R.grad.avg_pool2d_backward(y, x, (2, 2), (2, 2)),
        (Arg((1, 2, 2, 2)), Arg((1, 2, 4, 4))),
    ),
    Case(
        "relax.grad.take_backward", lambda y, x, i: R.grad.take_backward(y, x, i, 0), (Arg((3, 2)), Arg((4, 2)), ints([1, 3, 1]))
    ),
    *[
        Case(
            "relax.grad.nll_loss_backward",
            lambda y, x, t, w, r=r: R.grad.nll_loss_backward(y, x, t, w, r),
            (Arg(s), Arg((4, 3)), ints([0, 2, 1, 2]), Arg((3,), "positive")),
            note=r,
        )
        for r, s in (("mean", ()), ("sum", ()), ("none", (4,)))
    ],
]
