"""The recorder: nodes, their types (inferred by Relax, once per signature) and the user's source line.

Recording an operation allocates one Node and looks its type up in a dictionary; TVM is asked only
the first time an (operator, attributes, input types) signature is met.
"""

from __future__ import annotations

import re
import sys
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np

from tilegrad._base.errors import DTypeError, ShapeError, TilegradError, UsageError


class Type:
    """Shape and dtype of one array. Interned: equal types are the same object."""

    __slots__ = ("dtype", "shape")
    _known: dict[tuple[tuple[int, ...], str], Type] = {}

    shape: tuple[int, ...]
    dtype: str

    @staticmethod
    def of(shape: tuple[int, ...], dtype: str) -> Type:
        """The one Type with this shape and dtype."""
        t = Type._known.get((shape, dtype))
        if t is None:
            t = Type()
            t.shape, t.dtype = shape, dtype
            t = Type._known.setdefault((shape, dtype), t)
        return t

    def __repr__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Limits:
    """Whole numbers from ``low`` to ``high``, and ``also``."""

    low: int
    high: int
    also: int

    def allow(self, x: int) -> bool:
        """Whether ``x`` is one of them."""
        return self.low <= x <= self.high or x == self.also

    def both(self, other: Limits) -> Limits:
        """What two uses of one array allow."""
        low, high = max(self.low, other.low), min(self.high, other.high)
        also = [a for a in (self.also, other.also) if self.allow(a) and other.allow(a)]
        return Limits(low, high, also[0] if also else low)


Where = tuple[CodeType, int]


class Node:
    """One recorded value.

    op       name in the table of operators, or one of
             ``leaf``   an array: ``value`` holds it
             ``const``  a Python number: ``attrs[0]``
             ``vjp``    a vector-Jacobian product (see ``gradients``); several results
             ``get``    result ``attrs[0]`` of a node with several results
    grad     a gradient can flow through it
    bound    gradients stop here: a Tensor with requires_grad, or a transform's argument
    stop     gradients must not pass (recorded under no_grad from inputs that carry gradients)
    stale    a leaf whose array has since been overwritten; the error of what could not be computed before that
    depth    longest chain of pending nodes below
    """

    __slots__ = (
        "__weakref__", "attrs", "bound", "depth", "grad", "inputs", "op", "owner", "sig", "stale", "stop", "type", "value",
        "where",
    )  # fmt: skip

    op: str
    inputs: tuple[Node, ...]
    attrs: tuple[Any, ...]
    type: Any
    sig: int
    where: Where | None
    value: np.ndarray | None
    owner: weakref.ref[Any] | None
    stale: bool | TilegradError

    def __init__(
        self, op: str, inputs: tuple[Node, ...], attrs: tuple[Any, ...], type: Any, sig: int, where: Where | None
    ) -> None:
        self.op, self.inputs, self.attrs, self.type, self.sig, self.where = op, inputs, attrs, type, sig, where
        self.value = self.owner = None
        self.grad = self.bound = self.stop = self.stale = False
        self.depth = 0

    @property
    def place(self) -> str | None:
        """``file:line`` of the user's code."""
        return f"{self.where[0].co_filename}:{self.where[1]}" if self.where else None


class _State(threading.local):
    """Per-thread switches. Threads record independently."""

    grad_enabled = True
    transforms = 0  # functions being transformed right now, one inside the other


state = _State()

_PACKAGE = str(Path(__file__).parent.parent) + "/"
_ROOT = str(Path(__file__).resolve().parent.parent) + "/"
_internal: dict[CodeType, bool] = {}


def _is_internal(code: CodeType) -> bool:
    name = code.co_filename
    rooms = tuple(_ROOT + room for room in ("frontend/", "tilegrad/"))
    hit = name.startswith((*rooms, _PACKAGE + "frontend/", _PACKAGE + "_base/")) or name.startswith("<frozen")
    _internal[code] = hit
    return hit


def user_line() -> Where | None:
    """The innermost frame that is not tilegrad's own."""
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        hit = _internal.get(code)
        if not (_is_internal(code) if hit is None else hit):
            return code, frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]
    return None


def user_call() -> Any:
    """The innermost instruction that is not tilegrad's own, to tell calls of one line apart."""
    frame = sys._getframe(1)
    while frame is not None:
        if not _is_internal(frame.f_code):
            return frame.f_code, frame.f_lasti
        frame = frame.f_back  # type: ignore[assignment]
    return None


_inferred: dict[tuple[Any, ...], tuple[Any, int]] = {}


def record(op: str, inputs: tuple[Node, ...], attrs: tuple[Any, ...] = ()) -> Node:
    """Record ``op``; raises ShapeError or DTypeError, naming the user's line, when Relax refuses the types."""
    key = (op, attrs, *[n.type for n in inputs])
    hit = _inferred.get(key)
    if hit is None:
        hit = _inferred[key] = (_infer(op, attrs, [n.type for n in inputs]), len(_inferred))
    type, sig = hit
    node = Node(op, inputs, attrs, type, sig, user_line())
    depth, grad, stop = 0, False, False
    for n in inputs:
        if n.depth > depth:
            depth = n.depth
        if n.grad:
            grad = True
        elif n.stop:
            stop = True
    node.depth = depth + 1
    if grad and state.grad_enabled and (type.__class__ is tuple or type.dtype in FLOATS):
        node.grad = True
    else:
        node.stop = grad or stop
    return node


FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})


def leaf(value: np.ndarray, dtype: str | None = None) -> Node:
    """A node that holds an array."""
    node = Node("leaf", (), (), Type.of(value.shape, dtype or value.dtype.name), -1, user_line())
    node.value = value
    return node


def const(value: float | int | bool, dtype: str) -> Node:
    """A Python number as a rank-0 value."""
    return Node("const", (), (value,), Type.of((), dtype), -1, None)


def placeholder(shape: Sequence[int], dtype: str) -> Node:
    """A leaf without a value: an argument while tracing."""
    return Node("leaf", (), (), Type.of(tuple(shape), dtype), -1, user_line())


_limits: weakref.WeakKeyDictionary[Node, Limits] = weakref.WeakKeyDictionary()
_SAME_VALUES = ("reshape", "permute_dims", "broadcast_to", "astype")


def limit(node: Node, low: int, high: int, also: int | None = None) -> None:
    """Whole numbers of ``node`` must lie between ``low`` and ``high``, or be ``also``: calls check those that come as arguments.

    Nothing is noted of numbers that are computed or known.
    """
    while node.op in _SAME_VALUES and "int" in node.inputs[0].type.dtype:
        node = node.inputs[0]
    if node.op == "leaf" and node.value is None and "int" in node.type.dtype:
        new = Limits(low, high, low if also is None else also)
        before = _limits.get(node)
        _limits[node] = new if before is None else before.both(new)


def limits_of(node: Node) -> Limits | None:
    """What ``limit`` noted of an argument."""
    return _limits.get(node)


def _infer(op: str, attrs: tuple[Any, ...], types: Sequence[Type]) -> Any:
    """Ask Relax for the type of ``op`` on these types."""
    if op == "get":
        return types[0][attrs[0]]  # type: ignore[index]
    if op == "vjp":
        return tuple(types[attrs[0] + attrs[1] :])
    if op == "call":
        return attrs[0].infer(types)
    from tilegrad._base.tvm import relax
    from tilegrad.frontend.ops import OPS

    spec = OPS[op]
    args = [relax.Var(f"x{i}", relax.TensorType(t.shape, t.dtype)) for i, t in enumerate(types)]
    try:
        builder = relax.BlockBuilder()
        builder._begin_dataflow_block()
        try:
            ty = builder.emit(spec.emit(*args, *attrs)).ty
        finally:
            builder._end_block()
        if op.startswith("conv") or "_pool" in op:
            _check_window(ty, types)
    except TilegradError:
        raise
    except Exception as e:  # TVM raises its own kinds beside ValueError and TypeError
        raise _explained(op, attrs, types, spec.expects, e) from None
    return from_relax(ty)


def _check_window(ty: Any, types: Sequence[Type]) -> None:
    """Relax lets a window be larger than the image; the extents come out as zero or less."""
    if any(int(d) <= 0 for d in ty.shape) and all(d > 0 for t in types for d in t.shape):
        raise ValueError("The window is larger than the image with its padding.")


def from_relax(ty: Any) -> Any:
    """Type, or a tuple of them, of a Relax type."""
    if hasattr(ty, "fields"):
        return tuple(from_relax(f) for f in ty.fields)
    return Type.of(tuple(int(d) for d in ty.shape), str(ty.dtype))


def _explained(op: str, attrs: tuple[Any, ...], types: Sequence[Type], expects: str, error: Exception) -> TilegradError:
    """A typed error from Relax's message: TypeError means dtype, everything else shape."""
    text = re.sub(r"Op\(.*?support_level=\d+\),?\s*", "", str(error).strip(), flags=re.S)
    text = re.sub(r"T\.(?:int64|bool)\((-?\w+)\)|R\.shape\((\[.*?\])\)", lambda m: m[1] or m[2], text)
    text = re.sub(r"R\.Tensor|T\.(?=float|int|uint|bool)", "", text).splitlines()[-1] if text else type(error).__name__
    where = user_line()
    line = f"{where[0].co_filename}:{where[1]}: " if where else ""
    got = " and ".join(map(repr, types)) + (f" with {attrs}" if attrs else "")
    kind = DTypeError if isinstance(error, TypeError) else ShapeError
    return kind(
        f"{line}{op}, arguments {', '.join(str(i + 1) for i in range(len(types)))}", got, expects, text.strip().rstrip(".")
    )


def ordered(roots: Iterable[Node], children: Any) -> list[Node]:
    """Nodes below ``roots`` with inputs before users, without recursion. ``children(node)`` gives the inputs to follow."""
    done: dict[Node, bool] = {}
    order: list[Node] = []
    stack: list[tuple[Node, bool]] = [(r, False) for r in reversed(list(roots))]
    while stack:
        node, expanded = stack.pop()
        if expanded:
            order.append(node)
            continue
        if node in done:
            continue
        done[node] = True
        stack.append((node, True))
        stack += [(n, False) for n in reversed(children(node)) if n not in done]
    return order


@contextmanager
def grad_mode(enabled: bool) -> Iterator[None]:
    """Record with gradients on or off; see ``no_grad``."""
    before, state.grad_enabled = state.grad_enabled, enabled
    try:
        yield
    finally:
        state.grad_enabled = before


def fail_line() -> str:
    """``file:line: `` of the user's code, to start an error with."""
    where = user_line()
    return f"{where[0].co_filename}:{where[1]}: " if where else ""


def usage(what: str, got: str, expected: str = "", hint: str = "") -> UsageError:
    """A UsageError at the user's line."""
    return UsageError(fail_line() + what, got, expected, hint)
