"""Contractions whose image has, along each side of a window, one position and one tap.

Canonical operand B is the image. Each of its windowed dimensions is read at ``stride * position + offset(tap)``, zero
outside. Either the taps are summed (``gather``: convolution with one channel a group, and its gradient by data) or the
positions are (``correlate``: the gradient by weight). A strided gradient by data has phases: the result's index is
``phases * position + phase``, and each phase has taps of its own. A gather may sum over channels, too, where that is faster
than a matrix product (``_pays``), which gathers the image's taps one by one and uses each once for every result.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilegrad._base.tvm import tirx
from tilegrad.schedules.contraction.affine import Simplifier, affine, flat
from tilegrad.schedules.contraction.canonical import Contraction, Operand, canonicalise, product
from tilegrad.schedules.contraction.pairs import pair_axis
from tilegrad.schedules.contraction.runs import interval_bound, slope
from tilegrad.schedules.stages import Expr, Iter, id_of, is_const, loads, substitute, variables
from tilegrad.schedules.window.plan import FEW_RESULTS

MOST_TAPS = 81
MOST_HELD = 1 << 20
"""Elements of the least part of the image, with all channels, that a thread has to copy for them."""
MOST_RESULTS = 128
"""More results than these (half as many where rows do not fill vectors) repay the packing of every tap for a product."""
FULL_ROW = 16
MOST_WEIGHTS = 1 << 18
"""Weights, if there are more than a few results: they pass once for every band."""
LEAST_ROW = 14
"""Positions of a row from which on vectors along it are full enough for many results."""


@dataclass(frozen=True)
class Side:
    """One windowed dimension of the image."""

    dim: int
    """Which of the image's dimensions."""
    image: int
    """Its extent."""
    position: Iter
    tap: Iter | None
    phase: Iter | None
    stride: int
    reads: tuple[tuple[tuple[int, int], ...], ...]
    """Per phase: (offset, tap) of the taps that it meets."""
    limit: int
    """The result's extent along it (gather); positions of phases beyond it are not stored."""


@dataclass(frozen=True)
class Window:
    """A contraction of this form. ``sides`` are in the order of the image's dimensions; the last one is contiguous."""

    c: Contraction
    form: str
    sides: tuple[Side, ...]
    outer: tuple[Iter, ...]
    """Axes of the result that are neither position nor tap nor ``c.m``, which are the weights' (or gradient's) own."""
    summed: tuple[Iter, ...]
    """Summed axes that are no side's: channels (gather), or the images of a batch (correlate)."""
    read: Any
    """The image's read that moves with the window."""


def window(func: tirx.PrimFunc) -> Window | None:
    """The window sum that a fused kernel computes, or None."""
    c = canonicalise(func)
    return None if c is None else _window(c)


def _window(c: Contraction) -> Window | None:
    private, summed = _ids((*c.segments, *c.n)), _ids(c.k)
    moving = [r for r in loads(c.b.expr) if _used(r.indices) & (private | summed)]
    if len(moving) != 1 or product(c.k) == 1:
        return None
    read = moving[0]
    axes = {id_of(a.var): a for a in c.axes if a.extent > 1}
    own = [_used([i]) & axes.keys() for i in read.indices]
    first = next((d for d, u in enumerate(own) if u & summed and u & private), 0)
    plain = [isinstance(i, tirx.Var) or bool(u & _ids(c.batch)) for i, u in zip(read.indices, own, strict=True)]
    dims = [d for d, u in enumerate(own) if u & (summed | private) and (d >= first or not plain[d])]
    if not dims or dims[-1] != len(own) - 1:
        return None
    used = set().union(*(own[d] for d in dims))
    k_axes, n_axes = ([axes[i] for i in used & g] for g in (summed, private))
    form = "gather" if product(k_axes) <= product(n_axes) else "correlate"
    taps, positions = (k_axes, n_axes) if form == "gather" else (n_axes, k_axes)
    rest_k = tuple(a for a in c.k if a.extent > 1 and id_of(a.var) not in used)
    rest_n = tuple(a for a in (*c.segments, *c.n) if a.extent > 1 and id_of(a.var) not in used)
    if product(taps) > MOST_TAPS or (form == "correlate" and rest_n) or (form == "gather" and rest_k and product(taps) == 1):
        return None
    sides = [_side(c, read, d, form, [_of(g, own[d]) for g in (positions, taps)]) for d in dims]
    if any(s is None for s in sides):
        return None
    found = tuple(s for s in sides if s is not None)
    if not _guards_hold(c.b, found) or not (_stores_rows(c, found) if form == "gather" else _reads_rows(c, found)):
        return None
    phases = _ids(s.phase for s in found if s.phase is not None)
    outer = tuple(a for a in (*c.batch, *rest_n) if a.extent > 1 and id_of(a.var) not in phases)
    if any(id_of(a.var) in phases for a in c.m) and form != "gather":
        return None
    w = Window(c, form, found, outer, rest_k, read)
    return None if form == "gather" and rest_k and not _pays(w) else w


def _pays(w: Window) -> bool:
    """Whether a gather that sums over channels is faster than a matrix product: few results, or wide rows and few weights.

    A product multiplies narrow integers by pairs, this does not.
    """
    lines = [len({f for live in s.reads for f, _ in live}) for s in w.sides[:-1]]
    results, channels = product(inner(w)), product(w.summed)
    if channels * math.prod(lines) * w.sides[-1].image > MOST_HELD:
        return False
    if results <= FEW_RESULTS:
        return True
    if pair_axis(w.c) is not None:
        return False
    row, taps = w.sides[-1].position.extent, taps_of(w.sides)
    dense = results % FEW_RESULTS == 0 and len(lines) > 0 and all(s.phase is None and s.stride == 1 and s.tap for s in w.sides)
    most = MOST_RESULTS if row % FULL_ROW == 0 else MOST_RESULTS // 2
    return dense and taps >= 9 and row >= LEAST_ROW and results <= most and results * channels * taps <= MOST_WEIGHTS


def inner(w: Window) -> tuple[Iter, ...]:
    """Axes of the result that only the other operand has, apart from phases."""
    phases = _ids(s.phase for s in w.sides if s.phase is not None)
    return tuple(a for a in w.c.m if a.extent > 1 and id_of(a.var) not in phases)


def _ids(axes: Iterable[Iter]) -> set[int]:
    return {id_of(a.var) for a in axes if a.extent > 1}


def _used(exprs: Sequence[Expr]) -> set[int]:
    return {id_of(v) for e in exprs for v in variables(e)}


def _of(axes: Sequence[Iter], used: set[int]) -> list[Iter]:
    return [a for a in axes if id_of(a.var) in used]


def _side(c: Contraction, read: Any, dim: int, form: str, found: list[list[Iter]]) -> Side | None:
    positions, taps = found
    if len(positions) != 1 or len(taps) > 1:
        return None
    position, tap = positions[0], taps[0] if taps else None
    phase, limit = None, position.extent
    if form == "gather":
        place = next(((d, e) for d, e in enumerate(c.chain[0].index) if id_of(position.var) in _used([e])), None)
        if place is None:
            return None
        limit = c.chain[0].stage.spatial[place[0]].extent
        others = [a for a in (*c.batch, *c.m) if a.extent > 1 and id_of(a.var) in _used([place[1]])]
        phase = others[0] if others else None
        step = affine(place[1])
        extent = phase.extent if phase else 1
        if len(others) > 1 or step is None or step.of(position) != extent or (phase and step.of(phase) != 1) or step.const:
            return None
    stride, reads = 0, []
    simplify = Simplifier([position])
    for p in range(phase.extent if phase else 1):
        live = []
        for t in range(tap.extent if tap else 1):
            at = _values(phase, p) | _values(tap, t)
            if not _lives(c.a, at, phase, tap):
                continue
            index = affine(simplify(substitute(read.indices[dim], at)))
            if index is None or index.coeffs.keys() != {id_of(position.var)}:
                return None
            step_ = index.of(position)
            if step_ < 1 or (stride and stride != step_):
                return None
            stride = step_
            live.append((index.const, t))
        reads.append(tuple(live))
    if not stride:
        return None
    return Side(dim, int(read.source.shape[dim]), position, tap, phase, stride, tuple(reads), limit)


def _values(axis: Iter | None, value: int) -> dict[Any, Expr]:
    return {axis.var: tirx.const(value, axis.var.ty.dtype)} if axis else {}


def _lives(weights: Operand, at: Mapping[Any, Expr], phase: Iter | None, tap: Iter | None) -> bool:
    """Whether the weights' guards on this side's phase and tap hold."""
    mine = _ids(a for a in (phase, tap) if a)
    simplify = Simplifier()
    return all(is_const(simplify(substitute(g, at)), 1) for g in weights.guards if _used([g]) <= mine)


def _guards_hold(image: Operand, sides: Sequence[Side]) -> bool:
    """Whether the image's guards say no more than that a windowed index is inside the image."""
    for g in image.guards:
        side = next((s for s in sides if id_of(s.position.var) in _used([g])), None)
        if side is None or not _used([g]) <= _ids(a for a in (side.position, side.tap, side.phase) if a):
            return False
        for p, live in enumerate(side.reads):
            for offset, t in live:
                test = Simplifier([side.position])(substitute(g, _values(side.phase, p) | _values(side.tap, t)))
                if is_const(test, 1):
                    continue
                bound = interval_bound(test, side.position.var)
                low, high = -(offset // side.stride), -(-(side.image - offset) // side.stride)
                if bound is None or not is_const(Simplifier()(bound[1]), {"lo": low, "hi": high}.get(bound[0], -1)):
                    return False
    return True


def _stores_rows(c: Contraction, sides: Sequence[Side]) -> bool:
    """Whether weights depend on no position, outputs are contiguous along the last side, and guards are phases' overhang."""
    last, positions = sides[-1], _ids(s.position for s in sides)
    phases = last.phase.extent if last.phase else 1
    mine = [_ids(a for a in (s.position, s.phase) if a) for s in sides]
    of_tap = [_ids(a for a in (s.tap, s.phase) if a) for s in sides]
    if _used([c.a.expr, *c.a.guards]) & positions or any(not any(_used([g]) <= m for m in mine) for g in c.guard):
        return False
    if any(not any(_used([g]) <= m for m in of_tap) for g in c.a.guards):
        return False
    places = [link.place for link in c.outputs]
    return all(p is not None and p.of(last.position) == phases and (last.phase is None or p.of(last.phase) == 1) for p in places)


def _reads_rows(c: Contraction, sides: Sequence[Side]) -> bool:
    """Whether the other operand is read at unit stride (or not at all) along the last side, without conditions."""
    var, gradient = sides[-1].position.var, c.a
    return (
        not gradient.guards
        and not c.guard
        and all(slope(flat(r.source, r.indices, "int64"), var) in (0, 1) for r in loads(gradient.expr))
    )


def taps_of(sides: Sequence[Side]) -> int:
    """Number of taps, summed over the phases."""
    return math.prod(sum(len(live) for live in s.reads) for s in sides)
