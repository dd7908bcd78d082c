"""Rebuild a Graph's ``main`` binding by binding. What passes that replace single bindings share.

In: a module and a rule. Out: the module with each binding's value replaced by what the rule answers; what is no
longer used is dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from tilegrad._base.tvm import ir, relax, tvm, tvm_ffi


class Scope:
    """What a rule may look at: the values bound so far (in the new main) and how often each old var is used."""

    def __init__(self, mod: tvm.IRModule) -> None:
        self.bound: dict[relax.Var, relax.Expr] = {}
        self.uses: Counter[relax.Var] = Counter()
        for block in mod["main"].body.blocks:
            for b in block.bindings:
                self.uses.update(_vars(b.value))
        self.uses.update(_vars(mod["main"].body.body))
        self.builder = relax.BlockBuilder(mod)
        self._old: dict[relax.Var, relax.Var] = {}

    def emit(self, expr: relax.Expr) -> relax.Var:
        """Bind an expression in the new main."""
        if isinstance(expr, (relax.Var, relax.Tuple)):  # a rule may answer with the elements of a tuple
            return relax.Tuple([self.emit(f) for f in expr.fields]) if isinstance(expr, relax.Tuple) else expr
        var = self.builder.emit(expr)
        self.bound[var] = self.builder.lookup_binding(var)
        return var

    def note(self, new: relax.Expr, old: relax.Var) -> None:
        """Remember which old var a new one stands for; one that stands for several counts as shared."""
        self.uses[old] += self.uses[self._old[new]] if new in self._old else 0
        self._old[new] = old

    def shared(self, expr: relax.Expr) -> bool:
        """Whether the value is read more than once."""
        return self.uses[self._old[expr]] > 1 if expr in self._old else True

    def call_of(self, expr: relax.Expr, name: str) -> relax.Call | None:
        """The call of operator ``name`` that ``expr`` is bound to, if it is."""
        value = self.bound.get(expr) if isinstance(expr, relax.Var) else None
        return value if isinstance(value, relax.Call) and getattr(value.op, "name", "") == name else None


Rule = Callable[[Scope, relax.Var, relax.Call], relax.Expr | None]
"""(scope, old var, call with new arguments) -> replacement, or None to keep the call."""


def rewrite(mod: tvm.IRModule, rule: Rule) -> tvm.IRModule:
    """Apply ``rule`` to every call bound in ``main``, in order."""
    main = mod["main"]
    scope = Scope(mod)
    new: dict[relax.Var, relax.Expr] = {}
    scope.builder._begin_dataflow_block()
    for block in main.body.blocks:
        for b in block.bindings:
            value = _with(b.value, new)
            if isinstance(value, relax.TupleGetItem) and isinstance(value.tuple_value, relax.Tuple):
                value = value.tuple_value.fields[value.index]
            replacement = rule(scope, b.var, value) if isinstance(value, relax.Call) else None
            new[b.var] = scope.emit(value if replacement is None else replacement)
            scope.note(new[b.var], b.var)
    result = scope.builder.emit_output(_with(main.body.body, new))
    body = relax.SeqExpr([scope.builder._end_block()], result)
    func = relax.Function(main.params, body, result.ty, is_pure=True).with_attrs(main.attrs)
    scope.builder.update_func(mod.get_global_var("main"), func)
    return relax.transform.DeadCodeElimination()(scope.builder.get())


def _vars(expr: relax.Expr) -> list[relax.Var]:
    found: list[relax.Var] = []
    tvm_ffi.structural_walk(expr, (ir.Var, lambda v: found.append(v)))
    return found


def _with(expr: relax.Expr, values: Mapping[relax.Var, relax.Expr]) -> relax.Expr:
    return tvm_ffi.structural_map(expr, (ir.Var, lambda v: values.get(v, v))) if values else expr
