"""The walker as an ordinary pass: any IRModule in, the same with ``<function>_adjoint`` beside the function out."""

from __future__ import annotations

from collections.abc import Sequence

from tilegrad._base.errors import ShapeError, UnsupportedOperatorError, UsageError
from tilegrad._base.tvm import relax, tvm
from tilegrad.relax_ext.gradient import grad
from tilegrad.relax_ext.graph import GraphBuilder
from tilegrad.relax_ext.region import substitute


@tvm.transform.module_pass(opt_level=0, name="tilegrad.Gradient")
class Gradient:
    """Add ``<function>_adjoint``: the function's result and the gradients of its scalar result.

    Parameters
    ----------
    function: name of a Relax function of the module; static shapes, no control flow.
    require_grads: indices of the parameters to differentiate by; every float tensor parameter when None.
    target_index: which field of the result is the scalar to differentiate, when the result is a tuple.

    The adjoint returns ``(result, (gradient, ...))``; a parameter without influence gets zeros. Everything else in
    the module stays as it is. Raises UnsupportedOperatorError (every operator without a rule at once, and control
    flow), ShapeError (symbolic shapes, a target that is not a scalar) and UsageError (no such function).
    """

    def __init__(self, function: str = "main", require_grads: Sequence[int] | None = None, target_index: int = 0) -> None:
        self.function, self.require_grads, self.target_index = function, require_grads, target_index

    def transform_module(self, mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        """The pass itself."""
        names = [g.name_hint for g, f in mod.functions_items() if isinstance(f, relax.Function)]
        if self.function not in names:
            raise UsageError(
                "Gradient, argument 'function'", repr(self.function), f"one of {', '.join(names) or 'the functions (none)'}"
            )
        adjoint = self._adjoint(mod[self.function])
        result = mod.clone()
        result[f"{self.function}_adjoint"] = adjoint
        return result

    def _adjoint(self, func: relax.Function) -> relax.Function:
        params = [relax.Var(p.name, p.ty) for p in func.params]
        builder, result = _inline(func, params)
        target = self._target(builder, result)
        wanted = self._wanted(params)
        grads = [
            g if g is not None else builder.emit(relax.op.zeros_like(p))
            for p, g in zip(wanted, grad(builder, target, wanted), strict=True)
        ]
        bb = builder.block_builder
        out = bb.emit_output(bb.normalize(relax.Tuple([result, relax.Tuple(grads)])))
        body = relax.SeqExpr([bb._end_block()], out)
        made = relax.Function(params, body, out.ty, is_pure=True)
        for key, value in (func.attrs or {}).items():
            made = made.with_attr(key, value)
        return made.with_attr("global_symbol", f"{self.function}_adjoint")

    def _target(self, builder: GraphBuilder, result: relax.Expr) -> relax.Var:
        if not isinstance(result.ty, relax.TupleType):
            return builder.emit(result)
        count = len(result.ty.fields)
        if not 0 <= self.target_index < count:
            raise UsageError("Gradient, argument 'target_index'", str(self.target_index), f"0 to {count - 1}")
        fields = result.fields if isinstance(result, relax.Tuple) else [relax.TupleGetItem(result, i) for i in range(count)]
        return builder.emit(fields[self.target_index])

    def _wanted(self, params: Sequence[relax.Var]) -> list[relax.Var]:
        if self.require_grads is None:
            return [p for p in params if isinstance(p.ty, relax.TensorType) and "float" in str(p.ty.dtype)]
        wrong = [i for i in self.require_grads if not 0 <= i < len(params)]
        if wrong:
            raise UsageError("Gradient, argument 'require_grads'", f"index {wrong[0]}", f"0 to {len(params) - 1}")
        return [params[i] for i in self.require_grads]


def _inline(func: relax.Function, params: Sequence[relax.Var]) -> tuple[GraphBuilder, relax.Expr]:
    """The function's bindings, with new parameters, in a builder; and its result."""
    for p in params:
        for ty in p.ty.fields if isinstance(p.ty, relax.TupleType) else [p.ty]:
            if isinstance(ty, relax.TensorType) and not (ty.shape is not None and all(hasattr(d, "value") for d in ty.shape)):
                raise ShapeError(
                    f"Gradient, parameter '{p.name}'",
                    str(ty),
                    "a static shape",
                    "Bind symbolic dimensions first: relax.transform.BindSymbolicVars.",
                )
    builder = GraphBuilder()
    new: dict[relax.Var, relax.Expr] = dict(zip(func.params, params, strict=True))
    for block in func.body.blocks:
        for binding in block.bindings:
            if isinstance(binding.value, (relax.If, relax.Function)):
                kind = "control flow" if isinstance(binding.value, relax.If) else "a local function"
                raise UnsupportedOperatorError("Gradient", kind, "a straight line of bindings", "Inline or unroll it first.")
            value = substitute(binding.value, new)
            new[binding.var] = (
                value if isinstance(value, relax.Var) else builder.emit(value, str(binding.span.line) if binding.span else None)
            )
    return builder, substitute(func.body.body, new)
