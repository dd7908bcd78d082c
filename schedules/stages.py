"""A (fused) kernel as a list of stages: which buffer, over which index variables, by which expression.

``te.create_prim_func``, Relax's legalization and FuseTIR all produce kernels whose blocks are one store at plain
index variables. ``stages`` reads such a kernel; every template works on its answer instead of on loops and blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilegrad._base.tvm import ir, s_tir, te, tirx, tvm_ffi

Expr = Any  # a scalar TIR expression
Buffer = Any  # an ir.Var whose type is a BufferType

_COMBINERS = {tirx.Add: "sum", tirx.Mul: "prod", tirx.Max: "max", tirx.Min: "min"}


@dataclass(frozen=True)
class Iter:
    """One index variable that runs from 0 to ``extent`` - 1."""

    var: tirx.Var
    extent: int


@dataclass(frozen=True)
class Stage:
    """``buffer[spatial] = body``, or a reduction of it over ``reduce`` that starts from ``init``.

    ``spatial`` has one entry per dimension of the buffer, in order. For a reduction ``body`` reads ``buffer[spatial]``.
    """

    name: str
    buffer: Buffer
    spatial: tuple[Iter, ...]
    reduce: tuple[Iter, ...]
    init: Expr | None
    body: Expr
    annotations: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """What the TE definition attached to its block (``te.compute(..., attrs=...)``)."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The buffer's extents."""
        return tuple(i.extent for i in self.spatial)

    @property
    def dtype(self) -> str:
        """Element type of the buffer."""
        return str(self.buffer.dtype)

    @property
    def combiner(self) -> tuple[str, Expr] | None:
        """``("sum" | "prod" | "max" | "min", update)`` of a plain reduction ``acc = combine(acc, update)``, else None."""
        body = self.body
        widened = isinstance(body, tirx.Cast) and "int" in self.dtype  # Relax widens index arithmetic: int32(min(int64(y), ...))
        body = body.value if widened else body
        kind = _COMBINERS.get(type(body))
        if not self.reduce or kind is None:
            return None
        for acc, update in ((body.a, body.b), (body.b, body.a)):
            if widened and isinstance(acc, tirx.Cast):
                acc, update = acc.value, tirx.Cast(self.dtype, update)
            if self._is_own_element(acc) and not any(r.source.same_as(self.buffer) for r in loads(update)):
                return kind, update
        return None

    def at(self, indices: Sequence[Expr]) -> Expr:
        """``body`` (of a spatial stage) for the element at ``indices``."""
        return substitute(self.body, {i.var: e for i, e in zip(self.spatial, indices, strict=True)})

    def _is_own_element(self, e: Expr) -> bool:
        return (
            isinstance(e, ir.TensorLoad)
            and e.source.same_as(self.buffer)
            and all(x.same_as(i.var) or (i.extent == 1 and is_const(x, 0)) for x, i in zip(e.indices, self.spatial, strict=True))
        )


def stages(func: tirx.PrimFunc) -> tuple[Stage, ...] | None:
    """The kernel's stages in execution order; None when it is not of this form (an opaque kernel).

    Opaque is: symbolic shapes, a block with more than one store, a predicate, nested blocks, an element written by two
    stages, a store at computed indices, side effects.
    """
    try:
        found = [_stage(realize) for realize in _leaf_blocks(func.body)]
    except _Opaque:
        return None
    written = [s.buffer for s in found]
    if not found or any(a.same_as(b) for n, a in enumerate(written) for b in written[:n]):
        return None
    return tuple(found)


def inputs_outputs(func: tirx.PrimFunc, found: Sequence[Stage]) -> tuple[list[Buffer], list[Buffer]]:
    """The kernel's parameters split into those that are only read and those that a stage writes."""
    outs = [p for p in func.params if any(s.buffer.same_as(p) for s in found)]
    return [p for p in func.params if not any(p.same_as(o) for o in outs)], outs


def loads(expr: Expr) -> list[Any]:
    """Every buffer read in ``expr``, outermost last, repeats included."""
    out: list[Any] = []
    tvm_ffi.structural_walk(expr, (ir.TensorLoad, lambda e: out.append(e)))
    return out


def variables(expr: Expr) -> list[tirx.Var]:
    """The distinct scalar variables in ``expr``, in order of appearance."""
    out: dict[int, Any] = {}

    def visit(v: Any) -> None:
        if not tirx.is_buffer_var(v):
            out.setdefault(id_of(v), v)

    tvm_ffi.structural_walk(expr, (ir.Var, visit))
    return list(out.values())


def substitute(expr: Expr, values: Mapping[tirx.Var, Expr]) -> Expr:
    """``expr`` with scalar variables replaced; a value of another integer width is cast to the variable's."""
    table = {id_of(v): _as_type(e, v.ty) for v, e in values.items()}
    return tvm_ffi.structural_map(expr, (ir.Var, lambda v: table.get(id_of(v), v)))


def replace_loads(expr: Expr, rule: Callable[[Any], Expr | None]) -> Expr:
    """``expr`` with each buffer read ``e`` replaced by ``rule(e)``; None leaves it."""

    def visit(e: Any) -> Expr:
        new = rule(e)
        return e if new is None else new

    return tvm_ffi.structural_map(expr, (ir.TensorLoad, visit))


def inline(expr: Expr, producers: Iterable[Stage]) -> Expr:
    """``expr`` with reads of the producers' buffers replaced by their bodies, recursively.

    Only spatial producers are substituted; reads of a reduction's result stay.
    """
    table = {id_of(s.buffer): s for s in producers if not s.reduce}

    def rule(e: Any) -> Expr | None:
        stage = table.get(id_of(e.source))
        return None if stage is None else inline(stage.at(e.indices), table.values())

    return replace_loads(expr, rule) if table else expr


def is_const(expr: Expr, value: int) -> bool:
    """Whether ``expr`` is the integer constant ``value``."""
    return isinstance(expr, tirx.IntImm) and int(expr.value) == value


def id_of(node: Any) -> int:
    """Identity of an IR node, stable across its Python wrappers."""
    return int(node.id_)


class _Opaque(Exception):
    """The kernel is not of the form that ``stages`` reads."""


def _leaf_blocks(stmt: Any) -> Iterable[Any]:
    """Block realizations under plain loops and the root block, in order."""
    if isinstance(stmt, tirx.SeqStmt):
        for s in stmt.seq:
            yield from _leaf_blocks(s)
    elif isinstance(stmt, tirx.For) and stmt.kind == tirx.ForKind.SERIAL and stmt.thread_binding is None:
        yield from _leaf_blocks(stmt.body)
    elif isinstance(stmt, s_tir.SBlockRealize):
        if stmt.block.name_hint == "root" and not stmt.block.iter_vars:
            yield from _leaf_blocks(stmt.block.body)
        else:
            yield stmt
    else:
        raise _Opaque


def _stage(realize: Any) -> Stage:
    block = realize.block
    store, init = block.body, block.init
    if (
        not is_const(realize.predicate, 1)
        or not isinstance(store, tirx.BufferStore)
        or block.match_buffers
        or block.alloc_buffers
        or (init is not None and not isinstance(init, tirx.BufferStore))
    ):
        raise _Opaque
    iters = {id_of(iv.var): iv for iv in block.iter_vars}
    if not all(is_const(iv.dom.min, 0) and isinstance(iv.dom.extent, tirx.IntImm) for iv in iters.values()):
        raise _Opaque
    spatial, dropped = [], {}
    for extent, index in zip(store.buffer.shape, store.indices, strict=True):
        iv = iters.pop(id_of(index), None)
        if iv is not None and iv.iter_type == tirx.IterVar.DataPar:
            spatial.append(Iter(iv.var, int(iv.dom.extent)))
        elif is_const(index, 0) and isinstance(extent, tirx.IntImm) and int(extent) == 1:
            spatial.append(Iter(tirx.Var("u", index.ty), 1))
        else:
            raise _Opaque
        if not isinstance(extent, tirx.IntImm) or int(extent) != spatial[-1].extent:
            raise _Opaque
    reduce = []
    for iv in iters.values():
        if iv.iter_type == tirx.IterVar.CommReduce:
            reduce.append(Iter(iv.var, int(iv.dom.extent)))
        elif int(iv.dom.extent) == 1:
            dropped[iv.var] = tirx.const(0, iv.var.ty.dtype)  # the iteration of a 0-D buffer
        else:
            raise _Opaque
    if bool(reduce) != (init is not None):
        raise _Opaque
    body = substitute(store.value, dropped) if dropped else store.value
    start = init.value if init is not None else None
    return Stage(block.name_hint, store.buffer, tuple(spatial), tuple(reduce), start, body, dict(block.annotations))


def _as_type(value: Expr, ty: Any) -> Expr:
    value = tirx.const(value, ty.dtype) if isinstance(value, int) else value
    if str(value.ty.dtype) == str(ty.dtype):
        return value
    return tirx.const(int(value.value), ty.dtype) if isinstance(value, tirx.IntImm) else tirx.Cast(ty.dtype, value)


def to_func(params: Sequence[Buffer], found: Sequence[Stage], attrs: Any) -> tirx.PrimFunc:
    """The unscheduled kernel of these stages: what ``stages`` reads."""
    body = [_nest(s) for s in found]
    own = [s.buffer for s in found if not any(s.buffer.same_as(p) for p in params)]
    inner = tirx.SeqStmt(body) if len(body) > 1 else body[0]
    root = s_tir.SBlock([], [], [], "root", inner, alloc_buffers=own)
    return tirx.PrimFunc(list(params), s_tir.SBlockRealize([], tirx.const(1, "bool"), root), attrs=attrs)


def _nest(s: Stage) -> Any:
    """Plain loops around one block."""
    kinds = [*((i, tirx.IterVar.DataPar) for i in s.spatial), *((i, tirx.IterVar.CommReduce) for i in s.reduce)]
    iters = [tirx.IterVar(ir.Range.from_min_extent(_zero(i), tirx.const(i.extent, i.var.ty.dtype)), i.var, k) for i, k in kinds]
    at = [i.var for i in s.spatial]
    reads = [_point(e.source, e.indices) for e in loads(s.body) if not e.source.same_as(s.buffer)]
    init = None if s.init is None else tirx.BufferStore(s.buffer, s.init, at)
    store = tirx.BufferStore(s.buffer, s.body, at)
    notes = dict(s.annotations)
    block = s_tir.SBlock(iters, reads, [_point(s.buffer, at)], s.name, store, init, annotations=notes)
    loops = [tirx.Var(i.var.name, i.var.ty) for i, _ in kinds]
    out: Any = s_tir.SBlockRealize(list(loops), tirx.const(1, "bool"), block)
    for (i, _), var in reversed(list(zip(kinds, loops, strict=True))):
        out = tirx.For(var, _zero(i), tirx.const(i.extent, var.ty.dtype), tirx.ForKind.SERIAL, out)
    return out


def _zero(i: Iter) -> Expr:
    return tirx.const(0, i.var.ty.dtype)


def _point(buffer: Buffer, indices: Sequence[Expr]) -> Any:
    return tirx.BufferRegion(buffer, [ir.Range.from_min_extent(i, tirx.const(1, i.ty.dtype)) for i in indices])


def create(args: Sequence[te.Tensor]) -> tirx.PrimFunc:
    """The unscheduled kernel of TE tensors, inputs then outputs."""
    return te.create_prim_func(list(args)).without_attr("global_symbol")
