"""Scalar constants become kernels without inputs, which fusion writes into whoever reads them.

In: a legalized module. Out: no kernel takes a 0-d constant as an argument. Larger constants stay.
"""

from __future__ import annotations

from tilegrad._base.tvm import ir, relax, te, tirx, tvm
from tilegrad.relax_ext.rewrite import Scope, rewrite


def literals(mod: tvm.IRModule) -> tvm.IRModule:
    """Replace 0-d constant arguments of every call_tir."""
    return rewrite(mod, _rule)


def _rule(scope: Scope, var: relax.Var, call: relax.Call) -> relax.Expr | None:
    if getattr(call.op, "name", "") != "relax.call_tir":
        return None
    args = list(call.args[1].fields)
    if not any(_is_scalar(a) for a in args):
        return None
    new = relax.Tuple([scope.emit(_literal(scope, a)) if _is_scalar(a) else a for a in args])
    return ir.Call(call.op, [call.args[0], new, *call.args[2:]], call.attrs, call.ty_args)


def _is_scalar(arg: relax.Expr) -> bool:
    return isinstance(arg, ir.GenericConst) and isinstance(arg.ty, relax.TensorType) and len(arg.ty.shape) == 0


def _literal(scope: Scope, arg: ir.GenericConst) -> relax.Call:
    value = tirx.const(arg.value.numpy().item(), str(arg.ty.dtype))
    func = te.create_prim_func([te.compute((), lambda: value, name="literal")]).without_attr("global_symbol")
    return relax.call_tir(scope.builder.add_func(func, "literal"), relax.Tuple([]), arg.ty)
