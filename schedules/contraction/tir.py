"""Small constructors for loops and stores, and flat views of the kernel's buffers and scratch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from tilegrad._base.tvm import ir, tirx, tvm_ffi
from tilegrad.schedules.contraction.affine import Simplifier, flat, size
from tilegrad.schedules.contraction.plan import ceildiv, element_bytes
from tilegrad.schedules.stages import Expr, id_of

Stmt = Any
SCRATCH_ALIGN = 64


def seq(*stmts: Any) -> Stmt:
    """The statements one after the other; lists, of any depth, are flattened, None is left out."""
    out = list(_flat(stmts))
    return out[0] if len(out) == 1 else tirx.SeqStmt(out) if out else tirx.Evaluate(tirx.const(0, "int32"))


def _flat(stmts: Iterable[Any]) -> Iterable[Stmt]:
    for s in stmts:
        if isinstance(s, list | tuple):
            yield from _flat(s)
        elif s is not None:
            yield s


def ramp(base: Expr, lanes: int) -> Expr:
    """``lanes`` consecutive indices."""
    return tirx.Ramp(base, tirx.const(1, base.ty.dtype), lanes)


def bind(name: str, value: Expr) -> tuple[Any, Stmt]:
    """A variable that holds ``value`` in the statements that follow."""
    var = tirx.Var(name, value.ty)
    return var, tirx.Bind(var, value)


def when(condition: Expr, then: Stmt, otherwise: Stmt | None = None) -> Stmt:
    """``if condition: then else: otherwise``; constants are decided here."""
    if isinstance(condition, bool):
        return then if condition else seq(otherwise)
    return tirx.IfThenElse(condition, then, otherwise)


def both(conditions: Iterable[Expr]) -> Expr:
    """The conjunction."""
    return tirx.all(*conditions)


def part(total: int | Expr, parts: int, index: Expr) -> tuple[Expr, int | Expr]:
    """(first, count) of the ``index``-th of ``parts`` nearly equal runs of ``total`` items."""
    if isinstance(total, int) and total % parts == 0:
        return index * (total // parts), total // parts
    first = tirx.floordiv(index * total, parts)
    return first, tirx.floordiv((index + 1) * total, parts) - first


@dataclass
class Memory:
    """Flat views of parameters, and scratch handed out region by region."""

    dtype: str
    """Integer type of indices."""
    scratch: Any = field(default_factory=lambda: tirx.decl_buffer((1,), "uint8", "scratch", data_alignment=SCRATCH_ALIGN))
    scratch_bytes: int = 0
    declarations: list[Stmt] = field(default_factory=list)
    ends: dict[int, Expr] = field(default_factory=dict)
    """Elements of the parameters (by identity) that are not all there."""
    _views: dict[int, Any] = field(default_factory=dict)
    simplify: Simplifier = field(default_factory=Simplifier)

    def const(self, value: int) -> Expr:
        """An index constant."""
        return tirx.const(value, self.dtype)

    def loop(self, extent: int | Expr, body: Callable[[Any], Stmt], name: str = "i", kind: Any = tirx.ForKind.SERIAL) -> Stmt:
        """``for name in range(extent): body(name)``; one of a single iteration is its body."""
        if isinstance(extent, int) and extent == 1 and kind != tirx.ForKind.PARALLEL:
            return body(self.const(0))
        var = tirx.Var(name, self.dtype)
        n = self.const(extent) if isinstance(extent, int) else extent
        return tirx.For(var, self.const(0), n, kind, body(var))

    def parallel(self, threads: int, count: int | Expr, item: Callable[[Expr, Expr], Stmt]) -> Stmt:
        """``item(thread, i)`` for i < count, in equal runs of consecutive items a thread."""
        threads = min(threads, count) if isinstance(count, int) else threads
        if threads == 1:
            return self.loop(count, lambda i: item(self.const(0), i), "u")

        def run(t: Expr) -> Stmt:
            if isinstance(count, int) and count == threads:
                return item(t, t)
            first, length = part(count, threads, t)
            return self.loop(length, lambda i: item(t, first + i), "u")

        return self.loop(threads, run, "t", tirx.ForKind.PARALLEL)

    def vector(self, lanes: int, body: Callable[[Any], Stmt]) -> Stmt:
        """``lanes`` iterations as one vector operation."""
        return self.loop(lanes, body, "l", tirx.ForKind.VECTORIZED)

    def hold(self, name: str, value: Expr) -> tuple[Expr, list[Stmt]]:
        """As ``bind``, in a one-element buffer: TVM's simplifier does not look through it, LLVM makes it a register.

        Bounds of runs are long chains of minima and quotients; seen through, they cost more time than all of LLVM.
        """
        cell = self.local(name, value.ty.dtype, 1)
        zero = tirx.const(0, "int32")
        return tirx.BufferLoad(cell, [zero]), [tirx.AllocBuffer(cell), tirx.BufferStore(cell, value, [zero])]

    def local(self, name: str, dtype: Any, count: int) -> Any:
        """A small one-dimensional buffer of the kernel's own; whoever uses it allocates it."""
        buffer = tirx.decl_buffer((count,), dtype, name)
        self._views[id_of(buffer)] = buffer
        return buffer

    def view(self, buffer: Any) -> Any:
        """The one-dimensional view of a parameter."""
        found = self._views.get(id_of(buffer))
        if found is None:
            align = element_bytes(str(buffer.dtype))
            found = tirx.decl_buffer((size(buffer),), buffer.dtype, f"{buffer.name}_flat", data_alignment=align)
            self._views[id_of(buffer)] = found
            self.declarations.append(tirx.DeclBuffer(found, data=tirx.buffer_data(buffer)))
        return found

    def end(self, buffer: Any) -> int | Expr:
        """How many elements of a parameter may be read."""
        return self.ends.get(id_of(buffer), size(buffer))

    def region(self, name: str, dtype: str, count: int) -> Any:
        """``count`` elements of scratch, 64-byte aligned."""
        start = ceildiv(self.scratch_bytes, SCRATCH_ALIGN) * SCRATCH_ALIGN
        self.scratch_bytes = start + count * element_bytes(dtype)
        view = tirx.decl_buffer((count,), dtype, name, data_alignment=SCRATCH_ALIGN)
        data = tirx.handle_add_byte_offset(tirx.buffer_data(self.scratch), tirx.const(start, "int64"))
        self.declarations.append(tirx.DeclBuffer(view, data=data))
        return view

    def flatten(self, expr: Expr, values: dict[Any, Expr]) -> Expr:
        """``expr`` with variables replaced and every read turned into one of a flat view at a simplified index."""
        table = {id_of(v): e for v, e in values.items()}

        def visit(e: Any) -> Expr:
            view = self._views.get(id_of(e.source))
            if view is not None and view.same_as(e.source):
                return e
            return tirx.BufferLoad(self.view(e.source), [self.simplify(flat(e.source, e.indices, self.dtype))])

        replaced = tvm_ffi.structural_map(expr, (ir.Var, lambda v: table.get(id_of(v), v)))
        return tvm_ffi.structural_map(replaced, (ir.TensorLoad, visit))

    def place(self, buffer: Any, index: Iterable[Expr], values: dict[Any, Expr]) -> Expr:
        """The simplified element number of ``buffer[index]`` with variables replaced."""
        table = {id_of(v): e for v, e in values.items()}
        whole = flat(buffer, list(index), self.dtype)
        return self.simplify(tvm_ffi.structural_map(whole, (ir.Var, lambda v: table.get(id_of(v), v))))
