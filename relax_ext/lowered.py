"""A legalized ``main`` as a list of nodes: one per call_tir, with what fusion and planning need to know of each.

In: a module whose main calls PrimFuncs only. Nothing is changed here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tilegrad._base.errors import UnsupportedOperatorError
from tilegrad._base.tvm import ir, relax, tirx, tvm
from tilegrad.runtime.program import numpy_dtype
from tilegrad.schedules.own import ATTRIBUTE
from tilegrad.schedules.stages import Stage, loads, stages, substitute
from tilegrad.schedules.te.concat import JOIN

ALIGN = 64
"""Bytes: a cache line and the widest vector. Temporaries and parts of them begin at multiples."""

Kind = Literal["view", "movement", "elementwise", "reduction", "contraction", "attention", "join", "opaque"]
"""view: a reshape or a stretch of an intermediate value, no data moves. movement: copies, selects and constants, no arithmetic.
elementwise: arithmetic, no reduction. contraction: one sum of products, no other reduction.
attention: the products and the softmax of attention, or of its gradient.
join: arguments one after the other in memory, where they may be written at once."""


@dataclass(eq=False)
class Node:
    """One ``outs = func(args)``; ``outs`` are the vars of its results, None where nobody reads one."""

    name: str
    args: tuple[relax.Expr, ...]
    outs: tuple[relax.Var | None, ...]
    func: tirx.PrimFunc
    kind: Kind
    stages: tuple[Stage, ...]
    call: relax.Call
    index: int
    part: int | None = None
    """For a view of a stretch of its argument's memory: the element at which it starts."""


class Lowered:
    """``nodes`` in order, ``producer`` of each var, and the vars or constants that main returns."""

    def __init__(self, mod: tvm.IRModule) -> None:
        self.mod = mod
        self.params = tuple(mod["main"].params)
        bindings = list(_bindings(mod))
        tuples = {v: e for v, e in bindings if isinstance(e, relax.Tuple)}
        items: dict[relax.Var, dict[int, relax.Var]] = {}
        self._aliases: dict[relax.Var, relax.Expr] = {}
        for var, expr in bindings:
            if isinstance(expr, (relax.Var, ir.GenericConst)):
                self._aliases[var] = expr
            elif isinstance(expr, relax.TupleGetItem) and expr.tuple_value in tuples:
                self._aliases[var] = tuples[expr.tuple_value].fields[expr.index]
            elif isinstance(expr, relax.TupleGetItem):
                first = items.setdefault(expr.tuple_value, {}).setdefault(expr.index, var)
                if not first.same_as(var):
                    self._aliases[var] = first
        calls = [(v, e) for v, e in bindings if isinstance(e, relax.Call)]
        _refuse_unlowered(calls)
        self._read: dict[str, tuple[tirx.PrimFunc, tuple[Stage, ...], Kind]] = {}
        self.nodes = [self._node(i, var, call, items.get(var, {})) for i, (var, call) in enumerate(calls)]
        self.producer = {out: n for n in self.nodes for out in n.outs if out is not None}
        self.results = self._results(tuples)
        for n in self.nodes:
            self._see_part(n)

    def resolve(self, expr: relax.Expr) -> relax.Expr:
        """Follow aliases to the var that a kernel or parameter defines, or to a constant."""
        while isinstance(expr, relax.Var) and expr in self._aliases:
            expr = self._aliases[expr]
        return expr

    def _node(self, index: int, var: relax.Var, call: relax.Call, items: dict[int, relax.Var]) -> Node:
        name = str(call.args[0].name_hint)
        if name not in self._read:
            func = self.mod[call.args[0]]
            parts = () if ATTRIBUTE in func.attrs else tuple(stages(func) or ())  # a user's template takes its kernel as it is
            self._read[name] = func, parts, kind_of(func, parts)
        is_tuple = isinstance(call.ty, relax.TupleType)
        outs = tuple(items.get(i) for i in range(len(call.ty.fields))) if is_tuple else (var,)
        args = tuple(self.resolve(a) for a in call.args[1].fields)
        func, parts, kind = self._read[name]
        return Node(name, args, outs, func, kind, parts, call, index)

    def _see_part(self, node: Node) -> None:
        """A slice that is one stretch of an intermediate value's memory moves no data either, where vectors stay aligned."""
        (out, *_) = node.outs
        if node.kind != "movement" or len(node.stages) != 1 or out is None or any(out.same_as(r) for r in self.results):
            return
        if len(node.args) == 1 and node.args[0] in self.producer and not self._is_input(node.args[0]):
            start = stretch(node.stages[0])
            if start is not None and start * _bytes(node.stages[0].dtype) % ALIGN == 0:
                node.kind, node.part = "view", start

    def _is_input(self, var: relax.Expr) -> bool:
        """Whether a var is a parameter, or a reshape of one."""
        while (n := self.producer.get(var)) is not None and n.kind == "view":
            var = n.args[0]
        return n is None

    def _results(self, tuples: dict[relax.Var, relax.Tuple]) -> list[relax.Expr]:
        body = self.resolve(self.mod["main"].body.body)
        body = tuples.get(body, body)
        return [self.resolve(f) for f in (body.fields if isinstance(body, relax.Tuple) else [body])]


def kind_of(func: tirx.PrimFunc, parts: tuple[Stage, ...]) -> Kind:
    """Classify a kernel by its stages."""
    if not parts:
        return "opaque"
    if len(parts) == 1 and not parts[0].reduce and len(func.params) == 2 and _is_reshape(func):
        return "view"
    if JOIN in parts[0].annotations and len(parts) == 1:
        return "join"
    if any("attention" in s.annotations for s in parts):
        return "attention"
    reductions = [s for s in parts if s.reduce]
    if not reductions:
        return "movement" if all(is_movement(s.body) for s in parts) else "elementwise"
    return "contraction" if len(reductions) == 1 and is_sum_of_products(reductions[0]) else "reduction"


def _is_reshape(func: tirx.PrimFunc) -> bool:
    """Whether all elements keep their order (TVM's own test also holds for a prefix)."""
    x, y = func.params
    same = math.prod(int(d) for d in x.shape) == math.prod(int(d) for d in y.shape) and x.dtype == y.dtype
    return same and relax.analysis.has_reshape_pattern(func)


def stretch(stage: Stage) -> int | None:
    """Where a stage's elements begin in the array they are copied from, if they lie there in one piece."""
    load = stage.body
    if stage.reduce or not isinstance(load, ir.TensorLoad) or load.source.dtype != stage.buffer.dtype:
        return None
    source = tuple(int(d) for d in load.source.shape)
    if len(source) != len(stage.shape):
        return None
    zero = {i.var: tirx.const(0, i.var.ty.dtype) for i in stage.spatial}
    analyzer = tvm.sym.Analyzer()
    starts = [analyzer.simplify(substitute(e, zero)) for e in load.indices]
    if not all(isinstance(b, tirx.IntImm) for b in starts):
        return None
    own = [i.extent == 1 or is_zero(analyzer, e - b - i.var) for e, b, i in zip(load.indices, starts, stage.spatial, strict=True)]
    first = next((d for d, extent in enumerate(stage.shape) if extent > 1), len(source))
    if not all(own) or stage.shape[first + 1 :] != source[first + 1 :]:
        return None
    at = 0
    for b, extent in zip(starts, source, strict=True):
        at = at * extent + int(b)
    return at


def is_zero(analyzer: tvm.sym.Analyzer, expr: tirx.PrimExpr) -> bool:
    """Whether an index expression is zero everywhere."""
    return isinstance(e := analyzer.simplify(expr), tirx.IntImm) and int(e.value) == 0


def _bytes(dtype: str) -> int:
    return np.dtype(numpy_dtype(dtype)).itemsize


def is_movement(expr: tirx.PrimExpr) -> bool:
    """Whether an expression only loads, casts, produces constants and selects by index (index arithmetic is free)."""
    if isinstance(expr, (ir.TensorLoad, tirx.IntImm, tirx.FloatImm)):
        return True
    if isinstance(expr, tirx.Select):
        return not loads(expr.condition) and is_movement(expr.true_value) and is_movement(expr.false_value)
    if isinstance(expr, ir.Call) and is_if_then_else(expr):
        return not loads(expr.args[0]) and is_movement(expr.args[1]) and is_movement(expr.args[2])
    return isinstance(expr, tirx.Cast) and is_movement(expr.value)


def is_if_then_else(call: ir.Call) -> bool:
    """Whether a TIR call is the lazy select."""
    return str(getattr(call.op, "name", "")).endswith("if_then_else")


def is_sum_of_products(stage: Stage) -> bool:
    """``out += a * b`` with two loads (casts and selects around them allowed)."""
    combiner = stage.combiner
    if combiner is None or combiner[0] != "sum":
        return False
    product = combiner[1]
    while isinstance(product, tirx.Cast):
        product = product.value
    return isinstance(product, tirx.Mul) and is_movement(product.a) and is_movement(product.b)


def _bindings(mod: tvm.IRModule) -> Iterator[tuple[relax.Var, relax.Expr]]:
    for block in mod["main"].body.blocks:
        for b in block.bindings:
            yield b.var, b.value


def _refuse_unlowered(calls: list[tuple[relax.Var, relax.Call]]) -> None:
    strange = [str(getattr(c.op, "name", c.op)) for _, c in calls if getattr(c.op, "name", "") != "relax.call_tir"]
    if strange:
        names = ", ".join(f"{n} ({strange.count(n)}x)" for n in sorted(set(strange)))
        raise UnsupportedOperatorError(
            "lowering", names, "operators that legalize to kernels", "Rewrite them, or register a legalization."
        )
