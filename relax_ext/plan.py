"""A fused module -> Program: kernel order, in-place updates, buffer offsets.

In: a module whose main calls PrimFuncs, with the Graph's ports. Out: a Program. Decision 10 of the design: a state is
live until its last reader; its new value is written in place where the writer reads the old one only at the index
it writes and runs after every other reader, otherwise it is computed beside it and copied at the end.
"""

from __future__ import annotations

import hashlib
import math
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

import numpy as np

from tilegrad._base.tvm import ir, relax, te, tirx, tvm, tvm_ffi
from tilegrad.relax_ext.fuse import pointwise
from tilegrad.relax_ext.graph import Graph
from tilegrad.relax_ext.lowered import ALIGN, Lowered, Node
from tilegrad.runtime.program import Buffer, Call, Program, Role, numpy_dtype
from tilegrad.schedules.stages import loads


@dataclass(eq=False)
class _Step:
    """One kernel call before buffers have names."""

    func: tirx.PrimFunc
    hint: str
    reads: list[str]
    writes: list[str]
    index: int = -1
    after: set[int] = field(default_factory=set)
    """Indices of the steps that must run first."""


def plan(name: str, mod: tvm.IRModule, graph: Graph) -> Program:
    """The Program of a fused module; ``graph`` gives ports and roles."""
    return _Planner(name, mod, graph).program()


class _Planner:
    def __init__(self, name: str, mod: tvm.IRModule, graph: Graph) -> None:
        self.name, self.graph, self.low = name, graph, Lowered(mod)
        self.buffers: dict[str, Buffer] = {}
        self.place: dict[relax.Expr, str] = {}
        """Buffer that holds each var (views share their source's)."""
        self.root: dict[relax.Var, relax.Expr] = {}
        """What each reshape is a view of."""
        self.whole: dict[relax.Var, relax.Expr] = {}
        """What each part is a stretch of."""
        self.pieces: dict[relax.Var, list[relax.Expr]] = {}
        """What is written straight into each joined value."""
        self.runs: list[tuple[relax.Var, list[relax.Expr], list[int]]] = []
        """Joined values with their pieces and the elements at which these begin."""
        self.order: dict[int, set[int]] = {}
        """Extra edges: node index -> nodes that must run first, so that an update may be in place."""
        self.steps: list[_Step] = []
        self.copies: list[tuple[str, str]] = []
        """(from, to) to be done after everything else."""
        self.early: list[tuple[str, str]] = []
        """(from, to) to be done before everything else: old values of states that are returned or moved."""

    def program(self) -> Program:
        self._ports()
        self._place_results()
        joins = sorted(
            (n for n in self.low.nodes if n.kind == "join"), key=lambda n: -len(n.args)
        )  # a run of pieces after its whole
        joined = {n.index for n in joins if self._place_run(n) or self._place_pieces(n)}
        for node in self.low.nodes:
            placed = node.outs[0] in self.place  # a result, returned as it is or reshaped: to be written there
            if node.part is not None and not placed and self._is_temp(self._source(node.args[0])):
                self.place[node.outs[0]] = self._part(node)
            elif node.index not in joined and (node.kind != "view" or node.part is not None):
                self._step(node)
        steps = [self._copy(a, b) for a, b in self.early] + self._ordered() + [self._copy(a, b) for a, b in self.copies]
        arena, offsets = _pack(self.buffers, steps)
        buffers = {n: b for n, b in self.buffers.items() if b.role != "temp"}
        buffers |= {n: replace(self.buffers[n], offset=at) for n, at in offsets.items()}
        kernels: dict[str, tirx.PrimFunc] = {}
        calls = []
        for s in steps:
            kernel = f"{s.hint}_{_digest(s.func)}"
            kernels[kernel] = s.func
            calls.append(Call(kernel, (*s.reads, *s.writes), len(s.writes)))
        ports = [p.name for p in self.graph.inputs if p.role == "input"]
        ports += [p.name for p in self.graph.inputs if p.role == "state"]
        ports += [p.name for p in self.graph.inputs if p.role == "hyper"]
        ports += [p.name for p in self.graph.outputs if p.updates is None]
        return Program(self.name, tuple(ports), buffers, tuple(calls), kernels, arena)

    def _ports(self) -> None:
        for port, var in zip(self.graph.inputs, self.low.params, strict=True):
            self._buffer(port.name, var.ty, port.role, port.limits)
            self.place[var] = port.name

    def _buffer(self, name: str, ty: relax.TensorType, role: Role, limits: tuple[int, int, int] | None = None) -> str:
        shape = tuple(int(d) for d in ty.shape)
        self.buffers[name] = Buffer(name, shape, str(ty.dtype), role, limits=limits)
        return name

    # where results go ------------------------------------------------------------------------------------------------
    def _place_results(self) -> None:
        """Give every returned var its final buffer, or note the copy that it needs."""
        self._views()
        updates = {p.updates for p in self.graph.outputs if p.updates is not None}
        for port, value in zip(self.graph.outputs, self.low.results, strict=True):
            target = port.updates if port.updates is not None else self._buffer(port.name, value.ty, "output")
            root = self.root.get(value, value)
            if root in self.place or not isinstance(root, relax.Var):
                self._copy_of(root, target, updates)
            elif port.updates is not None and not self._may_write_in_place(self.low.producer[root], root, port.updates):
                self.place[root] = self._buffer(f"new_{port.updates}", root.ty, "temp")
                self.copies.append((self.place[root], target))
            else:
                self.place[root] = target

    def _copy_of(self, root: relax.Expr, target: str, updates: set[str]) -> None:
        """The value already lives somewhere: an input, a constant, or another result."""
        source = self._source(root)
        if source == target:
            return
        if source in updates and root in self.low.params:  # an old value that is about to be overwritten
            saved = self._buffer(f"old_{source}", root.ty, "temp") if target in updates else target
            self.early.append((source, saved))
            if saved != target:
                self.copies.append((saved, target))
        else:
            self.copies.append((source, target))

    def _views(self) -> None:
        for n in self.low.nodes:
            if n.part is not None:
                self.whole[n.outs[0]] = n.args[0]
            elif n.kind == "view":
                self.root[n.outs[0]] = self.root.get(n.args[0], n.args[0])

    def _may_write_in_place(self, node: Node, value: relax.Var, state: str) -> bool:
        """Whether the kernel may write ``value`` over ``state``; if so its other readers are ordered before it."""
        old = next(v for v, p in zip(self.low.params, self.graph.inputs, strict=True) if p.name == state)
        if tuple(map(int, old.ty.shape)) != tuple(map(int, value.ty.shape)):
            return False
        readers = [n for n in self.low.nodes if n.kind != "view" and any(old.same_as(self.root.get(a, a)) for a in n.args)]
        if node in readers and not self._reads_at_own_index(node, old, value):
            return False
        others = [r for r in readers if r is not node]
        if any(self._depends(r, node) for r in others):
            return False
        self.order.setdefault(node.index, set()).update(r.index for r in others)
        return True

    def _reads_at_own_index(self, node: Node, old: relax.Var, value: relax.Var) -> bool:
        if any(isinstance(a, relax.Var) and a in self.root and old.same_as(self.root[a]) for a in node.args):
            return False  # read through a view: other indices
        sources = [p for p, a in zip(node.func.params, node.args, strict=False) if isinstance(a, relax.Var) and a.same_as(old)]
        results = list(node.func.params)[len(node.args) :]
        if not node.stages:
            return False
        # Every result that depends on the old value must read it at its own index: all are computed before any is stored.
        return all(self._independent_or_pointwise(node, s, r) for s in sources for r in results)

    @staticmethod
    def _independent_or_pointwise(node: Node, source: tirx.Var, result: tirx.Var) -> bool:
        tainted = {source}
        for s in node.stages:
            if any(load.source in tainted for load in loads(s.body)):
                tainted.add(s.buffer)
        return result not in tainted or pointwise(node.stages, source, result)

    def _depends(self, late: Node, early: Node) -> bool:
        """Whether ``late`` needs a result of ``early``, orderings noted so far included."""
        by_index = {n.index: n for n in self.low.nodes}
        todo, seen = [late], set()
        while todo:
            n = todo.pop()
            if n is early:
                return True
            if n.index in seen:
                continue
            seen.add(n.index)
            todo += [self.low.producer[a] for a in n.args if isinstance(a, relax.Var) and a in self.low.producer]
            todo += [by_index[i] for i in self.order.get(n.index, ())]
        return False

    # calls -----------------------------------------------------------------------------------------------------------
    def _read(self, expr: relax.Expr) -> str:
        """The buffer to pass for an argument: its own, or a view of the one it is a reshape of."""
        return self._view(self._source(expr), tuple(int(d) for d in expr.ty.shape))

    def _source(self, expr: relax.Expr) -> str:
        root = self.root.get(expr, expr) if isinstance(expr, relax.Var) else expr
        if root not in self.place:
            if not isinstance(root, ir.GenericConst):
                raise AssertionError(f"{root} has no buffer")
            data = root.value.numpy()
            name = f"const{sum(b.role == 'const' for b in self.buffers.values())}"
            self.buffers[name] = Buffer(name, data.shape, str(data.dtype), "const", None, data)
            self.place[root] = name
        return self.place[root]

    def _step(self, node: Node) -> None:
        types = node.call.ty.fields if isinstance(node.call.ty, relax.TupleType) else [node.call.ty]
        writes = []
        for i, (out, ty) in enumerate(zip(node.outs, types, strict=True)):
            if out is None or out not in self.place:
                name = self._buffer(f"t{node.index}" + (f"_{i}" if len(types) > 1 else ""), ty, "temp")
                if out is not None:
                    self.place[out] = name
            if out is not None:  # a result port may have the shape of a later reshape
                name = self._view(self.place[out], tuple(int(d) for d in ty.shape))
            writes.append(name)
        if not any(self.buffers[w].nbytes for w in writes):
            return  # nothing to compute
        reads = [self._read(a) for a in node.args]
        func = node.func
        if any(self._overlap(r, w) for r in reads for w in writes):  # in place: LLVM must not assume otherwise
            func = func.with_attr("tirx.noalias", False)
        after = {self.low.producer[a].index for a in self._roots(node) if a in self.low.producer} | self.order.get(
            node.index, set()
        )
        self.steps.append(_Step(func, node.name.rstrip("0123456789"), reads, writes, node.index, after))

    def _overlap(self, a: str, b: str) -> bool:
        """Whether two buffers have memory in common."""
        x, y = self.buffers[a], self.buffers[b]
        first, second = (p.offset or 0 if p.view_of else 0 for p in (x, y))
        return (x.view_of or a) == (y.view_of or b) and first < second + y.nbytes and second < first + x.nbytes

    def _roots(self, node: Node) -> list[relax.Var]:
        """The vars whose kernels must have run before the node can: of a part that is a view, the whole's; of what is joined
        in place, the pieces'."""
        found, todo = [], list(node.args)
        while todo:
            a = todo.pop()
            r = self.root.get(a, a)
            if r in self.whole and self.buffers[self.place[r]].role == "view":
                todo.append(self.whole[r])
            elif r in self.pieces:
                todo += self.pieces[r]
            elif isinstance(r, relax.Var):
                found.append(r)
        return found

    def _ordered(self) -> list[_Step]:
        """Original order, except that what must run later does, and that what makes no temporary runs as soon as it can.

        Those are the updates, above all: run at once, they end the lives of the activations and cotangents they read.
        """
        out: list[_Step] = []
        waiting = {s.index: s for s in self.steps}
        while waiting:
            ready = [i for i, s in waiting.items() if not s.after & waiting.keys()]  # zero-size producers have no step
            if not ready:
                raise AssertionError("cyclic order of kernels")
            i = min(ready, key=lambda i: (any(self._is_temp(w) for w in waiting[i].writes), i))
            out.append(waiting.pop(i))
        return out

    def _is_temp(self, name: str) -> bool:
        return self.buffers[self.buffers[name].view_of or name].role == "temp"

    def _copy(self, source: str, target: str) -> _Step:
        """A plain copy; shapes may differ, so both sides are seen flat."""
        flat = (math.prod(self.buffers[target].shape),)
        x = te.placeholder(flat, self.buffers[target].dtype, name="x")
        func = te.create_prim_func([x, te.compute(flat, lambda i: x[i], name="copy")]).without_attr("global_symbol")
        return _Step(func, "copy", [self._view(source, flat)], [self._view(target, flat)])

    def _view(self, base: str, shape: tuple[int, ...]) -> str:
        """The buffer's memory under another shape."""
        b = self.buffers[base]
        if b.shape == shape:
            return base
        name = f"{base}_as_{'x'.join(map(str, shape)) or 'scalar'}"
        self.buffers.setdefault(name, Buffer(name, shape, b.dtype, "view", b.offset, view_of=b.view_of or base))
        return name

    def _place_pieces(self, node: Node) -> bool:
        """Let the arguments of a join be written where it wants them, if that is possible for all."""
        (out,) = node.outs
        assert out is not None
        roots = [self.root.get(a, a) for a in node.args]
        starts = list(accumulate((math.prod(int(d) for d in a.ty.shape) for a in node.args), initial=0))
        size = np.dtype(numpy_dtype(str(out.ty.dtype))).itemsize
        free = all(
            r in self.low.producer and r not in self.place and r not in self.whole and self.low.producer[r].kind != "join"
            for r in roots
        )
        if out in self.place or not free or len(set(roots)) < len(roots) or any(s * size % ALIGN for s in starts[:-1]):
            return False
        self.place[out] = self._buffer(f"t{node.index}", out.ty, "temp")
        for r, start in zip(roots, starts, strict=False):
            self.place[r] = self._stretch(self.place[out], start, tuple(int(d) for d in r.ty.shape))
        self.pieces[out] = list(node.args)
        self.runs.append((out, roots, starts))
        return True

    def _place_run(self, node: Node) -> bool:
        """Whether pieces that lie together already are a join's result as they are."""
        (out,) = node.outs
        assert out is not None
        roots = [self.root.get(a, a) for a in node.args]
        for whole, pieces, starts in self.runs:
            at = pieces.index(roots[0]) if roots[0] in pieces else -1
            if at >= 0 and out not in self.place and pieces[at : at + len(roots)] == roots:
                self.place[out] = self._stretch(self.place[whole], starts[at], tuple(int(d) for d in out.ty.shape))
                self.pieces[out] = list(node.args)
                return True
        return False

    def _part(self, node: Node) -> str:
        """A part of a temporary's memory."""
        shape = tuple(int(d) for d in node.call.ty.shape)
        return self._stretch(self._source(node.args[0]), node.part or 0, shape)

    def _stretch(self, source: str, start: int, shape: tuple[int, ...]) -> str:
        """The memory of ``source`` from element ``start`` on."""
        b = self.buffers[source]
        whole = b.view_of or source
        at = (b.offset or 0 if b.view_of else 0) + start * b.nbytes // max(math.prod(b.shape), 1)
        name = f"{whole}_from_{at}_as_{'x'.join(map(str, shape)) or 'scalar'}"
        self.buffers.setdefault(name, Buffer(name, shape, b.dtype, "view", at, view_of=whole))
        return name


def _pack(buffers: dict[str, Buffer], steps: Sequence[_Step]) -> tuple[int, dict[str, int]]:
    """Offsets of temporaries: largest first, each at the lowest offset free during its life.

    Greedy by size, as in Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference" (2020).
    """
    life: dict[str, list[int]] = {}
    for t, s in enumerate(steps):
        for n in (buffers[b].view_of or b for b in (*s.reads, *s.writes)):
            if buffers[n].role == "temp":
                life.setdefault(n, [t, t])[1] = t
    sizes = {n: -(-max(buffers[n].nbytes, 1) // ALIGN) * ALIGN for n in life}
    offsets: dict[str, int] = {}
    placed: list[tuple[int, int, int, int]] = []  # first and last byte, first and last step
    for n in sorted(life, key=lambda n: (-buffers[n].nbytes, life[n])):
        first, last = life[n]
        at = 0
        for low, high, born, dead in placed:
            if born <= last and first <= dead:
                if at + sizes[n] <= low:
                    break
                at = max(at, high)
        offsets[n] = at
        insort(placed, (at, at + sizes[n], first, last))
    top = max((high for _, high, _, _ in placed), default=0)
    return top, offsets


def _digest(func: tirx.PrimFunc) -> str:
    """Content address of a kernel: structural hash, eight hex digits of it."""
    return hashlib.sha256(str(tvm_ffi.structural_hash(func)).encode()).hexdigest()[:8]
