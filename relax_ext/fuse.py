"""Group kernels that should be one pass over memory. In: a legalized module. Out: the same with fused PrimFuncs.

Four rules, each only where it saves bytes:
1. data movement (transposes, slices, broadcasts, constants) moves into the contraction, attention, reduction or
   elementwise kernel that reads it; into the first two even when others read it too, since packing reads any layout;
2. an elementwise kernel joins the kernel that produces its operand, when it reads it at the index it writes
   (epilogues of contractions and reductions, chains, the optimizer's update); results that others read are
   stored on the way, so a fused kernel may have several outputs. Cheap arithmetic on what is stored anyhow, with
   reductions among its readers, waits: those can do it again for less than a store and a load, by rules 3 and 4;
3. arithmetic with a single reader joins the reduction that reads it;
4. reductions over the same rows, and the arithmetic between and around them, become one pass over each row.
Views (reshapes) move no data and stay between kernels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from tilegrad._base.tvm import ir, relax, tirx, tvm, tvm_ffi
from tilegrad.relax_ext.lowered import Lowered, Node, is_if_then_else
from tilegrad.relax_ext.rows import Rows
from tilegrad.schedules.stages import Stage, loads

_SPATIAL = ("movement", "elementwise")
_PACKING = ("contraction", "attention")
"""Kinds that pack their operands, or read them at any stride."""

MAX_KERNELS = 32
"""Longer chains save nothing more and cost compile time that grows faster than their length."""


@dataclass(eq=False)
class _Group:
    """Kernels to fuse into one. ``home`` are those whose results others may read; the rest are copies of movements."""

    home: list[Node]
    copies: set[Node] = field(default_factory=set)

    def __contains__(self, node: Node) -> bool:
        return node in self.copies or node in self.home


def fuse(mod: tvm.IRModule) -> tvm.IRModule:
    """Fuse ``main`` of a legalized module."""
    low = Lowered(mod)
    return relax.transform.FuseTIR()(_emit(low, _Fuser(low).groups()))


class _Fuser:
    def __init__(self, low: Lowered) -> None:
        self.low = low
        self.group: dict[Node, _Group] = {n: _Group([n]) for n in low.nodes}
        self.producers = {n: self._producers(n) for n in low.nodes}
        self.users: dict[Node, list[Node]] = {n: [] for n in low.nodes}
        for n, producers in self.producers.items():
            for p in producers:
                self.users[p].append(n)
        self.returned = {low.producer[r] for r in low.results if isinstance(r, relax.Var) and r in low.producer}

    def _producers(self, node: Node) -> list[Node]:
        """Distinct producers of a node's arguments."""
        found = (self.low.producer.get(a) for a in node.args if isinstance(a, relax.Var))
        return list(dict.fromkeys(p for p in found if p is not None))

    def groups(self) -> list[_Group]:
        """The groups in an order that respects every dependence."""
        for n in self.low.nodes:
            if n.kind in (*_PACKING, "reduction", "elementwise"):
                self._absorb_movement(n)
        waiting = [n for n in self.low.nodes if n.kind in _SPATIAL and not self._join_producer(n)]
        for n in reversed(self.low.nodes):
            if n.kind == "elementwise":
                self._join_reduction(n)
        for n in self.low.nodes:
            if n.kind == "reduction":
                self._join_rows(n)
        for n in waiting:
            if not self._anchored(self.group[n]):
                self._join_producer(n, wait=False)
        return self._ordered()

    # rule 1
    def _absorb_movement(self, node: Node) -> None:
        group = self.group[node]
        todo = list(self.producers[node])
        while todo:
            p = todo.pop()
            alone = len(self.users[p]) == 1 and p not in self.returned
            free = all(not loads(s.body) for s in p.stages)
            moves = p.kind == "movement" or (node.kind == "attention" and self._views_movement(p))
            plain = all(len(loads(s.body)) == 1 for s in p.stages)  # not a choice among several arrays
            if moves and p not in group and (node.kind in _PACKING and plain or alone or free):
                group.copies.add(p)
                todo += self.producers[p]

    def _views_movement(self, node: Node) -> bool:
        """Whether a reshape is of something moved: attention reads through both (heads split off a row, then turned)."""
        return node.kind == "view" and all(p.kind == "movement" for p in self.producers[node]) and bool(self.producers[node])

    # rule 2
    def _join_producer(self, node: Node, wait: bool = True) -> bool:
        """Join every producer that a node may join. False, and nothing done, where it had better wait for its readers."""
        if self._only_copied(node):
            return True
        for p in sorted(self.producers[node], key=lambda p: (self._rank(self.group[p]), -p.index)):
            own, into = self.group[node], self.group[p]
            if into is own or p in own or p.kind in ("view", "join", "opaque") or len(p.outs) != 1:
                continue
            if self._anchored(into) and self._anchored(own) or not _reads_pointwise(node, p.outs[0]):
                continue
            if wait and self._anchored(into) and self._left_to_readers(node, p):
                return False
            if not self._may_not_merge(into, own):
                self._merge(into, own)
        return True

    def _left_to_readers(self, node: Node, producer: Node) -> bool:
        """Whether to store a node's result beside its producer's would only cost: a reduction reads either of them, nothing that
        could not do the node's arithmetic itself reads the node, and that arithmetic is cheap. Or that reduction alone reads the
        node, and something else the producer: a gradient's squares for the norm that clips its update."""
        readers = self.users[node]
        alone = len(readers) == 1 and (len(self.users[producer]) > 1 or producer in self.returned)
        return (
            (alone or self._read_by_reduction(producer))
            and self._read_by_reduction(node)
            and node not in self.returned
            and all(u.kind in (*_SPATIAL, "reduction") for u in readers)
            and not any(_has_call(s.body) for s in node.stages)
        )

    def _read_by_reduction(self, node: Node) -> bool:
        """Whether a reduction reads a node's result itself, which it then does not get from a register."""
        return any(u.kind == "reduction" for u in self.users[node])

    @staticmethod
    def _rank(group: _Group) -> int:
        kinds = {n.kind for n in group.home}
        return 0 if "contraction" in kinds else 1 if "reduction" in kinds else 2

    @staticmethod
    def _anchored(group: _Group) -> bool:
        """Whether the group has its one contraction or reduction."""
        return any(n.kind not in _SPATIAL for n in group.home)

    def _merge(self, into: _Group, own: _Group) -> None:
        """Move a group's members into another."""
        into.home += own.home
        into.copies |= own.copies
        for n in own.home:
            self.group[n] = into

    # rule 3
    def _join_reduction(self, node: Node) -> None:
        own = self.group[node]
        readers = {id(self.group[u]): self.group[u] for n in own.home for u in self.users[n] if u not in own}
        if len(readers) != 1 or any(n in self.returned for n in own.home) or any(n.kind not in _SPATIAL for n in own.home):
            return
        into = next(iter(readers.values()))
        anchor = next((n for n in into.home if n.kind not in _SPATIAL), None)
        if anchor is None or anchor.kind != "reduction" or self._may_not_merge(own, into):
            return
        if not all(_reads_once_or_cheap(anchor, n) for n in own.home if n.outs[0] in anchor.args):
            return
        self._merge(into, own)

    # rule 4
    def _join_rows(self, anchor: Node) -> None:
        group = self.group[anchor]
        rows = Rows.of(anchor)
        if rows is None or "contraction" in {n.kind for n in group.home}:
            return
        if not rows.add_all(n for n in self._members(group) if n is not anchor):
            return
        tried: set[int] = set()
        while (other := self._neighbour(group, rows, tried)) is not None:
            tried.add(id(other))
            members = self._members(other)
            fits = all(n.kind in (*_SPATIAL, "reduction") and len(n.outs) == 1 for n in members)
            if (
                fits
                and self._cheap_to_repeat([*self._members(group), *members], rows)
                and not self._may_not_merge(group, other)
                and rows.add_all(members)
            ):
                self._merge(group, other)
                tried.clear()

    def _members(self, group: _Group) -> list[Node]:
        return [*group.home, *group.copies]

    def _neighbour(self, group: _Group, rows: Rows, tried: set[int]) -> _Group | None:
        """A group not yet tried that exchanges a value with this one, or reduces the same array, in known rows."""
        near = [self.group[u] for n in group.home for u in self.users[n] if n.outs[0] in rows.dims]
        near += [self.group[p] for n in self._members(group) for p in self.producers[n] if p.outs[0] in rows.dims]
        shared = {a for n in self._members(group) for a in n.args if a in rows.dims}
        sums = [self.group[n] for n in self.low.nodes if n.kind == "reduction"]
        near += [g for g in sums if any(a in shared for m in self._members(g) for a in m.args)]
        return next((g for g in near if g is not group and id(g) not in tried), None)

    def _cheap_to_repeat(self, members: list[Node], rows: Rows) -> bool:
        """Passes over a row evaluate what they share again: at most one kernel may have costly arithmetic a column."""
        size = math.prod(rows.extents)
        return sum(any(_has_call(s.body) and math.prod(s.shape) > size for s in n.stages) for n in members) <= 1

    def _only_copied(self, node: Node) -> bool:
        """Whether every reader has its own copy of a movement, so that it need not exist by itself."""
        return node not in self.returned and all(node in self.group[u].copies for u in self.users[node])

    def _feeds(self, group: _Group) -> list[_Group]:
        """Groups that a group reads from."""
        out: dict[int, _Group] = {}
        for n in [*group.home, *group.copies]:
            for p in self.producers[n]:
                if p not in group:
                    out[id(self.group[p])] = self.group[p]
        return list(out.values())

    def _may_not_merge(self, a: _Group, b: _Group) -> bool:
        """Whether they are too long together, or a path leaves one of them and enters the other through a third."""
        return len(a.home) + len(b.home) > MAX_KERNELS or self._detour(a, b) or self._detour(b, a)

    def _detour(self, start: _Group, end: _Group) -> bool:
        first = min(n.index for n in start.home)
        todo, seen = [g for g in self._feeds(end) if g is not start and g is not end], set()
        while todo:
            g = todo.pop()
            if g is start:
                return True
            if id(g) not in seen and any(n.index > first for n in g.home):  # what lies before start cannot need it
                seen.add(id(g))
                todo += self._feeds(g)
        return False

    def _ordered(self) -> list[_Group]:
        groups = {id(g): g for g in self.group.values() if not all(self._only_copied(n) for n in g.home)}
        out: list[_Group] = []
        done: set[int] = set()

        def visit(g: _Group) -> None:
            stack = [(g, iter(self._feeds(g)))]
            done.add(id(g))
            while stack:
                top, feeds = stack[-1]
                for f in feeds:
                    if id(f) not in done:
                        done.add(id(f))
                        stack.append((f, iter(self._feeds(f))))
                        break
                else:
                    out.append(top)
                    stack.pop()

        for g in sorted(groups.values(), key=lambda g: max(n.index for n in g.home)):
            if id(g) not in done:
                visit(g)
        return out


def _reads_pointwise(node: Node, var: relax.Var | None) -> bool:
    """Whether ``node`` reads ``var`` only at the index at which it writes its result."""
    if var is None or len(node.outs) != 1:
        return False
    buffers = {p for p, a in zip(node.func.params, node.args, strict=False) if isinstance(a, relax.Var) and a.same_as(var)}
    return all(pointwise(node.stages, b, node.func.params[-1]) for b in buffers)


def pointwise(stages: tuple[Stage, ...], source: tirx.Var, result: tirx.Var) -> bool:
    """Whether every path from buffer ``source`` to buffer ``result`` stays at one index (same shape, no reduction)."""
    tainted = {source}
    for s in stages:
        hit = [load for load in loads(s.body) if load.source in tainted]
        if not hit:
            continue
        if s.reduce or not all(_is_own_index(s, load) for load in hit):
            return False
        tainted.add(s.buffer)
    return result in tainted


def _is_own_index(stage: Stage, load: ir.TensorLoad) -> bool:
    if tuple(int(d) for d in load.source.shape) != stage.shape:
        return False
    return all(e.same_as(i.var) or i.extent == 1 for e, i in zip(load.indices, stage.spatial, strict=True))


def _reads_once_or_cheap(reduction: Node, producer: Node) -> bool:
    """A multi-stage reduction would evaluate its operand once a stage: only cheap arithmetic may be repeated."""
    var = producer.outs[0]
    params = {
        p for p, a in zip(reduction.func.params, reduction.args, strict=False) if isinstance(a, relax.Var) and a.same_as(var)
    }
    reading = [s for s in reduction.stages if any(load.source in params for load in loads(s.body))]
    return len(reading) <= 1 or not any(_has_call(s.body) for s in producer.stages)


def _has_call(expr: tirx.PrimExpr) -> bool:
    found: list[ir.Call] = []
    tvm_ffi.structural_walk(expr, (ir.Call, lambda e: found.append(e)))
    return any(not is_if_then_else(c) for c in found)


def _emit(low: Lowered, groups: list[_Group]) -> tvm.IRModule:
    """Rebuild main with one Primitive function a group."""
    bb = relax.BlockBuilder(low.mod)
    home = {n: g for g in groups for n in g.home}
    wanted = {r for r in low.results if isinstance(r, relax.Var)}
    for g in groups:
        for n in [*g.home, *g.copies]:
            wanted |= {a for a in n.args if isinstance(a, relax.Var) and a in low.producer and low.producer[a] not in g}
    bb._begin_dataflow_block()
    new: dict[relax.Var, relax.Expr] = {}
    for g in groups:
        _emit_group(low, bb, g, new, [o for n in g.home if home.get(n) is g for o in n.outs if o in wanted])
    out = bb.emit_output(relax.Tuple([new.get(r, r) for r in low.results]))
    block = bb._end_block()
    func = relax.Function(low.params, relax.SeqExpr([block], out), out.ty, is_pure=True).with_attr("global_symbol", "main")
    bb.update_func(low.mod.get_global_var("main"), func)
    return relax.transform.DeadCodeElimination()(bb.get())


def _emit_group(low: Lowered, bb: relax.BlockBuilder, group: _Group, new: dict, outs: list[relax.Var]) -> None:
    members = sorted({*group.home, *group.copies}, key=lambda n: n.index)
    if len(members) == 1:
        (n,) = members
        args = relax.Tuple([new.get(a, a) for a in n.args])
        var = bb.emit(ir.Call(n.call.op, [n.call.args[0], args, *n.call.args[2:]], n.call.attrs, n.call.ty_args))
        for i, o in enumerate(n.outs):
            if o is not None:
                new[o] = bb.emit(relax.TupleGetItem(var, i)) if len(n.outs) > 1 else var
        return
    inner_of: dict[relax.Var, relax.Expr] = {}
    params: list[relax.Var] = []
    outer: list[relax.Expr] = []
    inner = relax.BlockBuilder()
    inner._begin_dataflow_block()
    for n in members:
        args = []
        for a in n.args:
            if isinstance(a, relax.Var) and a not in inner_of:
                inner_of[a] = relax.Var(a.name, a.ty)
                params.append(inner_of[a])
                outer.append(new.get(a, a))
            elif not isinstance(a, relax.Var):  # FuseTIR takes no constants inside: they come in as arguments
                params.append(relax.Var("const", a.ty))
                outer.append(a)
                a = params[-1]
            args.append(inner_of.get(a, a))
        call = ir.Call(n.call.op, [n.call.args[0], relax.Tuple(args), *n.call.args[2:]], n.call.attrs, n.call.ty_args)
        made = inner.emit(call)
        for i, o in enumerate(n.outs):
            if o is not None:
                inner_of[o] = inner.emit(relax.TupleGetItem(made, i)) if len(n.outs) > 1 else made
    result = inner_of[outs[0]] if len(outs) == 1 else relax.Tuple([inner_of[o] for o in outs])
    gv_out = inner.emit_output(result)
    block = inner._end_block()
    fn = relax.Function(params, relax.SeqExpr([block], gv_out), gv_out.ty, is_pure=True).with_attr("Primitive", True)
    name = "_".join(n.name.rstrip("0123456789") for n in members)
    gv = bb.add_func(fn, name[:60])
    var = bb.emit(ir.Call(gv, outer))
    for i, o in enumerate(outs):
        new[o] = bb.emit(relax.TupleGetItem(var, i)) if len(outs) > 1 else var
