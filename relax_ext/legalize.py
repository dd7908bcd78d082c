"""Relax operators -> call_tir of TE kernels. In: any Relax module. Out: main calls PrimFuncs only.

Contractions and the operators whose upstream legalization is slow or departs from PyTorch's values
use the project's own TE definitions; everything else keeps upstream's (topi).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilegrad._base.tvm import relax, te, tirx, topi, tvm
from tilegrad.relax_ext import vjp  # noqa: F401  (registers our operators and their lowerings)
from tilegrad.relax_ext.vjp.expressions import scalar_constant
from tilegrad.schedules.te.conv import conv
from tilegrad.schedules.te.matmul import matmul

Legalize = Callable[[relax.BlockBuilder, relax.Call], relax.Expr]


def _ints(values: Any) -> tuple[int, ...]:
    return tuple(int(v) for v in values)


def _constant(bb: relax.BlockBuilder, call: relax.Call, value: float) -> relax.Expr:
    """The call's result filled with one value: a sum or mean of no elements."""
    shape, dtype = _ints(call.ty.shape), str(call.ty.dtype)
    return bb.call_te(lambda: te.compute(shape, lambda *_: tirx.const(value, dtype), name="full"), primfunc_name_hint="full")


def _clip(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Bounds in the tensor's own type; upstream's are float32."""
    dtype = str(call.ty.dtype)
    low, high = (tirx.const(float(b.value) if "float" in dtype else int(b.value), dtype) for b in call.args[1:])

    def clip(x: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda *i: tirx.min(tirx.max(x(*i), low), high), name="clip")

    return bb.call_te(clip, call.args[0], primfunc_name_hint="clip")


def _mean(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    if 0 in _ints(call.args[0].ty.shape) and 0 not in _ints(call.ty.shape):
        return _constant(bb, call, float("nan"))
    return call.op.get_attr("FLegalize")(bb, call)


def _matmul(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    if int(call.args[0].ty.shape[-1]) == 0:
        return _constant(bb, call, 0.0)
    return bb.call_te(matmul, call.args[0], call.args[1], out_dtype=str(call.ty.dtype), primfunc_name_hint="matmul")


def _conv(layout: str) -> Legalize:
    """Relax conv attributes -> te.conv; other layouts than NC* keep upstream's legalization."""

    def legalize(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        a = call.attrs
        if str(a.data_layout) != layout or str(a.kernel_layout) != "OI" + layout[2:]:
            return call.op.get_attr("FLegalize")(bb, call)
        n = len(layout) - 2
        pad = _ints(a.padding)
        before, after = pad[:n], pad[n:]

        def te_conv(x: te.Tensor, w: te.Tensor) -> te.Tensor:
            return conv(x, w, _ints(a.strides), tuple(zip(before, after, strict=True)), _ints(a.dilation), int(a.groups))

        return bb.call_te(te_conv, call.args[0], call.args[1], primfunc_name_hint=f"conv{n}d")

    return legalize


def _by_zero(op: str, compute: Callable[[te.Tensor, te.Tensor], te.Tensor]) -> Legalize:
    """Keep a constant zero a tensor: upstream writes it into the definition, where 0 x becomes 0 for any x."""

    def legalize(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        if not any(scalar_constant(a) == 0 for a in call.args):
            return call.op.get_attr("FLegalize")(bb, call)
        return bb.call_te(compute, *call.args, primfunc_name_hint=op)

    return legalize


LEGALIZE: dict[str, Legalize] = {
    "relax.multiply": _by_zero("multiply", topi.multiply),
    "relax.divide": _by_zero("divide", topi.divide),
    "relax.clip": _clip,
    "relax.mean": _mean,
    "relax.variance": _mean,
    "relax.std": _mean,
    "relax.matmul": _matmul,
    "relax.nn.conv1d": _conv("NCW"),
    "relax.nn.conv2d": _conv("NCHW"),
    "relax.nn.conv3d": _conv("NCDHW"),
}


def legalize(mod: tvm.IRModule) -> tvm.IRModule:
    """Every operator call of ``main`` becomes a ``call_tir``."""
    return relax.transform.LegalizeOps(LEGALIZE)(mod)
