"""Rules of pooling: overlapping, padded, dilated, channels first or last, one to three spatial axes."""

from __future__ import annotations

from typing import Any

from tilegrad.relax_ext import ops
from tilegrad.relax_ext.vjp.convolution import relayout
from tilegrad.relax_ext.vjp.table import vjp_rule
from tilegrad.relax_ext.vjp.values import Node, Value

_IMAGE = {3: "NCW", 4: "NCHW", 5: "NCDHW"}


def _window(n: Node) -> dict[str, Any]:
    return {
        "pool": n.attr("pool_size"),
        "strides": n.attr("strides"),
        "padding": n.attr("padding"),
        "dilation": n.attr("dilation"),
    }


@vjp_rule("relax.nn.max_pool1d", "relax.nn.max_pool2d", "relax.nn.max_pool3d")
def max_pool(n: Node, g: Value):
    """z = the maximum of each window: g to the first element that attains it."""
    image, layout = _IMAGE[n.x.ndim], n.attr("layout")
    x, y, g = (relayout(v, layout, image) for v in (n.x, n.out, g))
    index = g.tape.bind(ops.max_pool_index(x.expr, y.expr, **_window(n)))
    return relayout(g.tape.bind(ops.window_scatter(g.expr, index.expr, x_shape=x.shape, **_window(n))), image, layout)


_WINDOW = ("pool", "strides", "padding", "dilation")


@vjp_rule("tilegrad.window_scatter")
def window_scatter(n: Node, g: Value):
    """z = the scattering of y by window places: g gathered at those places."""
    return g.tape.bind(ops.window_gather(g.expr, n.y.expr, **{k: n.attr(k) for k in _WINDOW}))


@vjp_rule("tilegrad.window_gather")
def window_gather(n: Node, g: Value):
    """z = the elements of x at window places: g scattered to those places."""
    return g.tape.bind(ops.window_scatter(g.expr, n.y.expr, x_shape=n.x.shape, **{k: n.attr(k) for k in _WINDOW}))


@vjp_rule("relax.nn.avg_pool1d", "relax.nn.avg_pool2d", "relax.nn.avg_pool3d")
def avg_pool(n: Node, g: Value):
    """z = the mean of each window: g / size to each of its elements."""
    image, layout = _IMAGE[n.x.ndim], n.attr("layout")
    x, g = relayout(n.x, layout, image), relayout(g, layout, image)
    attrs = {**_window(n), "count_include_pad": n.attr("count_include_pad")}
    return relayout(g.tape.bind(ops.avg_pool_backward(g.expr, x_shape=x.shape, **attrs)), image, layout)


@vjp_rule("tilegrad.avg_pool_backward")
def avg_pool_backward(n: Node, g: Value):
    """z = the spreading of y over windows: the windows' means of g."""
    return g.tape.bind(ops.avg_pool(g.expr, y_shape=n.x.shape, **{k: n.attr(k) for k in (*_WINDOW, "count_include_pad")}))


@vjp_rule("tilegrad.avg_pool")
def tilegrad_avg_pool(n: Node, g: Value):
    """z = the mean of each window: g / size to each of its elements."""
    return g.tape.bind(
        ops.avg_pool_backward(g.expr, x_shape=n.x.shape, **{k: n.attr(k) for k in (*_WINDOW, "count_include_pad")})
    )


@vjp_rule("relax.nn.adaptive_avg_pool1d", "relax.nn.adaptive_avg_pool2d", "relax.nn.adaptive_avg_pool3d")
def adaptive_avg_pool(n: Node, g: Value):
    """z = the means of runs of nearly equal length: g / length to each element of a run."""
    image, layout = _IMAGE[n.x.ndim], n.attr("layout")
    x, g = relayout(n.x, layout, image), relayout(g, layout, image)
    return relayout(g.tape.bind(ops.adaptive_avg_pool_backward(g.expr, x_shape=x.shape)), image, layout)


@vjp_rule("tilegrad.adaptive_avg_pool_backward")
def adaptive_avg_pool_backward(n: Node, g: Value):
    """z = the spreading of y over runs: the runs' means of g."""
    from tilegrad._base.tvm import relax

    make = {3: relax.op.nn.adaptive_avg_pool1d, 4: relax.op.nn.adaptive_avg_pool2d, 5: relax.op.nn.adaptive_avg_pool3d}[g.ndim]
    return g.tape.bind(make(g.expr, n.x.shape[2:]))
