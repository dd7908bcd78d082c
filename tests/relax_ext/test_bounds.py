"""Kernels of users' own read inside their arrays, or are refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilegrad as tg
from tilegrad._base.errors import UsageError


def t(*shape: int, dtype: str = "float32") -> Any:
    return tg.zeros(shape, dtype=dtype)


def ahead(x: Any) -> Any:
    from tilegrad._base.tvm import te

    return te.compute(x.shape, lambda i: x[i + 1], name="ahead")


def gathered(x: Any, index: Any) -> Any:
    from tilegrad._base.tvm import te

    return te.compute(index.shape, lambda i: x[index[i]], name="gathered")


def unguarded(x: Any) -> Any:
    from tilegrad._base.tvm import te, tirx

    return te.compute((4, 4), lambda i, j: tirx.if_then_else(tirx.any(i >= j, x[i] > 0.0), x[i - j], 0.0), name="unguarded")


REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "a kernel that reads beyond its array": (
        lambda: tg.call_te(ahead, t(4)),
        UsageError,
        r"a read of .*axis 0 of 4.*if_then_else",
    ),
    "a kernel whose condition is no guard": (lambda: tg.call_te(unguarded, t(4)), UsageError, r"a read of .*axis 0 of 4"),
    "a kernel that reads at a computed index": (
        lambda: tg.call_te(gathered, t(4), t(4, dtype="int64")),
        UsageError,
        r"axis 0 of 4 elements.*clamp",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_reads_outside_are_refused(what: str) -> None:
    do, error, pattern = REFUSED[what]
    with pytest.raises(error) as caught:
        do()
    assert re.search(pattern, str(caught.value), re.S), str(caught.value)


def test_kernels_with_guarded_and_clamped_reads_are_taken() -> None:
    def safe(x: Any, index: Any) -> Any:
        from tilegrad._base.tvm import te, tirx

        def element(i: Any) -> Any:
            near = tirx.max(tirx.min(index[i], 3), 0)
            return x[near] + tirx.if_then_else(i >= 1, x[i - 1], 0.0) + x[(i + 2) % 4]

        return te.compute(x.shape, element, name="safe")

    values, index = np.arange(4, dtype="float32"), np.array([9, 1, -5, 2])
    got = tg.call_te(safe, tg.tensor(values), tg.tensor(index)).numpy()
    np.testing.assert_array_equal(got, values[[3, 1, 0, 2]] + [0, 0, 1, 2] + values[[2, 3, 0, 1]])


def test_kernels_whose_reads_are_tried_point_by_point_are_taken() -> None:
    def reflected(x: Any) -> Any:
        from tilegrad._base.tvm import te, tirx

        last = x.shape[0] - 1

        def place(i: Any) -> Any:
            return tirx.if_then_else(i < 1, 1 - i, tirx.if_then_else(i > last + 1, 2 * last + 1 - i, i - 1))

        return te.compute((last + 3,), lambda i: x[place(i)], name="reflected")

    def triangle(x: Any) -> Any:
        from tilegrad._base.tvm import te, tirx

        n = x.shape[0]
        return te.compute((n, n), lambda i, j: tirx.if_then_else(tirx.any(i < j, x[j] > 3.0), 0.0, x[i - j]), name="triangle")

    values = np.arange(1, 6, dtype="float32")
    np.testing.assert_array_equal(tg.call_te(reflected, tg.tensor(values)).numpy(), np.pad(values, 1, mode="reflect"))
    expected = [[values[i - j] if i >= j and values[j] <= 3 else 0 for j in range(5)] for i in range(5)]
    np.testing.assert_array_equal(tg.call_te(triangle, tg.tensor(values)).numpy(), expected)
