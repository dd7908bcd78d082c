"""Sums of short products become one product with a longer sum: ``a1 @ b1 + a2 @ b2 + ... = [a1 a2 ...] @ [b1; b2; ...]``.

In: a Relax module, transposes folded. Out: the gradient of a weight that every step of a recurrence multiplies with is one
product over all steps. Untouched are products whose operands would have to be copied to lie side by side for more than the
running total costs, products long enough to hide that traffic, and graphs that recompute, whose operands should not live on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from tilegrad._base.tvm import ir, relax, tvm
from tilegrad.relax_ext.rewrite import Scope, rewrite

SHORT = 64
"""Of a longer product the running total, 8 bytes for 2 K operations, is a small part. Measured with K = 32 and a total that
stays in L2: the joined product takes 0.9 of the time."""

_VIEWS = ("relax.reshape", "relax.expand_dims", "relax.squeeze")
_MOVES = ("relax.permute_dims", "relax.strided_slice", "relax.broadcast_to", "relax.take", "relax.nn.pad")


@dataclass(frozen=True)
class _Product:
    """``a @ b``; ``rows`` is what ``a`` is the transpose of, if it is one."""

    a: relax.Expr
    b: relax.Expr
    rows: relax.Expr | None

    @staticmethod
    def of(scope: Scope, expr: relax.Expr) -> _Product | None:
        """The short product of computed matrices that ``expr`` is and that nobody else reads."""
        call = scope.call_of(expr, "relax.matmul")
        if call is None or scope.shared(expr) or str(call.ty.dtype) != str(call.args[0].ty.dtype):
            return None
        a, b = call.args
        turned = scope.call_of(a, "relax.permute_dims")
        rows = turned.args[0] if turned is not None else None
        short = len(a.ty.shape) == len(b.ty.shape) == 2 and int(b.ty.shape[0]) <= SHORT
        return _Product(a, b, rows) if short and _computed(scope, a if rows is None else rows) and _computed(scope, b) else None

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for products that can be joined."""
        return int(self.a.ty.shape[0]), int(self.b.ty.shape[1]), str(self.a.ty.dtype), self.rows is None

    @property
    def copied(self) -> int:
        """Elements to copy for a join: what is joined along its rows is written to its place at once."""
        return math.prod(map(int, self.a.ty.shape)) if self.rows is None else 0


def join_products(mod: tvm.IRModule) -> tvm.IRModule:
    """One product over time for the weights of a recurrence."""
    inner, recomputes = _inner_sums(mod)
    if recomputes:
        return mod
    partial: set[relax.Expr] = set()

    def rule(scope: Scope, var: relax.Var, call: relax.Call) -> relax.Expr | None:
        if not _is_sum(call):
            return None
        if var in inner:
            partial.add(new := scope.emit(call))
            return new
        terms = _terms(scope, call, partial)
        return _joined(scope, terms) if len(terms) > 1 else None

    return rewrite(mod, rule)


def _inner_sums(mod: tvm.IRModule) -> tuple[set[relax.Var], bool]:
    """The sums that only another sum reads, and whether anything is computed a second time to save memory."""
    scope, sums, recomputes = Scope(mod), set(), False
    read_by_sum: set[relax.Expr] = set()
    for block in mod["main"].body.blocks:
        for b in block.bindings:
            recomputes |= isinstance(b.value, ir.Call) and getattr(b.value.op, "name", "") == "tilegrad.barrier"
            if isinstance(b.value, ir.Call) and _is_sum(b.value):
                sums.add(b.var)
                read_by_sum.update(b.value.args)
    return {v for v in sums if v in read_by_sum and scope.uses[v] == 1}, recomputes


def _is_sum(call: relax.Call) -> bool:
    shapes = [[int(d) for d in e.ty.shape] for e in (*call.args, call)] if getattr(call.op, "name", "") == "relax.add" else []
    return bool(shapes) and len(shapes[0]) == 2 and shapes[0] == shapes[1] == shapes[2]


def _terms(scope: Scope, call: relax.Call, partial: set[relax.Expr]) -> list[relax.Expr]:
    """What a sum of sums adds up."""
    found: list[relax.Expr] = []
    todo = list(reversed(call.args))
    while todo:
        e = todo.pop()
        if e in partial:
            todo += reversed(scope.bound[e].args)
        else:
            found.append(e)
    return found


def _joined(scope: Scope, terms: Sequence[relax.Expr]) -> relax.Expr | None:
    """The sum with products joined; None where nothing is to be gained."""
    products = {t: p for t in terms if (p := _Product.of(scope, t)) is not None}
    order = {v: i for i, v in enumerate(scope.bound)}
    out = [t for t in terms if t not in products]
    gained = False
    for key in dict.fromkeys(p.key for p in products.values()):
        alike = [t for t, p in products.items() if p.key == key]
        group = sorted((products[t] for t in alike), key=lambda p: order[p.b])
        m, n = int(group[0].a.ty.shape[0]), int(group[0].b.ty.shape[1])
        if len(group) > 1 and sum(p.copied for p in group) < (len(group) - 1) * m * n:
            out.append(scope.emit(_product(scope, group)))
            gained = True
        else:
            out += alike
    return reduce(lambda x, y: scope.emit(relax.op.add(x, y)), out) if gained else None


def _product(scope: Scope, group: Sequence[_Product]) -> relax.Expr:
    """All of them as one."""
    b = scope.emit(relax.op.concat([p.b for p in group], 0))
    if group[0].rows is None:
        return relax.op.matmul(scope.emit(relax.op.concat([p.a for p in group], 1)), b)
    rows = scope.emit(relax.op.concat([p.rows for p in group], 0))
    return relax.op.matmul(scope.emit(relax.op.permute_dims(rows, [1, 0])), b)


def _computed(scope: Scope, expr: relax.Expr) -> bool:
    """Whether a kernel computes the value, which then may write it anywhere."""
    value = scope.bound.get(expr) if isinstance(expr, relax.Var) else None
    while isinstance(value, ir.Call) and getattr(value.op, "name", "") in _VIEWS:
        expr = value.args[0]
        value = scope.bound.get(expr) if isinstance(expr, relax.Var) else None
    return isinstance(value, ir.Call) and getattr(value.op, "name", "") not in _MOVES
