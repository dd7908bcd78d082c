"""Take arrays without elements out before lowering.

In: a Relax module. Out: a result without elements is a constant, whatever computed it; a result with elements that is computed
from arguments without any is what its operator makes of nothing (0 for a sum, 1 for a product, NaN for a mean), or the arguments
that are left. Kernels and templates then meet no extent of zero, which upstream's definitions do not take.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tilegrad._base.tvm import ir, relax, tvm
from tilegrad.relax_ext.ops.register import plain
from tilegrad.relax_ext.ops.reshape import extents
from tilegrad.relax_ext.rewrite import Scope, rewrite
from tilegrad.runtime.program import numpy_dtype

_ZERO = (
    "relax.sum relax.collapse_sum_like relax.collapse_sum_to relax.matmul relax.einsum relax.outer "
    "relax.nn.conv1d relax.nn.conv2d relax.nn.conv3d "
    "relax.nn.conv1d_transpose relax.nn.conv2d_transpose relax.nn.conv3d_transpose tilegrad.conv_by_data tilegrad.conv_by_weight "
    "tilegrad.take_backward tilegrad.gather_elements_backward tilegrad.gather_nd_backward tilegrad.window_scatter"
)
OF_NOTHING: dict[str, float] = {
    **dict.fromkeys(_ZERO.split(), 0.0),
    **dict.fromkeys(("relax.mean", "relax.variance", "relax.std"), math.nan),
    "relax.prod": 1.0,
    "relax.max": -math.inf,
    "relax.min": math.inf,
}
"""Operator -> every element of its result when an argument has none: the reduction's neutral element. Public functions refuse the
largest of nothing before it comes here; ``all``, ``any`` and ``logsumexp`` build on it."""

_KEPT = {f"relax.{name}" for name in ("scatter_elements", "scatter_nd", "index_put", "slice_scatter", "dynamic_strided_slice")}
"""Operators that give their first argument back where there is nothing to put into it."""


def drop_empty(mod: tvm.IRModule) -> tvm.IRModule:
    """Apply the rule to every call of ``main``."""
    values = [b.value for block in mod["main"].body.blocks for b in block.bindings]
    if not any(_is_empty(t) for v in values for e in (v, *_arguments(v)) for t in _tensors(e.ty)):
        return mod
    return rewrite(mod, _rule)


def _rule(_: Scope, var: relax.Var, call: relax.Call) -> relax.Expr | None:
    results, op = _tensors(var.ty), getattr(call.op, "name", "")
    if results and all(_is_empty(t) for t in results):
        return None if op == "relax.zeros" else _each(var.ty, lambda t: relax.op.zeros(extents(t), str(t.dtype)))
    if not any(_is_empty(t) for a in _arguments(call) for t in _tensors(a.ty)):
        return None
    if op == "tilegrad.attention" and extents(call.args[1].ty)[-2] == 0:  # no keys: rows that see nothing
        return relax.Tuple([_full(t, value) for t, value in zip(results, (0.0, math.inf), strict=True)])
    if op in OF_NOTHING:
        return _each(var.ty, lambda t: _full(t, OF_NOTHING[op]))
    if op == "relax.nn.pad":
        return _full(var.ty, float(plain(call.attrs.pad_value)))
    if op == "relax.concat":
        given = call.args[0]
        fields = (
            given.fields
            if isinstance(given, relax.Tuple)
            else [relax.TupleGetItem(given, i) for i in range(len(given.ty.fields))]
        )
        parts = [p for p in fields if not _is_empty(p.ty)]
        return parts[0] if len(parts) == 1 else relax.op.concat(parts, plain(call.attrs.axis))
    return call.args[0] if op in _KEPT and not _is_empty(call.args[0].ty) else None


def _arguments(value: relax.Expr) -> list[relax.Expr]:
    """A call's arguments that are arrays or tuples of them."""
    return [a for a in value.args if _tensors(a.ty)] if isinstance(value, ir.Call) else []


def _tensors(ty: relax.Type) -> list[relax.TensorType]:
    """The tensor types in a type."""
    if hasattr(ty, "fields"):
        return [t for f in ty.fields for t in _tensors(f)]
    return [ty] if isinstance(ty, relax.TensorType) else []


def _is_empty(ty: relax.Type) -> bool:
    return isinstance(ty, relax.TensorType) and 0 in extents(ty)


def _each(ty: relax.Type, make: Callable[[relax.TensorType], relax.Expr]) -> relax.Expr:
    return relax.Tuple([_each(f, make) for f in ty.fields]) if hasattr(ty, "fields") else make(ty)


def _full(ty: relax.TensorType, value: float) -> relax.Expr:
    """The value in every element; an infinity is the end of the whole numbers' range."""
    dtype = str(ty.dtype)
    if "float" not in dtype and math.isinf(value):
        info = np.iinfo(numpy_dtype(dtype))
        value = info.max if value > 0 else info.min
    number = relax.const(value if "float" in dtype else int(value), dtype)
    return relax.op.broadcast_to(number, extents(ty)) if extents(ty) else relax.op.add(number, relax.const(0, dtype))
