"""Any contraction as (batch, M, N, K): two operands as functions of them, an output map, an epilogue.

Every loop variable of the reduction stage falls into one class by where it occurs: output and A only (M), output and B
only (N), both operands and output (batch), not in the output (K). Convolution, its gradients, attention's products and
any einsum of two operands are this; nothing below this file knows their names. B is the operand whose loop variable is
contiguous in the output: its vectors become stores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilegrad._base.tvm import ir, tirx, tvm_ffi
from tilegrad.schedules.contraction.affine import Affine, Simplifier, affine, flat
from tilegrad.schedules.contraction.plan import Size
from tilegrad.schedules.stages import (
    Expr,
    Iter,
    Stage,
    id_of,
    inline,
    inputs_outputs,
    is_const,
    loads,
    stages,
    substitute,
    variables,
)


@dataclass(frozen=True)
class Operand:
    """One factor of the product, in canonical variables and the accumulator's type."""

    expr: Expr
    guards: tuple[Expr, ...]
    """Conditions outside of which ``expr`` is zero (and must not be read)."""
    prologue: tuple[str, ...]
    """Names of the stages inlined into it."""

    @property
    def read(self) -> Any | None:
        """The buffer read when the operand is nothing but one (no cast, no guard), else None."""
        return self.expr if isinstance(self.expr, ir.TensorLoad) and not self.guards else None

    @property
    def place(self) -> Affine | None:
        """The element number of the one buffer read, if it is affine."""
        found = loads(self.expr)
        return affine(flat(found[0].source, found[0].indices, "int64")) if len(found) == 1 else None


@dataclass(frozen=True)
class Link:
    """A stage of the epilogue chain; each element belongs to one element of the contraction."""

    stage: Stage
    index: tuple[Expr, ...]
    """Where the element (batch, m, n) of the contraction lies in the stage's buffer."""
    is_output: bool

    @property
    def place(self) -> Affine | None:
        """The element number in the stage's buffer."""
        return affine(flat(self.stage.buffer, self.index, "int64"))


@dataclass(frozen=True)
class Contraction:
    """``C[batch, m, n] = sum over k of A[batch, m, k] * B[batch, k, n]`` and the elementwise chain after it.

    ``segments`` are the N variables that do not lie at one stride in the outputs with ``n`` (the images of a batch):
    the N side is segments x n, and vectors never cross a segment.
    """

    name: str
    annotations: Mapping[str, Any]
    batch: tuple[Iter, ...]
    m: tuple[Iter, ...]
    segments: tuple[Iter, ...]
    n: tuple[Iter, ...]
    k: tuple[Iter, ...]
    a: Operand
    b: Operand
    acc: str
    chain: tuple[Link, ...]
    """The contraction itself, then the epilogue, in order."""
    inlined: tuple[Stage, ...]
    """Spatial stages that are substituted where they are read."""
    guard: tuple[Expr, ...]
    """Conditions on an element being stored (phases of a strided transposed convolution that overhang)."""
    swapped: bool
    """Whether A is the second factor of the source."""
    remainders: tuple[Iter, ...] = ()
    """Axes that are a remainder: of a channel by the channels of a group, of a position by a stride (its phase)."""
    pairs: bool = False
    """Whether a lane holds two 16-bit neighbours of K (see pairs.py)."""

    @property
    def index_dtype(self) -> str:
        """The integer type of the index variables."""
        return str(self.chain[0].stage.spatial[0].var.ty.dtype) if self.chain[0].stage.spatial else "int32"

    @property
    def axes(self) -> tuple[Iter, ...]:
        """All canonical variables."""
        return (*self.batch, *self.m, *self.segments, *self.n, *self.k)

    @property
    def outputs(self) -> tuple[Link, ...]:
        """The links of the chain that the kernel returns."""
        return tuple(link for link in self.chain if link.is_output)

    @property
    def size(self) -> Size:
        """The extents."""
        b, m, s, n, k = (product(g) for g in (self.batch, self.m, self.segments, self.n, self.k))
        return Size(b, m, s, n, k, self.acc)

    @property
    def layout_a(self) -> str:
        """N: rows along K; T: rows along M; S: a matrix at other strides; P: computed; G: guarded reads; X: anything else."""
        return _layout(self.a, self.k, self.m)

    @property
    def layout_b(self) -> str:
        """N: rows along N; T: rows along K; otherwise as ``layout_a``."""
        return _layout(self.b, self.n, self.k)


def _layout(op: Operand, minor: Sequence[Iter], major: Sequence[Iter]) -> str:
    if op.guards:
        return "G"
    if op.read is None:
        return "P"
    place = op.place
    steps = (None, None) if place is None else (place.fused(minor), place.fused(major))
    if None in steps:
        return "X"
    return "N" if steps[0] == 1 or product(minor) == 1 else "T" if steps[1] == 1 else "S"


def product(axes: Sequence[Iter]) -> int:
    """Number of points of a group of axes."""
    total = 1
    for a in axes:
        total *= a.extent
    return total


def canonicalise(func: tirx.PrimFunc) -> Contraction | None:
    """The contraction that a fused kernel computes, or None when it is none (or one that another template serves)."""
    found = stages(func)
    if found is None:
        return None
    sums = [s for s in found if s.reduce]
    if len(sums) != 1 or sums[0].combiner is None or sums[0].combiner[0] != "sum" or not _is_zero(sums[0].init):
        return None
    core = sums[0]
    assert core.combiner is not None
    if any(i.extent == 0 for i in (*core.spatial, *core.reduce)):
        return None
    position = [s is core for s in found].index(True)
    before = _feeding(core, found[:position])
    after = [s for s in found if s is not core and not any(s is b for b in before)]
    outs = inputs_outputs(func, found)[1]
    if any(_is_in(s.buffer, outs) for s in before):
        return None
    update = _strip(inline(core.combiner[1], before))
    if not isinstance(update, tirx.Mul) or not loads(update.a) or not loads(update.b):
        return None
    return _classify(core, update, before, after, outs)


def _feeding(core: Stage, earlier: Sequence[Stage]) -> list[Stage]:
    """The stages that the sum reads, directly or through others; the rest belong to its epilogue wherever they stand."""
    assert core.combiner is not None
    read, out = list(loads(core.combiner[1])), []
    for s in reversed(earlier):
        if any(s.buffer.same_as(r.source) for r in read):
            out.append(s)
            read += loads(s.body)
    return out[::-1]


def _classify(
    core: Stage, update: Any, before: Sequence[Stage], after: Sequence[Stage], outs: Sequence[Any]
) -> Contraction | None:
    axes, values, guard, remainders = split_phases([*core.spatial, *core.reduce], update)
    simplify = Simplifier(axes)
    sides = zip((update.a, update.b), _factors(core), strict=True)
    factors = [operand(substitute(f, values), simplify, core.dtype, before, source) for f, source in sides]
    index = tuple(simplify(substitute(i.var, values)) for i in core.spatial)
    split = _chain(core, index, before, after, outs)
    if split is None:
        return None
    chain, extra = split
    place = affine(flat(core.buffer, index, "int64"))
    if place is None:
        return None
    in_out = {id_of(v) for e in index for v in variables(e)}
    uses = [{id_of(v) for e in (f.expr, *f.guards) for v in variables(e)} for f in factors]
    spatial = sorted((a for a in axes if id_of(a.var) in in_out), key=lambda a: -abs(place.of(a)))
    both = [a for a in spatial if all(id_of(a.var) in u for u in uses)]
    only = [[a for a in spatial if id_of(a.var) in uses[f] and a not in both] for f in (0, 1)]
    only[0] += [a for a in spatial if not any(id_of(a.var) in u for u in uses)]
    if product(only[0]) * product(only[1]) == 1:
        return None  # a reduction per batch element: nothing is reused
    alone = [a for a in reversed(spatial) if a.extent > 1 and a not in both]
    inner = next((a for a in alone if a not in remainders), alone[0] if alone else None)
    swapped = inner in only[0] and product(only[0]) > 1
    a, b = (factors[1], factors[0]) if swapped else (factors[0], factors[1])
    m, n = (only[1], only[0]) if swapped else (only[0], only[1])
    if product(m) == 1 and b.read is None and not b.guards:
        return None  # a reduction with an elementwise prologue
    k = tuple(a for a in axes if id_of(a.var) not in in_out)
    seg, inner_n = _segments(n, [c.place for c in chain if c.is_output or c is chain[0]], b)
    inlined = (*before, *extra)
    groups = (tuple(both), tuple(m), seg, inner_n, k)
    return Contraction(core.name, core.annotations, *groups, a, b, core.dtype, chain, inlined, guard, swapped, tuple(remainders))


def _factors(core: Stage) -> tuple[Any, Any]:
    """The two factors of the source, before inlining (to name what was inlined)."""
    update = _strip(core.combiner[1])  # type: ignore[index]
    return (update.a, update.b) if isinstance(update, tirx.Mul) else (update, update)


def operand(expr: Expr, simplify: Simplifier, acc: str, before: Sequence[Stage], source: Expr) -> Operand:
    """Pull ``if_then_else(c, value, 0)`` and casts apart; simplify the indices."""
    guards: list[Any] = []
    while True:
        if isinstance(expr, tirx.Cast) and (expr.value.ty.dtype == expr.ty.dtype or _guarded(expr.value)):
            inner, ty = expr.value, expr.ty.dtype
            expr = _where(inner.args[0], tirx.Cast(ty, inner.args[1])) if _guarded(inner) else inner
        elif _guarded(expr):
            guards += _conjuncts(expr.args[0])
            expr = expr.args[1]
        else:
            break
    expr = simplify_loads(expr, simplify)
    kept = [g for g in (simplify(g) for g in guards) if not is_const(g, 1)]
    names = {s.name for s in before if any(s.buffer.same_as(r.source) for r in loads(source))}
    return Operand(expr if str(expr.ty.dtype) == acc else tirx.Cast(acc, expr), tuple(kept), tuple(sorted(names)))


def simplify_loads(expr: Expr, simplify: Simplifier) -> Expr:
    """``expr`` with the indices of its buffer reads simplified."""
    return tvm_ffi.structural_map(
        expr, (ir.TensorLoad, lambda e: tirx.BufferLoad(e.source, [simplify(i) for i in e.indices]) if e.indices else e)
    )


def _guarded(e: Expr) -> bool:
    """Whether ``e`` is ``if_then_else(condition, value, 0)``."""
    return isinstance(e, ir.Call) and getattr(e.op, "name", "") == "prim.if_then_else" and _is_zero(e.args[2])


def _where(condition: Expr, value: Expr) -> Expr:
    return tirx.if_then_else(condition, value, tirx.const(0, value.ty.dtype))


def _conjuncts(c: Expr) -> list[Expr]:
    if isinstance(c, tirx.And):
        return _conjuncts(c.a) + _conjuncts(c.b)
    if isinstance(c, ir.Call) and getattr(c.op, "name", "") == "prim.bitwise_and":
        return _conjuncts(c.args[0]) + _conjuncts(c.args[1])
    return [c]


def split_phases(axes: Sequence[Iter], expr: Expr) -> tuple[list[Iter], dict[Any, Expr], tuple[Expr, ...], list[Iter]]:
    """Replace a variable that occurs in some factor only as v // c and v % c by v = c * v1 + v2.

    Grouped convolution (channel // channels per group) and the phases of a strided transposed convolution are this.
    Gives the new variables, the old ones' values, the conditions on a value that exists, and the remainders ``v2``.
    """
    out, values, guard, remainders = [], {}, [], []
    for a in axes:
        c = max((_divisor(f, a) for f in (expr.a, expr.b)), default=1)
        if c <= 1 or c >= a.extent:
            out.append(a)
            values[a.var] = a.var
            continue
        major = Iter(tirx.Var(f"{a.var.name}1", a.var.ty), -(-a.extent // c))
        minor = Iter(tirx.Var(f"{a.var.name}2", a.var.ty), c)
        out += [major, minor]
        remainders.append(minor)
        values[a.var] = major.var * c + minor.var
        guard += [values[a.var] < a.extent] if a.extent % c else []
    return out, values, tuple(guard), remainders


def _divisor(factor: Expr, axis: Iter) -> int:
    """c when ``axis`` occurs in ``factor`` only inside ``axis // c`` and ``axis % c``; otherwise 1."""
    found: list[Any] = []
    counts = [0]

    def visit(e: Any) -> None:
        if isinstance(e.a, tirx.Var) and e.a.same_as(axis.var) and isinstance(e.b, tirx.IntImm):
            found.append(int(e.b.value))

    def count(v: Any) -> None:
        counts[0] += v.same_as(axis.var)

    tvm_ffi.structural_walk(factor, [((tirx.FloorDiv, tirx.FloorMod), visit), (ir.Var, count)])
    return found[0] if found and len(set(found)) == 1 and counts[0] == len(found) else 1


def _chain(
    core: Stage, index: tuple[Expr, ...], before: Sequence[Stage], after: Sequence[Stage], outs: Sequence[Any]
) -> tuple[tuple[Link, ...], list[Stage]] | None:
    """The epilogue as links, and the spatial stages that do not depend on the contraction; None if it is not one-to-one."""
    chain = [Link(core, index, _is_in(core.buffer, outs))]
    extra: list[Stage] = []
    for s in after:
        expr = inline(s.body, [*before, *extra])
        reads = [(link, r) for r in loads(expr) for link in chain if link.stage.buffer.same_as(r.source)]
        if not reads:
            if not _is_in(s.buffer, outs):
                extra.append(s)
            elif s.shape == core.shape:  # stored beside the results, element by element
                chain.append(Link(Stage(s.name, s.buffer, s.spatial, s.reduce, s.init, expr), index, True))
            else:
                return None
            continue
        where: dict[int, Expr] = {}
        for link, read in reads:
            for e, value in zip(read.indices, link.index, strict=True):
                if isinstance(e, tirx.Var):
                    known = where.setdefault(id_of(e), value)
                    if not tvm_ffi.structural_equal(known, value, map_free_vars=False):
                        return None
                elif not is_const(e, 0):
                    return None
        if any(i.extent > 1 and id_of(i.var) not in where for i in s.spatial):
            return None
        zero = tirx.const(0, core.spatial[0].var.ty.dtype) if core.spatial else tirx.const(0, "int32")
        place = tuple(where.get(id_of(i.var), zero) for i in s.spatial)
        inlined = Stage(s.name, s.buffer, s.spatial, s.reduce, s.init, expr)
        chain.append(Link(inlined, place, _is_in(s.buffer, outs)))
    return (tuple(chain), extra) if any(link.is_output for link in chain) else None


def _segments(n: Sequence[Iter], places: Sequence[Affine | None], b: Operand) -> tuple[tuple[Iter, ...], tuple[Iter, ...]]:
    """Split the N axes into outer segments and the suffix that lies at one stride in every output.

    Where no output is contiguous along N (the phases of a strided gradient by data) there is nothing to split for.
    """
    known = [p for p in places if p is not None]
    cut = len(n)
    moving = [a for a in n if a.extent > 1]
    if moving and known and all(p.of(moving[-1]) > 1 for p in known):
        return (), tuple(n)  # stored element by element: a vector may cross rows
    while cut > 0:
        suffix = n[cut - 1 :]
        if len(known) < len(places) and cut < len(n):
            break
        if any(p.fused(suffix) is None for p in known):
            break
        inner = product(n[cut:])
        splits_b = b.read is not None and b.place is not None and b.place.fused(suffix) is None
        if splits_b and inner >= 16 and b.place is not None and b.place.fused(n[cut:]) == 1:
            break
        cut -= 1
    return tuple(n[:cut]), tuple(n[cut:])


def _strip(e: Expr) -> Expr:
    """``e`` without a cast to its own type."""
    while isinstance(e, tirx.Cast) and e.value.ty.dtype == e.ty.dtype:
        e = e.value
    return e


def _is_zero(e: Any) -> bool:
    return isinstance(e, tirx.IntImm | tirx.FloatImm) and e.value == 0


def _is_in(buffer: Any, buffers: Sequence[Any]) -> bool:
    return any(buffer.same_as(o) for o in buffers)
