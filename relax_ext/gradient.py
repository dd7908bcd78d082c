"""Reverse-mode differentiation: one walk over a builder's bindings, from the results back to what is asked for.

The walk owns everything that is common to all operators: which nodes lie between, accumulation, un-broadcasting,
tuples, dtypes, recomputation and users' own rules. What is particular to an operator is its rule (``relax_ext.vjp``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tilegrad._base.errors import DTypeError, ShapeError, UsageError
from tilegrad._base.tvm import ir, relax
from tilegrad.relax_ext import region as regions
from tilegrad.relax_ext.graph import GraphBuilder
from tilegrad.relax_ext.missing_rules import raise_if_rules_are_missing
from tilegrad.relax_ext.vjp import RULES, ZERO, Rule
from tilegrad.relax_ext.vjp.expressions import op_name, shape_of, used_vars
from tilegrad.relax_ext.vjp.values import Node, Tape, Value

Binding = tuple[relax.Var, relax.Expr]
Cotangent = Any  # a Value; for a var of tuple type a list of Values and Nones


def vjp(
    builder: GraphBuilder, outputs: Sequence[relax.Var], cotangents: Sequence[relax.Expr], wrt: Sequence[relax.Var]
) -> list[relax.Var | None]:
    """Emit the vector-Jacobian product of ``outputs`` with respect to ``wrt`` into ``builder``.

    ``cotangents[i]`` has the shape and dtype of ``outputs[i]``. The result has one var per element of ``wrt``, of its
    shape and dtype, or None where no output depends on it. The backward bindings are ordinary ones, so ``vjp`` can
    be applied to them again, to any order.

    Raises ShapeError and DTypeError for cotangents that do not fit and for non-float outputs or ``wrt``, and one
    UnsupportedOperatorError that lists every operator on the way that has no rule.
    """
    _check(outputs, cotangents, wrt)
    wanted = {v for v in wrt if isinstance(v, relax.Var)}
    spans: list[regions.Region] = builder.regions
    active = active_vars(builder.bindings, wanted, spans)
    raise_if_rules_are_missing(builder, needed_bindings(builder.bindings, outputs, active, spans))
    builder.forward = len(builder.bindings)
    tape = Tape(builder)
    walk = Walk(tape, list(builder.bindings), wanted, spans, active)
    for out, g in zip(outputs, cotangents, strict=True):
        walk.contribute(out, tape.value(g))
    found = walk.run()
    results = [found.get(v) for v in wrt]
    tape.flush([r.expr for r in results if r is not None])
    return [builder.emit(r.expr) if r is not None else None for r in results]


def grad(builder: GraphBuilder, loss: relax.Var, wrt: Sequence[relax.Var]) -> list[relax.Var | None]:
    """``vjp`` of a scalar float ``loss`` with cotangent 1. Raises ShapeError when the loss has more than one element."""
    if int(np.prod(shape_of(loss))) != 1:
        raise ShapeError(
            "grad, argument 'loss'", f"shape {shape_of(loss)}", "a scalar",
            "Reduce it with sum() or mean(), or use vjp with a cotangent of that shape.",
        )  # fmt: skip
    _check_float("grad, argument 'loss'", loss)
    return vjp(builder, [loss], [relax.const(np.ones(shape_of(loss)), str(loss.ty.dtype))], wrt)


class Walk:
    """One reverse walk over ``bindings``; cotangents are kept per var until the var's own binding is reached."""

    def __init__(
        self,
        tape: Tape,
        bindings: Sequence[Binding],
        wrt: set[relax.Var],
        spans: Sequence[regions.Region] = (),
        active: set[relax.Var] | None = None,
    ) -> None:
        self.tape, self.bindings, self.wrt, self.spans = tape, bindings, wrt, spans
        self.active = active_vars(bindings, wrt, spans) if active is None else active
        # Of regions that end together the outermost counts.
        self._spans = {s.stop: s for s in sorted(spans, key=lambda s: s.stop - s.start)}
        self._cotangents: dict[relax.Var, Cotangent] = {}

    def contribute(self, expr: relax.Expr, g: Cotangent | None) -> None:
        """Add ``g`` to the cotangent of ``expr``, fitted to its shape and dtype; ignored where nobody asks for it."""
        if g is None:
            return
        if isinstance(expr, relax.Tuple):
            for field, part in zip(expr.fields, g, strict=True):
                self.contribute(field, part)
        elif not isinstance(expr, relax.Var) or expr not in self.active:
            return
        elif isinstance(g, Value):
            self._cotangents[expr] = _sum(self._cotangents.get(expr), fit(g, expr))
        else:
            old = self._cotangents.get(expr) or [None] * len(g)
            new = [fit(part, ty) if part is not None else None for part, ty in zip(g, expr.ty.fields, strict=True)]
            self._cotangents[expr] = [_sum(a, b) for a, b in zip(old, new, strict=True)]

    def cotangent(self, var: relax.Var) -> Cotangent | None:
        """What has been contributed to ``var`` so far."""
        return self._cotangents.get(var)

    def run(self) -> dict[relax.Var, Cotangent]:
        """Walk to the start; returns the cotangents of ``wrt`` that exist."""
        at = len(self.bindings)
        while at > 0:
            span = self._spans.get(at)
            if span is not None and span.start < at:
                span.pull(self)
                at = span.start
                continue
            at -= 1
            var, expr = self.bindings[at]
            g = self._cotangents.get(var)
            if g is not None:
                self.tape.where = self.tape.builder.where.get(var)
                self._step(var, expr, g)
        return {v: self._cotangents[v] for v in self.wrt if v in self._cotangents}

    def _step(self, var: relax.Var, expr: relax.Expr, g: Cotangent) -> None:
        """Send the cotangent of one binding to what it reads."""
        if isinstance(expr, (relax.Tuple, relax.Var)):
            self.contribute(expr, g)
        elif isinstance(expr, relax.TupleGetItem):
            parts: list[Value | None] = [None] * len(expr.tuple_value.ty.fields)
            parts[expr.index] = g
            self.contribute(expr.tuple_value, parts)
        elif isinstance(expr, ir.Call):
            node = Node(self.tape, var, expr)
            for arg, part in zip(expr.args, self._pull_call(RULES[node.op], node, g), strict=True):
                self.contribute(arg, part)

    def _pull_call(self, rule: Rule, node: Node, g: Cotangent) -> list[Cotangent | None]:
        if rule.kind == "composition":
            return self._pull_composition(rule, node, g)
        parts = rule.function(node, g)
        parts = [parts] if parts is None or isinstance(parts, Value) else list(parts)
        n = len(node.call.args)
        if len(parts) > n:
            raise UsageError(f"VJP rule of {node.op}", f"{len(parts)} cotangents", f"at most {n}, one per argument")
        return parts + [None] * (n - len(parts))

    def _pull_composition(self, rule: Rule, node: Node, g: Cotangent) -> list[Cotangent | None]:
        """Differentiate the operator's composition in place of the operator."""
        outer, self.tape.leaves = self.tape.leaves, set(used_vars(node.call))
        results = rule.function(node)
        self.tape.leaves = outer
        pairs = [(results, g)] if isinstance(results, Value) else list(zip(results, g, strict=True))
        inputs = {v for v in used_vars(node.call) if v in self.active}
        inner = Walk(self.tape, self.tape.closure([r.expr for r, _ in pairs], inputs), inputs)
        for result, part in pairs:
            inner.contribute(result.expr, part)
        found = inner.run()
        parts = [_take(found, arg) for arg in node.call.args]
        return parts


def active_vars(bindings: Iterable[Binding], wrt: set[relax.Var], spans: Sequence[regions.Region] = ()) -> set[relax.Var]:
    """``wrt`` and the float vars that depend on it through operators whose derivative is not zero everywhere."""
    own = regions.own_inputs(spans)
    active = set(wrt)
    for var, expr in bindings:
        reached = any(v in active for v in own.get(var) or used_vars(expr))
        if reached and _has_float(var.ty) and (var in own or not isinstance(expr, ir.Call) or op_name(expr) not in ZERO):
            active.add(var)
    return active


def needed_bindings(
    bindings: Sequence[Binding], outputs: Iterable[relax.Var], active: set[relax.Var], spans: Sequence[regions.Region] = ()
) -> list[Binding]:
    """The bindings that ``outputs`` and the differentiated inputs (``active_vars``) have between them."""
    own = regions.own_inputs(spans)
    wanted = set(outputs)
    found: list[Binding] = []
    for var, expr in reversed(bindings):
        if var in wanted and var in active:
            reads = own.get(var) or used_vars(expr)
            if any(v in active for v in reads):
                found.append((var, expr))
                wanted.update(reads)
    return found[::-1]


def fit(g: Value, expr: relax.Expr | relax.Type) -> Value:
    """``g`` with the shape and dtype of ``expr``: summed over the axes that broadcasting repeated, and cast."""
    ty = expr if isinstance(expr, relax.TensorType) else expr.ty
    shape = tuple(int(d) for d in ty.shape)
    g = g.broadcast_to(np.broadcast_shapes(g.shape, shape))
    extra = g.ndim - len(shape)
    axes = [i for i, d in enumerate(g.shape) if i < extra or (shape[i - extra] == 1 and d != 1)]
    return g.sum(axes).reshape(shape).astype(str(ty.dtype))


def _sum(a: Value | None, b: Value | None) -> Value | None:
    return b if a is None else a if b is None else a + b


def _take(found: dict[relax.Var, Cotangent], arg: relax.Expr) -> Cotangent | None:
    """The cotangent found for an argument; each var's is handed out once, since an argument may come twice."""
    if isinstance(arg, relax.Tuple):
        return [_take(found, f) for f in arg.fields]
    return found.pop(arg, None) if isinstance(arg, relax.Var) else None


def _has_float(ty: relax.Type) -> bool:
    if isinstance(ty, relax.TupleType):
        return any(_has_float(f) for f in ty.fields)
    return isinstance(ty, relax.TensorType) and "float" in str(ty.dtype)


def _check(outputs: Sequence[relax.Var], cotangents: Sequence[relax.Expr], wrt: Sequence[relax.Var]) -> None:
    if len(outputs) != len(cotangents):
        raise UsageError(
            "vjp, argument 'cotangents'", f"{len(cotangents)} of them", f"one for each of the {len(outputs)} outputs"
        )
    for i, (out, g) in enumerate(zip(outputs, cotangents, strict=True)):
        _check_float(f"vjp, output {i}", out)
        if shape_of(out) != shape_of(g):
            raise ShapeError(f"vjp, cotangent {i}", f"shape {shape_of(g)}", f"the output's shape {shape_of(out)}")
        if str(out.ty.dtype) != str(g.ty.dtype):
            raise DTypeError(f"vjp, cotangent {i}", str(g.ty.dtype), f"the output's {out.ty.dtype}")
    for i, var in enumerate(wrt):
        _check_float(f"vjp, argument {i} of 'wrt'", var)


def _check_float(where: str, var: relax.Var) -> None:
    if not isinstance(var.ty, relax.TensorType) or not _has_float(var.ty):
        got = str(var.ty.dtype) if isinstance(var.ty, relax.TensorType) else type(var.ty).__name__
        raise DTypeError(where, got, "a float tensor", "Gradients exist for float tensors only; cast first if you mean it.")
