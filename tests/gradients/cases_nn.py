"""Table rows: contractions, convolutions, pooling, normalisation, attention, losses."""

from __future__ import annotations

import numpy as np

from tests.gradients.checker import Arg, Case
from tilegrad._base.tvm import relax

R, NN = relax.op, relax.op.nn


def matmul(a, b, note: str) -> Case:
    """Product of two shapes."""
    return Case("relax.matmul", R.matmul, (Arg(a), Arg(b)), note=note)


def einsum(spec: str, *shapes) -> Case:
    """One einsum."""
    return Case("relax.einsum", lambda *xs: R.einsum(list(xs), spec), tuple(Arg(s) for s in shapes), note=spec)


def conv(nd: int, x, w, note: str, name: str = "", **attrs) -> Case:
    """A convolution."""
    name = name or f"conv{nd}d"
    f = getattr(NN, name)
    return Case(f"relax.nn.{name}", lambda a, b: f(a, b, **attrs), (Arg(x), Arg(w)), note=note)


CONTRACTIONS = [
    matmul((3, 4), (4, 2), ""),
    matmul((4,), (4,), "vectors"),
    matmul((4,), (4, 2), "vector matrix"),
    matmul((3, 4), (4,), "matrix vector"),
    matmul((2, 3, 4), (2, 4, 2), "batch"),
    matmul((2, 3, 4), (4, 2), "shared right"),
    matmul((3, 4), (2, 4, 2), "shared left"),
    matmul((2, 1, 3, 4), (5, 4, 2), "batches broadcast"),
    matmul((4,), (2, 4, 3), "vector batch"),
    matmul((2, 3, 4), (4,), "batch vector"),
    Case("relax.outer", R.outer, (Arg((3,)), Arg((4,)))),
    einsum("ij,jk->ik", (2, 3), (3, 4)),
    einsum("bij,bjk->bik", (2, 2, 3), (2, 3, 2)),
    einsum("ij->ji", (2, 3)),
    einsum("ij->", (2, 3)),
    einsum("i,j->ij", (2,), (3,)),
    einsum("ij,ij->i", (2, 3), (2, 3)),
    einsum("ij,jk,kl->il", (2, 3), (3, 2), (2, 2)),
]

CONVOLUTIONS = [
    conv(1, (2, 3, 7), (4, 3, 3), "", strides=2, padding=1),
    conv(1, (1, 4, 8), (6, 2, 2), "groups, dilation", groups=2, dilation=2, padding=(1, 2)),
    conv(2, (2, 3, 5, 6), (4, 3, 3, 2), ""),
    conv(2, (1, 3, 6, 7), (2, 3, 3, 3), "stride, padding", strides=(2, 3), padding=(1, 1)),
    conv(2, (1, 4, 6, 6), (4, 1, 3, 3), "depthwise, dilation", groups=4, dilation=(2, 1), padding=(2, 1)),
    conv(2, (1, 5, 5, 2), (3, 2, 2, 4), "NHWC", data_layout="NHWC", kernel_layout="HWIO", padding=(1, 0, 0, 1)),
    conv(3, (1, 2, 3, 4, 3), (2, 2, 2, 2, 2), "", padding=1, strides=(1, 2, 1)),
    conv(1, (1, 3, 4), (3, 2, 3), "", name="conv1d_transpose", strides=2, padding=1, output_padding=1),
    conv(2, (1, 3, 3, 4), (3, 2, 3, 2), "", name="conv2d_transpose", strides=(2, 1), padding=(1, 0)),
    conv(
        2,
        (1, 4, 3, 3),
        (4, 2, 2, 2),
        "groups, dilation",
        name="conv2d_transpose",
        groups=2,
        dilation=(2, 1),
        strides=(2, 2),
        output_padding=(1, 0),
    ),
    conv(3, (1, 2, 2, 3, 2), (2, 2, 2, 2, 2), "", name="conv3d_transpose", strides=(2, 1, 1)),
]


def pool(name: str, shape, note: str, domain: str = "distinct", **attrs) -> Case:
    """A pooling operator."""
    f = getattr(NN, name)
    return Case(f"relax.nn.{name}", lambda x: f(x, **attrs), (Arg(shape, domain),), note=note)


POOLS = [
    pool("max_pool1d", (2, 2, 7), "", pool_size=3, strides=2, padding=1),
    pool("max_pool2d", (1, 2, 6, 6), "", pool_size=(2, 2), strides=(2, 2)),
    pool(
        "max_pool2d",
        (1, 2, 6, 7),
        "overlap, padding, dilation",
        pool_size=(3, 2),
        strides=(1, 2),
        padding=(1, 1, 2, 0),
        dilation=(2, 1),
    ),
    pool("max_pool2d", (1, 5, 5, 2), "NHWC, ceil", pool_size=(2, 2), strides=(2, 2), layout="NHWC", ceil_mode=True),
    pool("max_pool3d", (1, 1, 4, 4, 3), "", pool_size=2, strides=2, padding=1),
    pool("avg_pool1d", (1, 2, 7), "", "normal", pool_size=3, strides=2, padding=1),
    pool("avg_pool2d", (1, 2, 6, 5), "", "normal", pool_size=(3, 2), strides=(2, 1), padding=(1, 0)),
    pool(
        "avg_pool2d",
        (1, 2, 6, 5),
        "count pad, ceil",
        "normal",
        pool_size=(3, 2),
        strides=(2, 2),
        padding=(1, 1),
        count_include_pad=True,
        ceil_mode=True,
    ),
    pool("avg_pool3d", (1, 1, 4, 3, 3), "", "normal", pool_size=2, strides=1),
    pool("adaptive_avg_pool1d", (1, 2, 7), "", "normal", output_size=3),
    pool("adaptive_avg_pool2d", (1, 2, 7, 5), "", "normal", output_size=(3, 2)),
    pool("adaptive_avg_pool2d", (1, 2, 3, 3), "larger than the input", "normal", output_size=(5, 4)),
    pool("adaptive_avg_pool3d", (1, 1, 4, 3, 5), "", "normal", output_size=(2, 2, 3)),
]


def batch_norm(training: bool, axis: int = 1):
    """All three results."""
    return lambda x, g, b, m, v: NN.batch_norm(x, g, b, m, v, axis, 1e-3, training=training, momentum=0.2)


NORMS = [
    Case("relax.nn.layer_norm", lambda x, g, b: NN.layer_norm(x, g, b, [-1], 1e-3), (Arg((3, 4)), Arg((4,)), Arg((4,)))),
    Case(
        "relax.nn.layer_norm",
        lambda x, g, b: NN.layer_norm(x, g, b, [-2, -1], 1e-3),
        (Arg((2, 3, 4)), Arg((3, 4)), Arg((3, 4))),
        note="two axes",
    ),
    Case("relax.nn.rms_norm", lambda x, g: NN.rms_norm(x, g, [-1], 1e-3), (Arg((3, 4)), Arg((4,)))),
    Case(
        "relax.nn.group_norm",
        lambda x, g, b: NN.group_norm(x, g, b, 2, 1, [2, 3], 1e-3),
        (Arg((2, 4, 3, 2)), Arg((4,)), Arg((4,))),
    ),
    Case(
        "relax.nn.instance_norm",
        lambda x, g, b: NN.instance_norm(x, g, b, 1, [2, 3], 1e-3),
        (Arg((2, 3, 3, 2)), Arg((3,)), Arg((3,))),
    ),
    Case(
        "relax.nn.batch_norm",
        batch_norm(True),
        (Arg((3, 2, 4)), Arg((2,)), Arg((2,)), Arg((2,)), Arg((2,), "positive")),
        note="training",
    ),
    Case(
        "relax.nn.batch_norm",
        batch_norm(False, 2),
        (Arg((3, 2, 4)), Arg((4,)), Arg((4,)), Arg((4,)), Arg((4,), "positive")),
        note="evaluation, axis 2",
    ),
]

QKV = (Arg((2, 3, 2, 4)), Arg((2, 5, 2, 4)), Arg((2, 5, 2, 4)))
ATTENTION = [
    Case("relax.nn.attention", lambda q, k, v: NN.attention(q, k, v), QKV),
    Case(
        "relax.nn.attention",
        lambda q, k, v: NN.attention(q, k, v, scale=0.3, causal_mask="TopLeft"),
        (Arg((1, 4, 2, 3)),) * 3,
        note="causal",
    ),
    Case(
        "relax.nn.attention", lambda q, k, v: NN.attention(q, k, v, causal_mask="BottomRight"), QKV, note="causal, bottom right"
    ),
    Case("relax.nn.attention_bias", lambda q, k, v, b: NN.attention(q, k, v, b), (*QKV, Arg((2, 2, 3, 5)))),
]


def targets(values) -> Arg:
    """Class numbers."""
    return Arg((), values=np.asarray(values, "int64"))


LOSSES = [
    Case("relax.nn.nll_loss", lambda x, t: NN.nll_loss(x, t, reduction="mean"), (Arg((4, 3)), targets([0, 2, 1, 2]))),
    Case(
        "relax.nn.nll_loss",
        lambda x, t, w: NN.nll_loss(x, t, w, "mean", 1),
        (Arg((4, 3)), targets([0, 2, 1, 2]), Arg((3,), "positive")),
        note="weights, ignored class",
    ),
    Case(
        "relax.nn.nll_loss",
        lambda x, t, w: NN.nll_loss(x, t, w, "none"),
        (Arg((2, 3, 2)), targets([[0, 2], [1, 1]]), Arg((3,), "positive")),
        note="images, none",
    ),
    Case("relax.nn.nll_loss", lambda x, t: NN.nll_loss(x, t, reduction="sum"), (Arg((3,)), targets(1)), note="one sample, sum"),
    Case("relax.nn.cross_entropy_with_logits", NN.cross_entropy_with_logits, (Arg((3, 4)), Arg((3, 4)))),
]

IMAGE = relax.op.image


def resize(shape, size, note: str, **attrs) -> Case:
    """A resize of one image."""
    name = "resize2d" if len(size) == 2 else "resize3d"
    return Case(f"relax.image.{name}", lambda x: getattr(IMAGE, name)(x, size, **attrs), (Arg(shape),), note=note)


IMAGES = [
    resize((1, 2, 4, 3), (7, 6), ""),
    resize(
        (1, 5, 6, 2),
        (2, 3),
        "nearest, NHWC",
        layout="NHWC",
        method="nearest_neighbor",
        coordinate_transformation_mode="asymmetric",
        rounding_method="floor",
    ),
    resize((1, 1, 4, 4), (7, 3), "align corners", coordinate_transformation_mode="align_corners"),
    resize((1, 1, 5, 4), (7, 6), "cubic", method="cubic", cubic_exclude=1),
    resize((1, 1, 3, 2, 4), (5, 4, 2), ""),
    Case("relax.image.affine_grid", lambda t: IMAGE.affine_grid(t, (3, 4), False), (Arg((2, 2, 3)),)),
    Case("relax.image.affine_grid", lambda t: IMAGE.affine_grid(t, (3, 4), True), (Arg((2, 2, 3)),), note="align corners"),
    *[
        Case(
            "relax.image.grid_sample",
            lambda x, g, m=m, p=p, a=a: IMAGE.grid_sample(x, g, m, "NCHW", p, a),
            (Arg((2, 2, 4, 5)), Arg((2, 2, 3, 3), "unit")),
            note=f"{m} {p}{' align' if a else ''}",
            eps=1e-6,
            tol=1e-6,
        )
        for m, p, a in [("bilinear", "zeros", True), ("bilinear", "border", False), ("nearest", "zeros", False)]
    ],
    Case(
        "relax.image.grid_sample",
        lambda x, g: IMAGE.grid_sample(x, g, "bilinear", "NCDHW", "zeros", False),
        (Arg((1, 1, 3, 4, 3)), Arg((1, 3, 2, 2, 2), "unit")),
        note="volume",
        eps=1e-6,
        tol=1e-6,
    ),
]

VISION = relax.op.vision
ROIS = np.array([[0.0, 0.6, 0.3, 4.1, 5.2], [1.0, 2.2, 1.1, 3.7, 2.4]])


def on_regions(f):
    """Batch numbers are constants, corners are differentiated."""
    return lambda x, corners: f(
        x, R.concat([relax.const(ROIS[:, :1], "float64"), R.add(corners, relax.const(ROIS[:, 1:], "float64"))], 1)
    )


def align(mode: str, aligned: bool):
    """Three by two bins, two samples each way."""
    return on_regions(lambda x, r: VISION.roi_align(x, r, (3, 2), 0.8, 2, aligned, "NCHW", mode))


IMAGES += [
    Case("relax.vision.roi_align", align("avg", False), (Arg((2, 2, 6, 5)), Arg((2, 4), "small")), tol=1e-6),
    Case(
        "relax.vision.roi_align", align("max", True), (Arg((2, 2, 6, 5)), Arg((2, 4), "small")), tol=1e-6, note="maximum, aligned"
    ),
    Case(
        "relax.vision.roi_pool",
        lambda x: VISION.roi_pool(x, relax.const(ROIS, "float64"), (3, 2), 0.8),
        (Arg((2, 2, 6, 5), "distinct"),),
    ),
    Case(
        "relax.vision.multibox_transform_loc",
        lambda c, p, a: VISION.multibox_transform_loc(c, p, a, False, 0.0, (0.1, 0.1, 0.2, 0.2), True),
        (Arg((2, 3, 4)), Arg((2, 16)), Arg((1, 4, 4))),
    ),
]

CASES = CONTRACTIONS + CONVOLUTIONS + POOLS + NORMS + ATTENTION + LOSSES + IMAGES
