"""Relax operators -> call_tir of TE kernels. In: any Relax module. Out: main calls PrimFuncs only.

Contractions and the operators whose upstream legalization is slow or departs from PyTorch's values
use the project's own TE definitions; everything else keeps upstream's (topi).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilegrad._base.tvm import relax, te, tvm
from tilegrad.relax_ext import vjp  # noqa: F401  (registers our operators and their lowerings)
from tilegrad.schedules.te.conv import conv
from tilegrad.schedules.te.matmul import matmul

Legalize = Callable[[relax.BlockBuilder, relax.Call], relax.Expr]


def _ints(values: Any) -> tuple[int, ...]:
    return tuple(int(v) for v in values)


def _matmul(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
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


LEGALIZE: dict[str, Legalize] = {
    "relax.matmul": _matmul,
    "relax.nn.conv1d": _conv("NCW"),
    "relax.nn.conv2d": _conv("NCHW"),
    "relax.nn.conv3d": _conv("NCDHW"),
}


def legalize(mod: tvm.IRModule) -> tvm.IRModule:
    """Every operator call of ``main`` becomes a ``call_tir``."""
    return relax.transform.LegalizeOps(LEGALIZE)(mod)
