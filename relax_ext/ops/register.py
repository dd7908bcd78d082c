"""How an operator that Relax lacks is added from Python, so that LegalizeOps and relax.build work with it as with any other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm.ir import _ffi_api as _ir_ffi

from tilegrad._base.tvm import ir, relax, te, tirx

Infer = Callable[..., relax.Type]
Compute = Callable[..., "te.Tensor | list[te.Tensor]"]

REGISTERED: dict[str, str] = {}
"""Operator name -> one sentence on what it computes."""


def register(name: str, infer: Infer, compute: Compute) -> Callable[..., ir.Call]:
    """Add the pure operator ``name`` and return the function that makes calls of it.

    Parameters
    ----------
    name: ``tilegrad.<operator>``; the TE kernel is named after its last part.
    infer: ``infer(*argument types, **attributes) -> type of the result``.
    compute: ``compute(*tensors, **attributes)``: the TE definition; its docstring is the operator's.

    The returned function takes Relax expressions, then attributes by keyword (numbers, strings, None and
    tuples of them), which the call carries as ``ir.DictAttrs``.
    """
    kernel = name.rsplit(".", 1)[-1]
    _ir_ffi.RegisterOp(name, " ".join((compute.__doc__ or "").split()))
    op = ir.Op.get(name)

    def infer_type(call: ir.Call, _: relax.BlockBuilder) -> relax.Type:
        return infer(*(a.ty for a in call.args), **attributes(call))

    def legalize(builder: relax.BlockBuilder, call: ir.Call) -> relax.Expr:
        attrs = attributes(call)
        return builder.call_te(lambda *tensors: compute(*tensors, **attrs), *call.args, primfunc_name_hint=kernel)

    def make(*args: relax.Expr, **attrs: Any) -> ir.Call:
        return ir.Call(op, list(args), ir.make_node("ir.DictAttrs", **attrs))

    ir.register_op_attr(name, "FInferType", infer_type)
    ir.register_op_attr(name, "FPurity", True)
    ir.register_op_attr(name, "FLegalize", legalize)
    REGISTERED[name] = " ".join((compute.__doc__ or "").split())
    make.__name__, make.__doc__ = kernel, compute.__doc__
    return make


def attributes(call: ir.Call) -> dict[str, Any]:
    """The attributes of a registered operator's call as plain Python values."""
    return {str(k): plain(v) for k, v in call.attrs.items()} if call.attrs is not None else {}


def plain(value: Any) -> Any:
    """TVM's attribute value as int, float, bool, str, None or a tuple of them."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, tirx.IntImm):
        return bool(value.value) if str(value.ty.dtype) == "bool" else int(value.value)
    if isinstance(value, tirx.FloatImm):
        return float(value.value)
    if hasattr(value, "__len__") and hasattr(value, "__getitem__"):
        return tuple(plain(v) for v in value)
    return value


def shape(ty: relax.TensorType) -> tuple[int, ...]:
    """Static extents of a tensor type."""
    return tuple(int(d) for d in ty.shape)


def tensor(extents: Any, dtype: Any) -> relax.TensorType:
    """A tensor type with static extents."""
    return relax.TensorType(tuple(int(d) for d in extents), str(dtype))
