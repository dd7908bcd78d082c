"""Gradients of gathering operators: sums of updates at indexed positions, duplicates included."""

from __future__ import annotations

from typing import Any

from tilegrad._base.tvm import relax
from tilegrad.relax_ext.ops import _te_index as _te
from tilegrad.relax_ext.ops.register import register, tensor


def _source(g: relax.TensorType, *_: relax.Type, x_shape: tuple[int, ...], **__: Any) -> relax.Type:
    return tensor(x_shape, g.dtype)


take_backward = register("tilegrad.take_backward", _source, _te.take_backward)
gather_elements_backward = register("tilegrad.gather_elements_backward", _source, _te.gather_elements_backward)
gather_nd_backward = register("tilegrad.gather_nd_backward", _source, _te.gather_nd_backward)
