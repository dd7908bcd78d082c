"""TE definitions of the gradients of convolution."""

from __future__ import annotations

from tilegrad._base.tvm import te, tirx

Ints = tuple[int, ...]


def conv_by_data(
    dy: te.Tensor, w: te.Tensor, x_shape: Ints, strides: Ints, padding: Ints, dilation: Ints, groups: int
) -> te.Tensor:
    """dx[n, c, i] = sum over o, k of dy[n, o, (i + pad - k dilation) / stride] w[o, c, k], where that position exists."""
    nd = len(strides)
    out_per_group, in_per_group = int(w.shape[0]) // groups, int(w.shape[1])
    o = te.reduce_axis((0, out_per_group), name="o")
    ks = [te.reduce_axis((0, int(w.shape[2 + d])), name=f"k{d}") for d in range(nd)]

    def element(n: tirx.Var, c: tirx.Var, *i: tirx.Var) -> tirx.Expr:
        group = c // in_per_group
        channel = group * out_per_group + o
        shifted = [i[d] + padding[d] - ks[d] * dilation[d] for d in range(nd)]
        inside = [
            tirx.all(s >= 0, s % st == 0, s // st < dy.shape[2 + d])
            for d, (s, st) in enumerate(zip(shifted, strides, strict=True))
        ]
        at = [s // st for s, st in zip(shifted, strides, strict=True)]
        grad = tirx.if_then_else(tirx.all(*inside), dy(n, channel, *at), tirx.const(0, dy.dtype))
        return te.sum(grad * w(channel, c - group * in_per_group, *ks), axis=[o, *ks])

    return te.compute(x_shape, element, name="conv_by_data")


def conv_by_weight(
    dy: te.Tensor, x: te.Tensor, w_shape: Ints, strides: Ints, padding: Ints, dilation: Ints, groups: int
) -> te.Tensor:
    """dw[o, c, k] = sum over n, i of dy[n, o, i] x[n, c, i stride + k dilation - pad], zero outside the image."""
    nd = len(strides)
    out_per_group, in_per_group = w_shape[0] // groups, w_shape[1]
    n = te.reduce_axis((0, int(dy.shape[0])), name="n")
    i = [te.reduce_axis((0, int(dy.shape[2 + d])), name=f"i{d}") for d in range(nd)]

    def element(o: tirx.Var, c: tirx.Var, *k: tirx.Var) -> tirx.Expr:
        at = [i[d] * strides[d] + k[d] * dilation[d] - padding[d] for d in range(nd)]
        inside = [tirx.all(a >= 0, a < x.shape[2 + d]) for d, a in enumerate(at)]
        pixel = tirx.if_then_else(tirx.all(*inside), x(n, (o // out_per_group) * in_per_group + c, *at), tirx.const(0, x.dtype))
        return te.sum(dy(n, o, *i) * pixel, axis=[n, *i])

    return te.compute(w_shape, element, name="conv_by_weight")
