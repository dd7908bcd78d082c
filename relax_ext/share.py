"""Compute equal things once.

In: a Relax module after differentiation. Out: a call that repeats an earlier one (same operator, attributes and arguments) is
that one's result; ``tilegrad.stop_gradient`` has done its work and goes. Recomputation behind ``tilegrad.barrier`` stays: its
arguments are the barrier's.
"""

from __future__ import annotations

from tilegrad._base.tvm import relax, tvm, tvm_ffi
from tilegrad.relax_ext.rewrite import Scope, rewrite


def share(mod: tvm.IRModule) -> tvm.IRModule:
    """An optimizer's ``1 - beta`` is then one kernel, not one a parameter."""
    known: dict[tvm_ffi.StructuralKey, relax.Var] = {}

    def rule(scope: Scope, _: relax.Var, call: relax.Call) -> relax.Expr:
        if getattr(call.op, "name", "") == "tilegrad.stop_gradient":
            return call.args[0]
        key = tvm_ffi.StructuralKey(call)
        if key not in known:
            known[key] = scope.emit(call)
        return known[key]

    return rewrite(mod, rule)
