"""Small kernels that need none of each other become one call. In: a fused module. Out: the same with fewer, longer kernels.

Updates of parameters that no gradient kernel takes along (biases behind a clipped norm, embeddings), sums of squares of small
gradients, zeroing, clipping: each alone costs a start of the threads and leaves all but one idle. Together they are one pass,
whose elements the elementwise template divides among threads over all arrays.

A kernel's *level* is the longest way from it to a result. Kernels of one level need nothing of each other, and since every
edge leads to a lower level no choice of groups can close a cycle.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from heapq import heapify, heappop, heappush

import numpy as np

from tilegrad._base.tvm import relax, tvm
from tilegrad.relax_ext.fuse import Group, emit
from tilegrad.relax_ext.lowered import Lowered, Node
from tilegrad.runtime.program import numpy_dtype

SMALL_BYTES = 1 << 18
"""Traffic of a kernel worth combining: some ten microseconds, of which a start of the threads is a good part."""
MAX_TOGETHER = 8
"""Kernels in one call. Compile time grows faster than their number: 24 updates of Adam took 12 s longer by sixteens."""


def combine(mod: tvm.IRModule) -> tvm.IRModule:
    """Combine small independent kernels of a fused module's ``main``."""
    low = Lowered(mod)
    groups = _groups(low)
    if all(len(g) == 1 for g in groups):
        return mod
    return relax.transform.FuseTIR()(emit(low, [Group(g) for g in _in_order(low, groups)]))


def _groups(low: Lowered) -> list[list[Node]]:
    """Every kernel in one group."""
    level = _levels(low)
    done: list[list[Node]] = []
    open_: dict[tuple[int, str], list[Node]] = {}
    for n in low.nodes:
        if not _is_small(n):
            done.append([n])
            continue
        members = open_.get((level[n], n.kind))
        if members is None or len(members) == MAX_TOGETHER or _share(members, n):
            members = open_[level[n], n.kind] = []
            done.append(members)
        members.append(n)
    return done


def _in_order(low: Lowered, groups: list[list[Node]]) -> list[list[Node]]:
    """Groups after those they read from, otherwise by their last member's place: what is not combined keeps its order."""
    of = {n: k for k, g in enumerate(groups) for n in g}
    feeds = [{of[p] for n in g for p in _producers(low, n)} for g in groups]
    readers: list[list[int]] = [[] for _ in groups]
    for k, found in enumerate(feeds):
        for f in found:
            readers[f].append(k)
    waiting = [len(f) for f in feeds]
    ready = [(groups[k][-1].index, k) for k, count in enumerate(waiting) if not count]
    heapify(ready)
    out: list[list[Node]] = []
    while ready:
        _, k = heappop(ready)
        out.append(groups[k])
        for r in readers[k]:
            waiting[r] -= 1
            if not waiting[r]:
                heappush(ready, (groups[r][-1].index, r))
    return out


def _producers(low: Lowered, node: Node) -> list[Node]:
    return [low.producer[a] for a in node.args if isinstance(a, relax.Var) and a in low.producer]


def _levels(low: Lowered) -> dict[Node, int]:
    level = dict.fromkeys(low.nodes, 0)
    for n in reversed(low.nodes):
        for p in _producers(low, n):
            level[p] = max(level[p], level[n] + 1)
    return level


def _is_small(node: Node) -> bool:
    """Whether it is arithmetic on little data, or a reduction of little data to single numbers."""
    outs = [_size(v) for v in node.outs if v is not None]
    kind = node.kind == "elementwise" or (node.kind == "reduction" and max(outs, default=0) == 1)
    nbytes = sum(_size(v) * np.dtype(numpy_dtype(str(v.ty.dtype))).itemsize for v in (*node.args, *node.outs) if v is not None)
    return kind and 0 < nbytes <= SMALL_BYTES and None not in node.outs


def _share(members: Sequence[Node], node: Node) -> bool:
    """Whether one may write in place what another reads: they read one array, or one number of which either makes another."""

    def numbers(n: Node) -> bool:
        return any(v is not None and _size(v) == 1 for v in n.outs)

    read = {a for a in node.args if isinstance(a, relax.Var)}
    return any(a in read and (_size(a) > 1 or numbers(n) or numbers(node)) for n in members for a in n.args)


def _size(value: relax.Expr) -> int:
    return math.prod(int(d) for d in value.ty.shape)
