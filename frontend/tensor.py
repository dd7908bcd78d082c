"""Tensor: an array whose operations are recorded and computed when a value is asked for."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tilegrad._base.errors import DTypeError, ShapeError
from tilegrad.frontend import apply, dtypes, evaluate, functions, indexing
from tilegrad.frontend.arguments import check_all
from tilegrad.frontend.operators import Operators
from tilegrad.frontend.recording import FLOATS, Node, fail_line, leaf, usage

_REPR_EDGE = 1000


class Tensor(Operators):
    """A recorded array. Operators, indexing and methods follow NumPy and PyTorch; see ``docs/frontend.md``.

    Made by ``tilegrad.tensor`` and friends and by operations on other Tensors.
    """

    __slots__ = ("__weakref__", "_grad", "_node")
    __array_priority__ = 1000  # NumPy leaves `array @ tensor` to us

    def __init__(self, node: Node) -> None:
        self._node = node
        self._grad: Tensor | None = None
        me = weakref.ref(self)
        if node.owner is None:
            node.owner = me
            if node.op == "leaf":
                return
        evaluate.register(me)

    # ***** what it is *****

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents."""
        return self._node.type.shape

    @property
    def dtype(self) -> str:
        """Element type, as a string."""
        return self._node.type.dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self._node.type.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self._node.type.shape, dtype=np.int64))

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a rank-0 tensor")
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        if not self.shape:
            raise TypeError("iteration over a rank-0 tensor")
        return (self[i] for i in range(self.shape[0]))

    # ***** gradients *****

    @property
    def requires_grad(self) -> bool:
        """Whether gradients are recorded for it."""
        return self._node.grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self.requires_grad_(value)

    def requires_grad_(self, value: bool = True) -> Tensor:
        """Turn recording of gradients on or off. Raises DTypeError unless the elements are floats, UsageError for a result."""
        if value and self.dtype not in FLOATS:
            raise DTypeError(fail_line() + "requires_grad_", self.dtype, "floats", "Only floats have gradients.")
        if self._node.grad and not self._node.bound:
            raise usage(
                "requires_grad_", "the result of a differentiable operation", "a Tensor made from data", "Use detach() first."
            )
        self._node.grad = self._node.bound = value
        if value and self._node.op == "leaf":
            self._node.depth = 0  # no longer SHARED: a gradient needs this very node
        return self

    @property
    def is_leaf(self) -> bool:
        """Not the result of a differentiable operation."""
        return self._node.bound or not self._node.grad

    @property
    def grad(self) -> Tensor | None:
        """The gradient that ``backward`` accumulated, or None."""
        return self._grad

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if value is not None and value._node.type is not self._node.type:
            raise ShapeError(fail_line() + "grad", repr(value._node.type), repr(self._node.type))
        self._grad = value

    def backward(self, gradient: Any = None, create_graph: bool = False) -> None:
        """Add the gradient of this value to ``.grad`` of every Tensor with requires_grad that it depends on.

        Parameters
        ----------
        gradient: cotangent of this Tensor's shape; may be left out for a single element (then 1).
        create_graph: record the gradients so that they can be differentiated again.
        """
        from tilegrad.frontend.gradients import backward

        backward(self, gradient, create_graph)

    def detach(self) -> Tensor:
        """The same values, through which no gradient flows."""
        return Tensor(apply.detached(self._node))

    # ***** values *****

    def numpy(self) -> np.ndarray:
        """The values. An array of your own: later in-place updates do not show in it."""
        value = evaluate.value_of(self._node)
        return dtypes.to_numpy(value, self.dtype)

    def item(self) -> float | int | bool:
        """The value of a single element as a Python number."""
        if self.size != 1:
            raise usage("item", f"{self.size} elements", "exactly one")
        return dtypes.to_numpy(evaluate.value_of(self._node), self.dtype).reshape(()).item()

    def tolist(self) -> Any:
        """The values as nested lists."""
        return self.numpy().tolist()

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        if self.dtype in FLOATS:
            raise TypeError("a float tensor cannot be used as an index")
        return int(self.item())

    def __bool__(self) -> bool:
        return bool(self.item())

    def __repr__(self) -> str:
        extra = ", requires_grad=True" if self.requires_grad else ""
        if self._node.op == "leaf" and self._node.value is None:
            return f"tensor(<argument> {self._node.type!r}{extra})"
        text = np.array2string(self.numpy(), separator=", ", prefix="tensor(", threshold=_REPR_EDGE)
        return f"tensor({text}, dtype={self.dtype}{extra})"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def __dlpack__(self, **options: Any) -> Any:
        return evaluate.value_of(self._node).__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    # ***** in place *****

    def assign_(self, value: Any) -> Tensor:
        """Set the values in place; ``value`` has this shape and dtype. Recorded, not computed, when it is a pending Tensor."""
        if not isinstance(value, Tensor):
            value = Tensor(leaf(*dtypes.from_data(value, self.dtype)))
        if value._node.type is not self._node.type:
            raise ShapeError(fail_line() + "assign_", repr(value._node.type), repr(self._node.type))
        if value._node.op == "leaf" or value._node.bound:
            evaluate.overwrite(self, evaluate.value_of(value._node))
        else:
            evaluate.assign(self, value._node, step=False)
        return self

    def copy_(self, value: Any) -> Tensor:
        """``assign_`` after broadcasting and conversion to this dtype."""
        return self.assign_(functions.broadcast_to(functions.astype(functions.as_tensor(value), self.dtype), self.shape))

    # ***** indexing *****

    def __getitem__(self, key: Any) -> Tensor:
        return indexing.get(self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        new = indexing.put(self, key, value)
        node = self._node
        if node.op != "leaf" and not node.bound and node not in evaluate.pending.updates:  # a result: the name moves on
            self._node = new._node
            new._node.owner = weakref.ref(self)
            evaluate.register(new._node.owner)
        else:
            self.assign_(new)


apply._tensor_class.append(Tensor)


def tensor(data: Any, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """A Tensor with a copy of ``data`` (numbers, nested sequences, anything with NumPy's array protocol).

    Python floats become float32 and whole numbers int64; arrays keep their dtype. Raises DTypeError for other data.
    """
    name = None if dtype is None else dtypes.name_of(dtype)
    node = apply.data_node(data, name)
    t = Tensor(node)
    return t.requires_grad_() if requires_grad else t


def from_numpy(array: np.ndarray) -> Tensor:
    """A Tensor on the array's own memory, without a copy: writing to the one shows in the other.

    An operation reads the values that the array has at that moment, as PyTorch's does. With ``requires_grad`` operations
    read it when they are computed: then leave the array alone. Raises UsageError for what is no array or not C-contiguous,
    DTypeError for elements that programs do not take as they lie.
    """
    if not isinstance(array, np.ndarray):
        raise usage("from_numpy", f"a {type(array).__name__}", "a NumPy array", "Use tensor(), which copies.")
    if not array.dtype.isnative or array.dtype.kind not in "biuf":
        got = f"an array of dtype {array.dtype.str}"
        raise DTypeError(
            f"{fail_line()}from_numpy", got, "numbers or booleans in this machine's byte order", "Use tensor(), which copies."
        )
    if not array.flags.c_contiguous:
        raise usage("from_numpy", "an array that is not C-contiguous", "a C-contiguous one", "Use tensor(), which copies.")
    node = leaf(array)
    node.depth = evaluate.SHARED
    return Tensor(node)


def from_dlpack(x: Any) -> Tensor:
    """A Tensor on another library's CPU array, without a copy where its layout allows."""
    return from_numpy(np.asarray(np.from_dlpack(x), order="C"))


def _filled(value: float | int | bool, shape: Sequence[int] | int, dtype: Any, requires_grad: bool) -> Tensor:
    extents = (shape,) if isinstance(shape, int) else tuple(int(d) for d in shape)
    return tensor(np.full(extents, value), dtype, requires_grad)


def zeros(shape: Sequence[int] | int, dtype: Any = "float32", requires_grad: bool = False) -> Tensor:
    """Zeros."""
    return _filled(0, shape, dtype, requires_grad)


def ones(shape: Sequence[int] | int, dtype: Any = "float32", requires_grad: bool = False) -> Tensor:
    """Ones."""
    return _filled(1, shape, dtype, requires_grad)


def full(shape: Sequence[int] | int, value: float | int | bool, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """``value`` everywhere; float32 for a float, int64 for a whole number unless a dtype is given."""
    return _filled(value, shape, type(value) if dtype is None else dtype, requires_grad)


def zeros_like(x: Tensor) -> Tensor:
    """Zeros of ``x``'s shape and dtype."""
    return zeros(x.shape, x.dtype)


def ones_like(x: Tensor) -> Tensor:
    """Ones of ``x``'s shape and dtype."""
    return ones(x.shape, x.dtype)


def arange(start: float, stop: float | None = None, step: float = 1, dtype: Any = None) -> Tensor:
    """``start, start + step, ...`` below ``stop``; int64 for whole numbers, float32 otherwise."""
    if step == 0:
        raise usage("arange, argument 'step'", "0", "another number")
    bounds = (0, start, step) if stop is None else (start, stop, step)
    default = "float32" if any(isinstance(b, float) for b in bounds) else "int64"
    name = dtypes.name_of(default if dtype is None else dtype)
    return tensor(np.arange(*bounds).astype(name), name)


def eye(n: int, m: int | None = None, dtype: Any = "float32") -> Tensor:
    """Ones on the diagonal."""
    return tensor(np.eye(n, m), dtype)


def linspace(start: float, stop: float, steps: int, dtype: Any = "float32") -> Tensor:
    """``steps`` evenly spaced values, both ends included."""
    return tensor(np.linspace(start, stop, steps), dtype)


check_all(globals(), "tensor zeros ones full zeros_like ones_like arange eye linspace".split())
