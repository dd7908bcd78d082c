"""Table rows: shape and data movement, indexing and sorting."""

from __future__ import annotations

import numpy as np

from tests.gradients.checker import Arg, Case
from tilegrad._base.tvm import relax

R = relax.op


def one(name: str, build, shape=(2, 3, 4), note: str = "", domain: str = "normal", **kw) -> Case:
    """One differentiated tensor."""
    return Case(f"relax.{name}", build, (Arg(shape, domain),), note=note, **kw)


def ints(values, dtype: str = "int64") -> Arg:
    """An index tensor."""
    return Arg((), values=np.asarray(values, dtype))


def pad(mode: str):
    """Uneven borders on two axes."""
    return lambda x: R.nn.pad(x, (0, 0, 1, 2, 2, 1), mode)


MOVEMENT: list[Case] = [
    one("reshape", lambda x: R.reshape(x, (6, 4))),
    one("squeeze", lambda x: R.squeeze(x, [1]), (3, 1, 4)),
    one("expand_dims", lambda x: R.expand_dims(x, [0, 2]), (3, 4)),
    one("flatten", R.flatten),
    one("nn.batch_flatten", R.nn.batch_flatten),
    one("permute_dims", lambda x: R.permute_dims(x, [2, 0, 1])),
    one("permute_dims", lambda x: R.permute_dims(x), note="reversed"),
    one("broadcast_to", lambda x: R.broadcast_to(x, (2, 3, 4)), (3, 1)),
    one("collapse_sum_to", lambda x: R.collapse_sum_to(x, (3, 1))),
    Case("relax.collapse_sum_like", R.collapse_sum_like, (Arg((2, 3, 4)), Arg((3, 1)))),
    Case("relax.concat", lambda x, y: R.concat([x, y, x], 1), (Arg((2, 3)), Arg((2, 1)))),
    Case("relax.stack", lambda x, y: R.stack([x, y], 1), (Arg((2, 3)), Arg((2, 3)))),
    one("split", lambda x: R.split(x, [1, 3], 1), (2, 4)),
    one("split", lambda x: relax.TupleGetItem(R.split(x, 2, 1), 1), (2, 4), note="one part used"),
    Case("relax.meshgrid", lambda x, y: R.meshgrid([x, y], "ij"), (Arg((2,)), Arg((3,)))),
    one("tile", lambda x: R.tile(x, (2, 1, 3)), (3, 2)),
    one("repeat", lambda x: R.repeat(x, 3, 1)),
    one("repeat", lambda x: R.repeat(x, 2), (2, 3), note="flat"),
    one("flip", lambda x: R.flip(x, 1)),
    Case("relax.reverse_sequence", lambda x, k: R.reverse_sequence(x, k, 1, 0), (Arg((3, 4, 2)), ints([2, 4, 1], "int32"))),
    one("strided_slice", lambda x: R.strided_slice(x, [0, 2], [1, 0], [2, 4], [1, 2])),
    one("strided_slice", lambda x: R.strided_slice(x, [2], [3], [-5], [-1]), note="backwards"),
    one("strided_slice", lambda x: R.strided_slice(x, [1], [-2], [100], [1]), note="from the end"),
    one("nn.pad", pad("constant")),
    one("nn.pad", pad("reflect"), note="reflect"),
    one("nn.pad", pad("replicate"), note="replicate"),
    one("nn.pad", pad("circular"), note="circular"),
    one("tril", lambda x: R.tril(x, 1)),
    one("triu", lambda x: R.triu(x, -1)),
    one("nn.pixel_shuffle", lambda x: R.nn.pixel_shuffle(x, 2), (1, 8, 2, 3)),
    Case("relax.slice_scatter", lambda x, y: R.slice_scatter(x, y, 1, 6, 2, 1), (Arg((2, 6)), Arg((2, 3)))),
    one("layout_transform", lambda x: R.layout_transform(x, lambda i, j: (j // 2, i, j % 2)), (3, 4)),
]

INDEXING: list[Case] = [
    Case("relax.take", lambda x, i: R.take(x, i, 0), (Arg((4, 3)), ints([1, 3, 1, 0]))),
    Case("relax.take", lambda x, i: R.take(x, i, 1, "clip"), (Arg((2, 4, 3)), ints([[1, 3], [9, 0]])), note="axis 1, clip"),
    Case("relax.take", lambda x, i: R.take(x, i), (Arg((6,)), ints([5, 0, 5])), note="no axis"),
    Case("relax.take", lambda x, i: R.take(x, i, 1), (Arg((2, 3)), ints(2)), note="scalar index"),
    Case("relax.gather_elements", lambda x, i: R.gather_elements(x, i, 1), (Arg((3, 4)), ints([[0, 0], [3, 1], [2, 2]]))),
    Case(
        "relax.gather_elements",
        lambda x, i: R.gather_elements(x, i, 0),
        (Arg((3, 4)), ints([[0, 2], [2, 1]])),
        note="fewer columns",
    ),
    Case("relax.gather_nd", lambda x, i: R.gather_nd(x, i), (Arg((3, 4, 2)), ints([[0, 1], [2, 3], [0, 1]]))),
    Case("relax.gather_nd", lambda x, i: R.gather_nd(x, i, 1), (Arg((2, 3, 2)), ints([[0], [2]])), note="batch"),
    Case("relax.index_tensor", lambda x, i, j: R.index_tensor(x, [i, j]), (Arg((3, 4, 2)), ints([[0], [2]]), ints([1, 1, 3]))),
    Case(
        "relax.index_put",
        lambda x, i, j, y: R.index_put(x, (i, j), y, True),
        (Arg((3, 4)), ints([0, 2, 0]), ints([1, 3, 1]), Arg((3,))),
    ),
    Case(
        "relax.index_put",
        lambda x, i, j, y: R.index_put(x, (i, j), y),
        (Arg((3, 4)), ints([0, 2, 1]), ints([1, 3, 1]), Arg((3,))),
        note="put",
    ),
    Case("relax.scatter_nd", lambda x, i, y: R.scatter_nd(x, i, y, "add"), (Arg((4, 2)), ints([[1], [3], [1]]), Arg((3, 2)))),
    Case(
        "relax.scatter_nd",
        lambda x, i, y: R.scatter_nd(x, i, y, "update"),
        (Arg((4, 2)), ints([[1], [3]]), Arg((2, 2))),
        note="update",
    ),
    *[
        Case(
            "relax.scatter_elements",
            lambda x, i, y, r=r: R.scatter_elements(x, i, y, 0, r),
            (Arg((3, 2), "away"), ints([[0, 2], [1, 0]]), Arg((2, 2), "away")),
            note=r,
        )
        for r in ("update", "add", "mul", "min", "max")
    ],
    Case("relax.sort", lambda x: R.sort(x, 1), (Arg((3, 4), "distinct"),)),
    Case("relax.sort", lambda x: R.sort(x, 0, True), (Arg((3, 4), "distinct"),), note="descending"),
    Case("relax.topk", lambda x: R.topk(x, 2, 1, "both", True), (Arg((3, 4), "distinct"),)),
    Case("relax.topk", lambda x: R.topk(x, 2, 0, "values", False), (Arg((3, 4), "distinct"),), note="smallest values"),
    Case("relax.median", lambda x: R.median(x, [1]), (Arg((3, 4), "distinct"),)),
    Case("relax.median", lambda x: R.median(x), (Arg((3, 3), "distinct"),), note="all"),
]

CASES = MOVEMENT + INDEXING
