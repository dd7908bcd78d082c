"""From pending nodes to values: what must be computed together, the program cache, in-place updates.

One evaluation computes the values asked for; if a parameter update is pending it computes that update and, in the
same program, every live Tensor that depends on an array about to be overwritten. The cache is keyed on the recording
(operators, types, sharing, what is differentiated, what is updated); a hit runs neither the gradient pass nor lowering.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilegrad._base.errors import TilegradError
from tilegrad.frontend import convert, execute
from tilegrad.frontend.recording import Node, ordered, usage, user_call

MAX_DEPTH, MAX_DEPTH_WITHOUT_GRADIENT = 500, 100
"""A chain of this many pending operations is evaluated before it grows further (not while tracing)."""

SHARED = 1 << 60
"""The depth of a leaf on memory that its user may write at any time: whatever reads it must do so at once, or from a copy."""


@dataclass
class Update:
    """A pending in-place assignment: ``base`` holds the array that ``new``'s value will be written to."""

    tensor: Any
    base: Node
    new: Node
    step: bool


class _Pending(threading.local):
    def __init__(self) -> None:
        self.live: list[weakref.ref[Any]] = []
        self.live_limit = 1024
        self.updates: dict[Node, Update] = {}  # by the new node
        self.data: dict[Any, list[weakref.ref[Node]]] = {}
        self.tracing = False
        self.whole = False  # within what must be carried out together: nothing is computed in between


pending = _Pending()
_writers: dict[Node, int] = {}
"""Which thread has an update pending that makes this node: every thread's."""


def register(tensor: weakref.ref[Any]) -> None:
    """Remember a Tensor that is pending or that shares the array of a state."""
    live = pending.live
    live.append(tensor)
    if len(live) > pending.live_limit:
        _prune()
        pending.live_limit = max(1024, 2 * len(pending.live))


def _is_watched(tensor: Any) -> bool:
    node = tensor._node
    return node.value is None or bool(node.inputs) or (node.owner is not None and node.owner() is not tensor)


def is_too_deep(node: Node) -> bool:
    """Whether a pending chain must be computed before it grows further."""
    too_deep = node.depth > (MAX_DEPTH if node.grad else MAX_DEPTH_WITHOUT_GRADIENT)
    return too_deep and not pending.tracing and not pending.whole


def value_of(node: Node) -> np.ndarray:
    """The node's value, computing it (and a pending update) if need be."""
    if node.value is None:
        evaluate([node])
    assert node.value is not None
    return node.value


def evaluate(nodes: Sequence[Node]) -> None:
    """Compute the values of ``nodes``."""
    if pending.updates:
        behind_step = _reaches(nodes, {u.new for u in pending.updates.values() if u.step})
        flush([] if behind_step else nodes)
    missing = [n for n in nodes if n.value is None]
    if missing:
        _run(missing, [])


def flush(requested: Sequence[Node] = ()) -> None:
    """Carry out the pending updates, together with every live Tensor that depends on an overwritten array."""
    updates = list(pending.updates.values())
    if not updates:
        return
    frozen = _release({u.base for u in updates}, {id(u.tensor) for u in updates})
    try:
        _run([n for n in dict.fromkeys([*frozen, *requested]) if n.value is None], updates)
    except TilegradError as error:
        frozen = [n for n in frozen if n not in requested]
        if all(n.value is not None for n in frozen):
            raise
        # Nobody asked for the frozen ones now: they keep the error for whoever does, and the update goes on without them.
        _run([n for n in requested if n.value is None], updates)
        for n in frozen:
            n.stale = error if n.value is None else n.stale
    for n in frozen:
        _settle(n, keep_graph=False)
    for u in updates:
        u.base.stale = True
        u.new.value, u.base.value = u.base.value, None
        _settle(u.new, keep_graph=False)
        del _writers[u.new]
    pending.updates.clear()
    _prune()


def protect(tensors: Iterable[Any]) -> None:
    """Before these Tensors' arrays are written by other means: compute whatever live Tensor depends on them."""
    flush()
    tensors = list(tensors)
    frozen = _release({t._node for t in tensors}, {id(t) for t in tensors})
    _run([n for n in frozen if n.value is None], [])
    for n in frozen:
        _settle(n, keep_graph=False)
    _prune()


def _release(overwritten: set[Node], owners: set[int]) -> list[Node]:
    """The nodes of live Tensors that depend on arrays about to be overwritten. Other Tensors on such an array get a copy."""
    news = set(pending.updates)
    live = [t for r in pending.live if (t := r()) is not None]
    roots = dict.fromkeys(t._node for t in live if t._node not in news)
    arrays = {id(n.value) for n in overwritten}
    touched = set(overwritten)
    for n in ordered(roots, lambda n: () if n in news else n.inputs):
        shares = n.op == "leaf" and id(n.value) in arrays  # an alias made by detach()
        if n not in news and (shares or any(i in touched for i in n.inputs)):
            touched.add(n)
    for t in live:
        if t._node.op == "leaf" and id(t._node.value) in arrays and id(t) not in owners:
            _keep_copy(t)
    return [n for n in roots if n in touched and n not in overwritten and n.op != "leaf"]


def _prune() -> None:
    pending.live = [r for r in pending.live if (t := r()) is not None and _is_watched(t)]


def _keep_copy(tensor: Any) -> None:
    old = tensor._node
    node = Node("leaf", (), (), old.type, -1, old.where)
    node.value, node.owner = old.value.copy(), weakref.ref(tensor)
    tensor._node = node


def _reaches(nodes: Iterable[Node], goals: set[Node]) -> bool:
    return bool(goals) and any(n in goals for n in ordered(nodes, lambda n: () if n.value is not None else n.inputs))


def assign(tensor: Any, new: Node, step: bool) -> None:
    """Record ``tensor <- new``, in place. ``step``: an optimizer's update, of which at most one may be pending."""
    old = tensor._node
    _check_threads([old])
    update = pending.updates.pop(old, None)
    _writers.pop(old, None)
    if update is None:
        if old.value is None:
            evaluate([old])
        _settle(old, keep_graph=False)
        update = Update(tensor, old, new, step)
    update.new, update.step = new, update.step or step
    new.owner = weakref.ref(tensor)
    new.bound, new.grad, new.stop = old.bound, old.bound, False
    pending.updates[new] = update
    _writers[new] = threading.get_ident()
    tensor._node = new


def _check_threads(nodes: Iterable[Node]) -> None:
    """Raise UsageError when one of the nodes is an update that another thread has pending."""
    if len(_writers) == len(pending.updates):
        return
    me = threading.get_ident()
    if any(_writers.get(n, me) != me for n in nodes):
        raise usage(
            "parameter", "an update that is pending in another thread", "a model that one thread trains",
            "Train each model in one thread; before another takes over, ask for a value, such as loss.item().",
        )  # fmt: skip


def overwrite(tensor: Any, value: np.ndarray) -> None:
    """Write ``value`` into the tensor's own array now; whatever depends on the old one is computed first."""
    array = value_of(tensor._node)
    _settle(tensor._node, keep_graph=False)
    protect([tensor])
    np.copyto(array, value)


@contextmanager
def whole() -> Iterator[None]:
    """Record updates that belong together, such as an optimizer's step: no bound on what is pending cuts between them."""
    before, pending.whole = pending.whole, True
    try:
        yield
    finally:
        pending.whole = before


@contextmanager
def tracing() -> Iterator[dict[Node, Update]]:
    """Record without effect: yields the updates recorded inside, which are undone at the end."""
    flush()
    outer = dict(pending.__dict__)
    pending.__init__()  # type: ignore[misc]
    pending.tracing = True
    try:
        yield pending.updates
    finally:
        for u in pending.updates.values():
            u.tensor._node = u.base
            del _writers[u.new]
        pending.__dict__.update(outer)


def step_is_pending(tensors: Iterable[Any]) -> bool:
    """Whether an optimizer's update of one of these is pending."""
    return any((u := pending.updates.get(t._node)) is not None and u.step for t in tensors)


def new_data(node: Node) -> None:
    """Told of every array that enters. Bounds loops that record without ever asking for a value: when the array before
    the last one from the same call is still needed by pending work, that work is done now."""
    if pending.tracing or pending.whole:
        return
    ring = pending.data.setdefault(user_call(), [])
    ring.append(weakref.ref(node))
    if len(ring) < 3:
        return
    oldest = ring.pop(0)()
    if oldest is None:
        return
    news = set(pending.updates)
    waiting = dict.fromkeys([t._node for r in pending.live if (t := r()) is not None and t._node.value is None] + list(news))
    touched = {oldest}
    for n in ordered(waiting, lambda n: n.inputs):
        if any(i in touched for i in n.inputs):
            touched.add(n)
    if touched & news:
        flush()
    due = [n for n in waiting if n in touched and n.value is None]
    if due:
        evaluate(due)


# ***** one program *****


@dataclass
class _Variant:
    """A program for one recording. ``fixed``: numbers baked in, by position; the others are arguments."""

    fixed: dict[int, Any]
    run: execute.Prepared


@dataclass
class _Family:
    variants: list[_Variant] = field(default_factory=list)


_cache: dict[Any, _Family] = {}
compiles = 0
"""Programs compiled by evaluation so far (tests count with it)."""


def cache_clear() -> None:
    """Forget every compiled program."""
    _cache.clear()


def _run(wanted: Sequence[Node], updates: Sequence[Update]) -> None:
    direct = [u for u in updates if u.new.op != "leaf"]
    if not wanted and not direct:
        return
    roots = [*wanted, *(u.new for u in direct)]
    rec = convert.needed(roots)
    _check_threads(rec.nodes)
    key, leaves, consts, index = _key(rec)
    base_index = tuple(index.setdefault(u.base, -1 - k) for k, u in enumerate(direct))
    full_key = (key, tuple(index[n] for n in wanted), tuple((b, index[u.new]) for b, u in zip(base_index, direct, strict=True)))
    settings = execute.current_settings()
    family = _cache.setdefault((full_key, settings), _Family())
    values = [c.attrs[0] for c in consts]
    variant = next((v for v in family.variants if all(_same(values[i], x) for i, x in v.fixed.items())), None)
    if variant is None:
        variant = _compile(rec, leaves, consts, wanted, direct, family)
    free = [i for i in range(len(values)) if i not in variant.fixed]
    extra = [np.asarray(values[i], consts[i].type.dtype) for i in free]
    bases = {u.base for u in direct}
    inputs = [n.value for n in leaves if n.value is not None and n not in bases] + extra
    results = variant.run(inputs, [u.base.value for u in direct if u.base.value is not None])
    for n, value in zip(wanted, results, strict=True):
        n.value = value
        _settle(n, keep_graph=n.grad and not n.bound)


def _same(a: Any, b: Any) -> bool:
    """Whether two numbers are one in a compiled program (NaN is itself)."""
    return type(a) is type(b) and (a == b or (a != a and b != b))


def _settle(node: Node, keep_graph: bool) -> None:
    """A node whose value is known becomes a leaf unless it may still be differentiated."""
    if node.op == "leaf":
        return
    node.depth = 0
    if not keep_graph:
        node.op, node.inputs, node.attrs, node.sig = "leaf", (), (), -1


def _key(rec: convert.Recording) -> tuple[tuple[Any, ...], list[Node], list[Node], dict[Node, int]]:
    index: dict[Node, int] = {}
    key: list[Any] = []
    leaves: list[Node] = []
    consts: list[Node] = []
    for n in rec.nodes:
        index[n] = len(index)
        if n.op == "const":
            key.append((n.type, type(n.attrs[0])))
            consts.append(n)
        elif rec.is_leaf(n):
            if n.value is None:
                _refuse(n)
            key.append(n.type)
            leaves.append(n)
        else:
            key.append((n.sig, n.stop, *[index[i] for i in n.inputs]))
    return tuple(key), leaves, consts, index


def _refuse(node: Node) -> None:
    if isinstance(node.stale, TilegradError):
        raise node.stale
    if node.stale:
        raise usage(
            "value", "a graph on parameters that have since been overwritten", "a graph recorded after the update",
            "Ask for values or gradients before opt.step(), or compute the loss again.",
        )  # fmt: skip
    raise usage(
        "value", "an argument of a function that is being traced", "values known only when the compiled function runs",
        "Do not call .item(), .numpy(), float() or bool() on arguments inside a traced function.",
    )  # fmt: skip


def _compile(
    rec: convert.Recording,
    leaves: Sequence[Node],
    consts: Sequence[Node],
    wanted: Sequence[Node],
    updates: Sequence[Update],
    family: _Family,
) -> _Variant:
    """Compile for the numbers at hand. A number that differs from an earlier variant's becomes an argument."""
    global compiles
    values = [c.attrs[0] for c in consts]
    free = {i for v in family.variants for i in range(len(values)) if i not in v.fixed or not _same(v.fixed[i], values[i])}
    bases = {u.base: k for k, u in enumerate(updates)}
    ports: dict[Node, convert.Port] = {}
    inputs: list[str] = []
    for n in leaves:
        name = f"s{bases[n]}" if n in bases else f"x{len(inputs)}"
        ports[n] = convert.Port(name, "state" if n in bases else "input")
        if n not in bases:
            inputs.append(name)
    for base, k in bases.items():
        ports.setdefault(base, convert.Port(f"s{k}", "state"))
    for i in sorted(free):
        ports[consts[i]] = convert.Port(f"c{i}", "input")
        inputs.append(f"c{i}")
    outputs = [convert.Output(f"y{i}", n) for i, n in enumerate(wanted)]
    outputs += [convert.Output(f"new_s{k}", u.new, f"s{k}") for k, u in enumerate(updates)]
    graph = convert.to_graph(rec, ports, outputs)
    compiles += 1
    run = execute.prepare(graph, inputs, [f"s{k}" for k in range(len(updates))], [o.name for o in outputs if o.updates is None])
    variant = _Variant({i: v for i, v in enumerate(values) if i not in free}, run)
    family.variants.append(variant)
    return variant
