"""Lowering of Relax operators that come without one, or with a wrong one; importing this registers them."""

from __future__ import annotations

from tilegrad._base.tvm import ir, relax, te, topi


def _ewise_fma(builder: relax.BlockBuilder, call: ir.Call) -> relax.Expr:
    def fma(x: te.Tensor, y: te.Tensor, z: te.Tensor) -> te.Tensor:
        return topi.add(topi.multiply(x, y), z)

    return builder.call_te(fma, *call.args, primfunc_name_hint="ewise_fma")


ir.register_op_attr("relax.ewise_fma", "FLegalize", _ewise_fma, level=11)
