"""Up- and downsampling. Each mode is linear and separable: along every axis a small matrix, which PyTorch itself
gives when it resamples the identity, so that rounding conventions cannot differ."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from tilegrad.frontend.pytorch.lowering import Lowering
from tilegrad.frontend.pytorch.table import aten
from tilegrad.relax_ext.vjp.values import F, Value


@lru_cache(maxsize=256)
def _matrix(op: str, n: int, axis: int, size: int, out: int, align: bool | None, scale: float | None) -> np.ndarray:
    """[out, size]: what the operator does along one of ``n`` axes. The others have two elements and keep them: with one,
    PyTorch's antialiasing takes the image for channels-last and mixes up its rows."""
    here = [1 if a == axis else 0 for a in range(n)]
    eye = torch.eye(size, dtype=torch.float64).reshape([size, 1] + [size if h else 1 for h in here])
    eye = eye.expand([size, 1] + [size if h else 2 for h in here]).contiguous()
    flags = [] if align is None else [align]
    scales = [scale if h else None for h in here]
    y = getattr(torch.ops.aten, op)(eye, [out if h else 2 for h in here], *flags, *scales)
    return y[(slice(None), 0, *(slice(None) if h else 0 for h in here))].T.contiguous().numpy()


def _resampled(k: Lowering, op: str, n: int, x: Value, align: bool | None, scales: Sequence[float | None]) -> Value:
    """Axis by axis: repeated where that is all the matrix does, else a product with the matrix."""
    wide, outs = k.wide(x), k.out.shape[-n:]
    for d in range(n):
        axis, size, out = x.ndim - n + d, x.shape[-n + d], outs[d]
        matrix = _matrix(op, n, d, size, out, align, scales[d])
        wide = _along(k, wide, axis, matrix)
    return k.narrow(wide)


def _along(k: Lowering, x: Value, axis: int, matrix: np.ndarray) -> Value:
    out, size = matrix.shape
    if out == size and np.array_equal(matrix, np.eye(size)):
        return x
    if out % size == 0 and np.array_equal(matrix, np.repeat(np.eye(size), out // size, axis=0)):
        shape, times = list(x.shape), out // size
        spread = x.reshape([*shape[: axis + 1], 1, *shape[axis + 1 :]])
        spread = spread.broadcast_to([*shape[: axis + 1], times, *shape[axis + 1 :]])
        return spread.reshape([*shape[:axis], out, *shape[axis + 1 :]])
    weights = k.constant(matrix.astype(x.dtype))
    if axis == x.ndim - 1:
        return F.matmul(x, k.constant(np.ascontiguousarray(matrix.T).astype(x.dtype)))
    lead, tail = x.shape[:axis], x.shape[axis + 1 :]
    flat = F.matmul(weights, x.reshape((*lead, size, int(np.prod(tail)))))
    return flat.reshape((*lead, out, *tail))


def _register(op: str, n: int, aligned: bool) -> None:
    @aten(op)
    def rule(k: Lowering, x: Value, output_size: Sequence[int], *args: Any) -> Value:
        align = bool(args[0]) if aligned else None
        scales = list(args[1:] if aligned else args)
        return _resampled(k, op, n, x, align, scales + [None] * (n - len(scales)))

    @aten(f"{op}.vec")
    def vector(k: Lowering, x: Value, output_size: Sequence[int] | None, *args: Any) -> Value:
        align, factors = (bool(args[0]), args[1]) if aligned else (None, args[0])
        return _resampled(k, op, n, x, align, list(factors or [None] * n))


for _op, _n, _aligned in (
    ("upsample_nearest1d", 1, False), ("upsample_nearest2d", 2, False), ("upsample_nearest3d", 3, False),
    ("_upsample_nearest_exact1d", 1, False), ("_upsample_nearest_exact2d", 2, False), ("_upsample_nearest_exact3d", 3, False),
    ("upsample_linear1d", 1, True), ("upsample_bilinear2d", 2, True), ("upsample_trilinear3d", 3, True),
    ("upsample_bicubic2d", 2, True), ("_upsample_bilinear2d_aa", 2, True), ("_upsample_bicubic2d_aa", 2, True),
):  # fmt: skip
    _register(_op, _n, _aligned)
