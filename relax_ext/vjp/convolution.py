"""Rules of convolutions. Forward, by data and by weight are each other's gradients, so every order is closed.

Other layouts than N, C, spatial are transposed to it; lowering folds the transposes into the kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilegrad._base.tvm import relax
from tilegrad.relax_ext import ops
from tilegrad.relax_ext.vjp.table import vjp_rule
from tilegrad.relax_ext.vjp.values import F, Node, Value

_FORWARD = {1: relax.op.nn.conv1d, 2: relax.op.nn.conv2d, 3: relax.op.nn.conv3d}
SPATIAL = {1: "W", 2: "HW", 3: "DHW"}


@dataclass(frozen=True)
class Window:
    """How a kernel is laid over an image."""

    strides: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @staticmethod
    def of(n: Node) -> Window:
        """The window of a convolution's call."""
        return Window(n.attr("strides"), n.attr("padding"), n.attr("dilation"), n.attr("groups"))

    def attrs(self) -> dict[str, Any]:
        """As attributes of a call."""
        return {"strides": self.strides, "padding": self.padding, "dilation": self.dilation, "groups": self.groups}

    def forward(self, x: Value, w: Value) -> Value:
        """y = x * w."""
        return x.tape.bind(_FORWARD[len(self.strides)](x.expr, w.expr, **self.attrs()))

    def by_data(self, g: Value, w: Value, x_shape: tuple[int, ...]) -> Value:
        """The cotangent of x."""
        return g.tape.bind(ops.conv_by_data(g.expr, w.expr, x_shape=x_shape, **self.attrs()))

    def by_weight(self, g: Value, x: Value, w_shape: tuple[int, ...]) -> Value:
        """The cotangent of w."""
        return g.tape.bind(ops.conv_by_weight(g.expr, x.expr, w_shape=w_shape, **self.attrs()))


def relayout(x: Value, source: str, target: str) -> Value:
    """Axes in the order of ``target``."""
    return x if not source or source == target else x.permute([source.index(c) for c in target])


@vjp_rule("relax.nn.conv1d", "relax.nn.conv2d", "relax.nn.conv3d")
def conv(n: Node, g: Value):
    """y = x * w: (conv_by_data(g, w), conv_by_weight(g, x)); any stride, padding, dilation, groups, layout."""
    window, spatial = Window.of(n), SPATIAL[n.x.ndim - 2]
    data, kernel = n.attr("data_layout"), n.attr("kernel_layout")
    image, weight = "NC" + spatial, "OI" + spatial
    x, w = relayout(n.x, data, image), relayout(n.y, kernel, weight)
    g = relayout(g, n.attr("out_layout") or data, image).astype(x.dtype)
    return (
        relayout(window.by_data(g, w, x.shape), image, data),
        relayout(window.by_weight(g, x, w.shape), weight, kernel),
    )


@vjp_rule("relax.nn.conv1d_transpose", "relax.nn.conv2d_transpose", "relax.nn.conv3d_transpose")
def conv_transpose(n: Node, g: Value):
    """y = the transpose of convolution with w applied to x: (g * w, conv_by_weight(x, g))."""
    window, spatial = Window.of(n), SPATIAL[n.x.ndim - 2]
    data, kernel = n.attr("data_layout"), n.attr("kernel_layout")
    image, weight = "NC" + spatial, "IO" + spatial  # I, the channels of x, is what the forward convolution puts out
    x, w = relayout(n.x, data, image), relayout(n.y, kernel, weight)
    g = relayout(g, n.attr("out_layout") or data, image).astype(x.dtype)
    return (
        relayout(_trimmed(window, g, w, x.shape), image, data),
        relayout(window.by_weight(x, g, w.shape), weight, kernel),
    )


def _trimmed(window: Window, g: Value, w: Value, shape: tuple[int, ...]) -> Value:
    """g * w without the places that output padding added beyond the transpose's input."""
    y = window.forward(g, w)
    for axis in range(2, y.ndim):
        if y.shape[axis] != shape[axis]:
            y = F.strided_slice(y, [axis], [0], [shape[axis]], [1])
    return y


@vjp_rule("tilegrad.conv_by_data")
def conv_by_data(n: Node, g: Value):
    """z = conv_by_data(y, w): (g * w, conv_by_weight(y, g))."""
    window = Window.of(n)
    return _trimmed(window, g, n.y, n.x.shape), window.by_weight(n.x, g, n.y.shape)


@vjp_rule("tilegrad.conv_by_weight")
def conv_by_weight(n: Node, g: Value):
    """z = conv_by_weight(y, x): (x * g, conv_by_data(y, g))."""
    window = Window.of(n)
    return _trimmed(window, n.y, g, n.x.shape), window.by_data(n.x, g, n.y.shape)
