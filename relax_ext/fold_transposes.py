"""Move transposes to where they are free: the operands of contractions.

In: a Relax module. Out: transposes of transposes are one or none; the transpose of a product (whose only use it is)
is the product of the transposes, in the other order. What is not a transpose or a product is untouched.
"""

from __future__ import annotations

from tilegrad._base.tvm import relax, tvm
from tilegrad.relax_ext.rewrite import Scope, rewrite


def fold_transposes(mod: tvm.IRModule) -> tvm.IRModule:
    """The gradient of ``x @ W.T`` by W ends as ``g.T @ x``, ready for the update in W's own layout."""
    return rewrite(mod, _rule)


def _axes(call: relax.Call) -> list[int]:
    n = len(call.args[0].ty.shape)
    axes = call.attrs.axes
    return list(range(n))[::-1] if axes is None else [int(a) % n for a in axes]


def _rule(scope: Scope, var: relax.Var, call: relax.Call) -> relax.Expr | None:
    if getattr(call.op, "name", "") != "relax.permute_dims":
        return None
    axes = _axes(call)
    if axes == list(range(len(axes))):
        return call.args[0]
    inner = scope.call_of(call.args[0], "relax.permute_dims")
    if inner is not None:
        before = _axes(inner)
        return _permute(scope, inner.args[0], [before[a] for a in axes])
    product = scope.call_of(call.args[0], "relax.matmul")
    if product is None or axes != _swap_last(len(axes)) or scope.shared(call.args[0]):
        return None
    a, b = product.args
    if len(a.ty.shape) != len(axes) or len(b.ty.shape) != len(axes):
        return None  # a vector operand or a broadcast batch: nothing to gain
    swap = _swap_last(len(axes))
    return relax.op.matmul(_permute(scope, b, swap), _permute(scope, a, swap), out_dtype=product.attrs.out_dtype)


def _swap_last(n: int) -> list[int]:
    return [*range(n - 2), n - 1, n - 2]


def _permute(scope: Scope, x: relax.Expr, axes: list[int]) -> relax.Expr:
    inner = scope.call_of(x, "relax.permute_dims")
    if inner is not None:
        before = _axes(inner)
        return _permute(scope, inner.args[0], [before[a] for a in axes])
    return x if axes == list(range(len(axes))) else scope.emit(relax.op.permute_dims(x, axes))
