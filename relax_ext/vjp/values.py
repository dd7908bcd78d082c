"""What rules are written in: values that behave like arrays, and the tape that their operations go to.

Nothing reaches the graph before ``Tape.flush``: an operation that no requested gradient needs is never emitted,
and one that the graph already contains is reused.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from tilegrad._base.tvm import ir, relax
from tilegrad.relax_ext.graph import GraphBuilder
from tilegrad.relax_ext.ops.register import plain
from tilegrad.relax_ext.ops.reshape import reshape
from tilegrad.relax_ext.vjp.expressions import Number, key, op_name, permutation, scalar_constant, shape_of, used_vars


class Tape:
    """Pending bindings on top of a builder's."""

    def __init__(self, builder: GraphBuilder) -> None:
        self.builder = builder
        self.where: str | None = None
        """Source line of the forward node whose gradient is being written."""
        self.pending: dict[relax.Var, relax.Expr] = {}
        self.leaves: set[relax.Var] = set()
        """Vars that simplification must not look through: the arguments of an operator being decomposed."""
        self._where: dict[relax.Var, str] = {}
        self._known = _index(builder)

    def value(self, expr: relax.Expr) -> Value:
        """Wrap a var or constant that exists."""
        return Value(self, expr)

    def constant(self, number: Number, dtype: str) -> Value:
        """A scalar."""
        return Value(self, relax.const(number, dtype))

    def zeros(self, shape: Sequence[int], dtype: str) -> Value:
        """Zeros. Rules need them only to fill gaps beside real cotangents."""
        return self.bind(relax.op.zeros(tuple(shape), dtype))

    def bind(self, call: relax.Expr) -> Value:
        """The value of ``call``, whose arguments are vars, constants or tuples of them."""
        same = key(call)
        var = self._known.get(same)
        if var is None:
            call = self.builder.block_builder.normalize(call)
            var = relax.DataflowVar("g", call.ty)
            self.pending[var] = call
            self._known[same] = var
            if self.where is not None:
                self._where[var] = self.where
        return Value(self, var)

    def definition(self, expr: relax.Expr) -> relax.Expr | None:
        """The expression bound to a var, None for parameters and constants."""
        if not isinstance(expr, relax.Var):
            return None
        pending = self.pending.get(expr)
        return self.builder.block_builder.lookup_binding(expr) if pending is None else pending

    def flush(self, roots: Sequence[relax.Expr]) -> None:
        """Emit what ``roots`` need, in the order of creation; the rest stays pending."""
        needed: set[relax.Var] = set()
        todo = [r for r in roots if r in self.pending]
        while todo:
            var = todo.pop()
            if var not in needed:
                needed.add(var)
                todo += [v for v in used_vars(self.pending[var]) if v in self.pending]
        for var in [v for v in self.pending if v in needed]:
            expr = self.pending.pop(var)
            self.builder.block_builder.emit_normalized(relax.VarBinding(var, expr))
            self.builder.bindings.append((var, expr))
            if var in self._where:
                self.builder.where[var] = self._where[var]

    def closure(self, roots: Sequence[relax.Var], stops: set[relax.Var]) -> list[tuple[relax.Var, relax.Expr]]:
        """The bindings between ``stops`` and ``roots``, in an order that defines before it uses."""
        done: set[relax.Var] = set(stops)
        order: list[tuple[relax.Var, relax.Expr]] = []
        todo: list[tuple[relax.Var, bool]] = [(r, False) for r in roots]
        while todo:
            var, ready = todo.pop()
            expr = self.definition(var)
            if ready:
                order.append((var, expr))
            elif var not in done and expr is not None:
                done.add(var)
                todo.append((var, True))
                todo += [(v, False) for v in used_vars(expr)]
        return order


_INDICES: weakref.WeakKeyDictionary[GraphBuilder, tuple[int, dict[tuple[Any, ...], relax.Var]]] = weakref.WeakKeyDictionary()


# Cheaper to compute again inside a fused kernel than to keep from the forward pass and read back.
_CHEAP = set(
    "relax." + op
    for op in (
        "add subtract multiply negative abs sign square maximum minimum where clip astype broadcast_to zeros ones full "
        "equal not_equal less less_equal greater greater_equal logical_and logical_or logical_not"
    ).split()
)


def _index(builder: GraphBuilder) -> dict[tuple[Any, ...], relax.Var]:
    """What the builder's bindings compute, by ``_key``; kept per builder, so that higher orders do not start over."""
    done, known = _INDICES.get(builder, (0, {}))
    for var, expr in builder.bindings[done:]:
        if isinstance(expr, ir.Call) and op_name(expr) not in _CHEAP:
            known.setdefault(key(expr), var)
    _INDICES[builder] = (len(builder.bindings), known)
    return dict(known)


class Value:
    """A tensor expression with NumPy's arithmetic. Python numbers take the tensor's dtype."""

    __slots__ = ("tape", "expr")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, tape: Tape, expr: relax.Expr) -> None:
        self.tape, self.expr = tape, expr

    @property
    def shape(self) -> tuple[int, ...]:
        """Static extents."""
        return shape_of(self.expr)

    @property
    def ndim(self) -> int:
        """Rank."""
        return len(self.shape)

    @property
    def dtype(self) -> str:
        """Element type, such as ``float32``."""
        return str(self.expr.ty.dtype)

    def __add__(self, other: Value | Number) -> Value:
        return F.add(self, other)

    def __radd__(self, other: Number) -> Value:
        return F.add(self, other)

    def __sub__(self, other: Value | Number) -> Value:
        return F.subtract(self, other)

    def __rsub__(self, other: Number) -> Value:
        return F.subtract(self._like(other), self)

    def __mul__(self, other: Value | Number) -> Value:
        for one, kept in ((other, self), (self, other)):
            if (
                scalar_constant(one) == 1
                and isinstance(kept, Value)
                and kept.shape == np.broadcast_shapes(self.shape, shape_of(other))
            ):
                return kept
        return F.multiply(self, other)

    def __rmul__(self, other: Number) -> Value:
        return self * other

    def __truediv__(self, other: Value | Number) -> Value:
        return F.divide(self, other)

    def __rtruediv__(self, other: Number) -> Value:
        return F.divide(self._like(other), self)

    def __pow__(self, other: Value | Number) -> Value:
        return F.power(self, other)

    def __neg__(self) -> Value:
        return F.negative(self)

    def __gt__(self, other: Value | Number) -> Value:
        return F.greater(self, other)

    def __ge__(self, other: Value | Number) -> Value:
        return F.greater_equal(self, other)

    def __lt__(self, other: Value | Number) -> Value:
        return F.less(self, other)

    def __le__(self, other: Value | Number) -> Value:
        return F.less_equal(self, other)

    def __matmul__(self, other: Value) -> Value:
        return F.matmul(self, other)

    def __bool__(self) -> bool:
        raise TypeError("a Value has no truth value at graph-building time")

    def equals(self, other: Value | Number) -> Value:
        """Elementwise ``==`` as a boolean tensor."""
        return F.equal(self, other)

    def sum(self, axes: Sequence[int] | None = None, keepdims: bool = False) -> Value:
        """Sum over ``axes`` (all when None)."""
        if axes is not None and not len(axes):
            return self
        return F.sum(self, None if axes is None else list(axes), keepdims)

    def reshape(self, shape: Sequence[int]) -> Value:
        """The same elements in another shape (-1: what is left); a reshape of a reshape becomes one, or none."""
        known = prod(d for d in shape if d != -1)
        shape = tuple(prod(self.shape) // max(known, 1) if d == -1 else int(d) for d in shape)
        source, inner = self, self._made_by()
        if shape != self.shape and isinstance(inner, ir.Call) and op_name(inner) == "relax.reshape":
            source = Value(self.tape, inner.args[0])
        return source if shape == source.shape else self.tape.bind(reshape(source.expr, shape))

    def broadcast_to(self, shape: Sequence[int]) -> Value:
        """Repeat along new and unit axes."""
        return self if tuple(shape) == self.shape else F.broadcast_to(self, tuple(shape))

    def permute(self, axes: Sequence[int]) -> Value:
        """Transpose; a transpose of a transpose becomes one, or none, and that of a product a product of transposes."""
        source, axes = self, tuple(int(a) for a in axes)
        inner = self._made_by()
        if isinstance(inner, ir.Call) and op_name(inner) == "relax.permute_dims":
            first = permutation(inner)
            source, axes = Value(self.tape, inner.args[0]), tuple(first[a] for a in axes)
        if axes == tuple(range(len(axes))):
            return source
        n = len(axes)
        if isinstance(inner, ir.Call) and op_name(inner) == "relax.matmul" and axes == (*range(n - 2), n - 1, n - 2):
            x, y = (Value(self.tape, a) for a in inner.args)
            if self.expr in self.tape.pending and x.ndim > 1 and y.ndim > 1:  # a weight gradient in the weight's own layout
                return F.matmul(y.mT, x.mT, out_dtype=self.dtype)
        return F.permute_dims(source, list(axes))

    @property
    def mT(self) -> Value:  # noqa: N802  (the name of NumPy and PyTorch)
        """Transpose of the last two axes."""
        return self.permute((*range(self.ndim - 2), self.ndim - 1, self.ndim - 2))

    def astype(self, dtype: str) -> Value:
        """Cast; nothing is emitted when the dtype is already right."""
        return self if dtype == self.dtype else F.astype(self, dtype)

    def zeros_like(self) -> Value:
        """Zeros of this shape and dtype."""
        return self.tape.zeros(self.shape, self.dtype)

    def _made_by(self) -> relax.Expr | None:
        """The expression that simplification may look into."""
        return None if self.expr in self.tape.leaves else self.tape.definition(self.expr)

    def _like(self, number: Number) -> Value:
        return self.tape.constant(number, self.dtype)


# Functions whose Python numbers are tensors' scalars, not attributes.
_BROADCASTING = set("add subtract multiply divide floor_divide power maximum minimum equal not_equal greater "
                    "greater_equal less less_equal where atan2 mod floor_mod log_add_exp".split())  # fmt: skip


class _Namespace:
    """``F.exp(x)``: every function of a module that makes Relax calls, taking and giving Values."""

    def __init__(self, *modules: Any) -> None:
        self._modules = modules

    def __getattr__(self, name: str) -> Any:
        module = next((m for m in self._modules if hasattr(m, name)), None)
        if module is None:
            raise AttributeError(name)
        make = getattr(module, name)

        def function(*args: Any, **attrs: Any) -> Any:
            first = next(v for v in _flat(args) if isinstance(v, Value))
            if name in _BROADCASTING:
                typed = next(v for v in args if isinstance(v, Value) and v.dtype != "bool")
                args = tuple(first.tape.constant(a, typed.dtype) if isinstance(a, (int, float)) else a for a in args)
            result = first.tape.bind(make(*(_unwrap(a) for a in args), **attrs))
            if isinstance(result.expr.ty, relax.TupleType):
                return fields(result)
            return result

        setattr(self, name, function)
        return function


def _flat(args: Sequence[Any]) -> list[Any]:
    return [v for a in args for v in (a if isinstance(a, (list, tuple)) else (a,))]


def _unwrap(arg: Any) -> Any:
    if isinstance(arg, Value):
        return arg.expr
    if isinstance(arg, list) and arg and isinstance(arg[0], Value):
        return [a.expr for a in arg]
    return arg


F: Any = _Namespace(relax.op, relax.op.nn, relax.op.image)


def fields(value: Value) -> list[Value]:
    """The elements of a tuple-valued Value."""
    return [value.tape.bind(relax.TupleGetItem(value.expr, i)) for i in range(len(value.expr.ty.fields))]


class Node:
    """One call as a rule sees it: ``args`` (Values; a list for a tuple; raw for shapes and numbers), ``out``, attributes."""

    def __init__(self, tape: Tape, var: relax.Var, call: ir.Call) -> None:
        self.tape, self.call, self._var = tape, call, var
        self.op = op_name(call)
        self.args: list[Any] = [_wrap_argument(tape, a) for a in call.args]

    @property
    def out(self) -> Any:
        """The call's own result: a Value, or a list of them."""
        value = Value(self.tape, self._var)
        return fields(value) if isinstance(self._var.ty, relax.TupleType) else value

    @property
    def x(self) -> Any:
        """The first argument."""
        return self.args[0]

    @property
    def y(self) -> Any:
        """The second argument."""
        return self.args[1]

    def attr(self, name: str) -> Any:
        """An attribute as plain Python: int, float, bool, str, None or a tuple of them."""
        attrs = self.call.attrs
        return plain(attrs[name] if isinstance(attrs, ir.DictAttrs) else getattr(attrs, name))

    def axes(self, name: str = "axis") -> tuple[int, ...]:
        """An axis attribute as sorted non-negative axes of the first argument; all axes when it is None."""
        axes = self.attr(name)
        ndim = self.x.ndim
        if axes is None:
            return tuple(range(ndim))
        return tuple(sorted(a % ndim for a in ((axes,) if isinstance(axes, int) else axes)))


def _wrap_argument(tape: Tape, arg: relax.Expr) -> Any:
    if isinstance(arg, relax.Tuple):
        return [_wrap_argument(tape, f) for f in arg.fields]
    if isinstance(arg.ty, relax.TensorType):
        return Value(tape, arg)
    if isinstance(arg.ty, relax.TupleType) and all(isinstance(f, relax.TensorType) for f in arg.ty.fields):
        return fields(Value(tape, arg))
    return arg
