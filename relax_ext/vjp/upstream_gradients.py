"""Upstream's own gradient operators, as compositions: modules that upstream differentiated can be differentiated again."""

from __future__ import annotations

from tilegrad.relax_ext import ops
from tilegrad.relax_ext.vjp.convolution import relayout
from tilegrad.relax_ext.vjp.loss import chosen
from tilegrad.relax_ext.vjp.table import composition
from tilegrad.relax_ext.vjp.values import F, Node


def _window(n: Node) -> dict[str, tuple[int, ...]]:
    return {
        "pool": n.attr("pool_size"),
        "strides": n.attr("strides"),
        "padding": n.attr("padding"),
        "dilation": n.attr("dilation"),
    }


@composition("relax.grad.max_pool2d_backward")
def max_pool2d_backward(n: Node):
    """(y, x) -> y scattered to the first maximum of each window of x."""
    layout = n.attr("layout")
    y, x = (relayout(v, layout, "NCHW") for v in n.args)
    top = F.max_pool2d(
        x, n.attr("pool_size"), n.attr("strides"), n.attr("padding"), n.attr("dilation"), ceil_mode=n.attr("ceil_mode")
    )
    index = y.tape.bind(ops.max_pool_index(x.expr, top.expr, **_window(n)))
    return relayout(y.tape.bind(ops.window_scatter(y.expr, index.expr, x_shape=x.shape, **_window(n))), "NCHW", layout)


@composition("relax.grad.avg_pool2d_backward")
def avg_pool2d_backward(n: Node):
    """(y, x) -> y spread over the windows of x."""
    layout = n.attr("layout")
    y, x = (relayout(v, layout, "NCHW") for v in n.args)
    attrs = {**_window(n), "count_include_pad": n.attr("count_include_pad")}
    return relayout(y.tape.bind(ops.avg_pool_backward(y.expr, x_shape=x.shape, **attrs)), "NCHW", layout)


@composition("relax.grad.take_backward")
def take_backward(n: Node):
    """(y, x, indices) -> y added at the indices."""
    y, x, indices = n.args
    return y.tape.bind(ops.take_backward(y.expr, indices.expr, x_shape=x.shape, axis=n.attr("axis"), mode="fast"))


@composition("relax.grad.nll_loss_backward")
def nll_loss_backward(n: Node):
    """(y, x, targets, weights) -> -w[t] y at each target's class, over the sum of weights for 'mean'."""
    y, x, t, *weights = n.args
    axis = 1 if x.ndim > 1 else 0
    hot = chosen(x, t, axis, n.attr("ignore_index"))
    w = weights[0].reshape([-1 if i == axis else 1 for i in range(x.ndim)]) if weights else x.tape.constant(1.0, x.dtype)
    at = F.where(hot, w, 0.0)
    if n.attr("reduction") == "mean":
        y = y / at.sum()
    if n.attr("reduction") == "none":
        y = y.reshape([*t.shape[:axis], 1, *t.shape[axis:]])
    return -(at * y)
