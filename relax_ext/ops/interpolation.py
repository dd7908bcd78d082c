"""Resizing as sums of a few taps along one axis at a time; the taps are tables made when the graph is built.

The gradient of such a sum is another one, with the table turned round, so every order is closed.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor

import numpy as np

from tilegrad._base.errors import UnsupportedOperatorError
from tilegrad._base.tvm import ir, relax, te
from tilegrad.relax_ext.ops.register import plain, register, tensor


def _interpolate(x: te.Tensor, index: te.Tensor, weight: te.Tensor, axis: int) -> te.Tensor:
    """y[..., o, ...] = sum over t of weight[t, o] x[..., index[t, o], ...]."""
    shape = [int(index.shape[1]) if i == axis else d for i, d in enumerate(x.shape)]
    taps = int(index.shape[0])

    def element(*i: te.Var) -> te.Tensor:
        o = i[axis]
        terms = [weight(t, o) * x(*i[:axis], index(t, o), *i[axis + 1 :]) for t in range(taps)]
        return sum(terms[1:], terms[0])

    return te.compute(shape, element, name="interpolate")


def _type(x: relax.TensorType, index: relax.TensorType, _: relax.TensorType, *, axis: int) -> relax.Type:
    return tensor([index.shape[1] if i == axis else d for i, d in enumerate(x.shape)], x.dtype)


interpolate = register("tilegrad.interpolate", _type, _interpolate)


@dataclass(frozen=True)
class Taps:
    """``index[t, o]`` and ``weight[t, o]``: which inputs output ``o`` adds up, and how much of each."""

    index: np.ndarray
    weight: np.ndarray

    def call(self, x: relax.Expr, axis: int) -> ir.Call:
        """Apply along an axis of ``x``."""
        dtype = str(x.ty.dtype)
        return interpolate(x, relax.const(self.index, "int32"), relax.const(self.weight, dtype), axis=axis)

    def transposed(self, size: int) -> Taps:
        """The table of the transpose, for inputs of extent ``size``."""
        users: list[list[tuple[int, float]]] = [[] for _ in range(size)]
        for t, o in np.ndindex(*self.index.shape):
            if self.weight[t, o] != 0:
                users[self.index[t, o]].append((o, float(self.weight[t, o])))
        most = max(1, max(map(len, users)))
        index, weight = np.zeros((most, size), "int32"), np.zeros((most, size))
        for i, found in enumerate(users):
            for t, (o, w) in enumerate(found):
                index[t, i], weight[t, i] = o, w
        return Taps(index, weight)

    @staticmethod
    def of(call: ir.Call) -> Taps:
        """The table of a call of ``interpolate``, whose tables are constants."""
        return Taps(call.args[1].value.numpy(), call.args[2].value.numpy())


_NEAREST = {
    "round": lambda x: floor(abs(x) + 0.5) * (1 if x >= 0 else -1),
    "round_prefer_floor": lambda x: -floor(0.5 - x),
    "round_prefer_ceil": lambda x: floor(x + 0.5),
    "floor": lambda x: floor(x + 1e-5),
    "ceil": lambda x: -floor(1e-5 - x),
}


def _source(o: int, size: int, target: int, mode: str) -> float:
    """The position in the input that output ``o`` stands for. ONNX, operator Resize, coordinate_transformation_mode."""
    scale = size / target
    if mode == "half_pixel" or (mode == "pytorch_half_pixel" and target > 1):
        return (o + 0.5) * scale - 0.5
    if mode == "align_corners":
        return o * (size - 1) / (target - 1) if target > 1 else 0.0
    if mode == "tf_half_pixel_for_nn":
        return (o + 0.5) * scale
    if mode == "asymmetric":
        return o * scale
    if mode == "pytorch_half_pixel":
        return 0.0
    raise UnsupportedOperatorError(
        "resize", f"coordinate_transformation_mode '{mode}'", "half_pixel, align_corners or asymmetric"
    )


def resize_taps(size: int, target: int, method: str, mode: str, rounding: str, alpha: float, exclude: bool) -> Taps:
    """The taps of one axis resized from ``size`` to ``target``; positions outside repeat the border."""
    columns: list[list[tuple[int, float]]] = []
    for o in range(target):
        x = _source(o, size, target, mode)
        first = floor(x)
        t = x - first
        if method == "nearest_neighbor":
            how = rounding or ("round" if mode == "align_corners" else "floor")
            taps = [(_NEAREST[how](x), 1.0)]
        elif method == "linear":
            taps = [(first, 1.0 - t), (first + 1, t)]
        elif method == "cubic":
            taps = _cubic(first, t, size, alpha, exclude)
        else:
            raise UnsupportedOperatorError("resize", f"method '{method}'", "nearest_neighbor, linear or cubic")
        columns.append([(min(max(i, 0), size - 1), w) for i, w in taps])
    table = np.array(columns)  # [target, taps, 2]
    return Taps(table[:, :, 0].T.astype("int32"), table[:, :, 1].T.copy())


def _cubic(first: int, t: float, size: int, a: float, exclude: bool) -> list[tuple[int, float]]:
    """Keys's cubic convolution; with ``exclude`` positions outside count for nothing and the rest is scaled up."""
    weights = [
        a * (t**3 - 2 * t**2 + t),
        (a + 2) * t**3 - (3 + a) * t**2 + 1,
        -(a + 2) * t**3 + (3 + 2 * a) * t**2 - a * t,
        -a * t**3 + a * t**2,
    ]
    places = [first - 1 + k for k in range(4)]
    if exclude:
        weights = [w if 0 <= p < size else 0.0 for w, p in zip(weights, places, strict=True)]
        weights = [w / sum(weights) for w in weights]
    return list(zip(places, weights, strict=True))


def resize_axes(call: ir.Call) -> list[tuple[int, Taps]]:
    """(axis, taps) for each spatial axis of a ``relax.image.resize2d`` or ``resize3d`` call that changes its extent or values."""
    a = call.attrs
    layout, sizes = str(a.layout), [int(d) for d in call.args[1].values]
    found = []
    for name, target in zip([c for c in layout if c in "DHW"], sizes, strict=True):
        axis = layout.index(name)
        size = int(call.args[0].ty.shape[axis])
        how = (
            str(a.method),
            str(a.coordinate_transformation_mode),
            str(a.rounding_method),
            plain(a.cubic_alpha),
            bool(plain(a.cubic_exclude)),
        )
        if size != target:
            found.append((axis, resize_taps(size, target, *how)))
    return found


def _legalize_resize(upstream: ir.Op) -> None:
    original = upstream.get_attr("FLegalize")

    def legalize(builder: relax.BlockBuilder, call: ir.Call) -> relax.Expr:
        if str(call.attrs.coordinate_transformation_mode) == "tf_crop_and_resize":
            return original(builder, call)
        x = call.args[0]
        for axis, taps in resize_axes(call):
            tables = [relax.const(taps.index, "int32"), relax.const(taps.weight, str(x.ty.dtype))]
            x = builder.emit(builder.call_te(_interpolate, x, *tables, axis, primfunc_name_hint="interpolate"))
        return x if str(x.ty.dtype) == str(call.ty.dtype) else relax.op.astype(x, str(call.ty.dtype))

    ir.register_op_attr(upstream.name, "FLegalize", legalize, level=11)


for _name in ("relax.image.resize2d", "relax.image.resize3d"):
    _legalize_resize(ir.Op.get(_name))
