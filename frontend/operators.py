"""The operators and methods of Tensor: one line each, all of them calls of ``functions``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from tilegrad.frontend import functions as F

if TYPE_CHECKING:
    from tilegrad.frontend.tensor import Tensor

# The class has methods called int, float and bool, which hide the types inside it.
Int: TypeAlias = int
Float: TypeAlias = float
Bool: TypeAlias = bool
Axes = int | tuple[int, ...] | list[int] | None


def _shape(args: tuple[Any, ...]) -> tuple[int, ...]:
    return tuple(args[0]) if len(args) == 1 and isinstance(args[0], (tuple, list)) else args


# fmt: off
class Operators:
    """Mixed into Tensor."""

    __slots__ = ()

    def __add__(self, other: Any) -> Tensor: return F.add(self, other)
    def __radd__(self, other: Any) -> Tensor: return F.add(other, self)
    def __sub__(self, other: Any) -> Tensor: return F.subtract(self, other)
    def __rsub__(self, other: Any) -> Tensor: return F.subtract(other, self)
    def __mul__(self, other: Any) -> Tensor: return F.multiply(self, other)
    def __rmul__(self, other: Any) -> Tensor: return F.multiply(other, self)
    def __truediv__(self, other: Any) -> Tensor: return F.divide(self, other)
    def __rtruediv__(self, other: Any) -> Tensor: return F.divide(other, self)
    def __floordiv__(self, other: Any) -> Tensor: return F.floor_divide(self, other)
    def __rfloordiv__(self, other: Any) -> Tensor: return F.floor_divide(other, self)
    def __mod__(self, other: Any) -> Tensor: return F.remainder(self, other)
    def __rmod__(self, other: Any) -> Tensor: return F.remainder(other, self)
    def __pow__(self, other: Any) -> Tensor: return F.power(self, other)
    def __rpow__(self, other: Any) -> Tensor: return F.power(other, self)
    def __matmul__(self, other: Any) -> Tensor: return F.matmul(self, other)
    def __rmatmul__(self, other: Any) -> Tensor: return F.matmul(other, self)
    def __neg__(self) -> Tensor: return F.negative(self)
    def __abs__(self) -> Tensor: return F.abs(self)
    def __and__(self, other: Any) -> Tensor: return F.bitwise_and(self, other)
    def __or__(self, other: Any) -> Tensor: return F.bitwise_or(self, other)
    def __xor__(self, other: Any) -> Tensor: return F.bitwise_xor(self, other)
    def __rand__(self, other: Any) -> Tensor: return F.bitwise_and(other, self)
    def __ror__(self, other: Any) -> Tensor: return F.bitwise_or(other, self)
    def __rxor__(self, other: Any) -> Tensor: return F.bitwise_xor(other, self)
    def __invert__(self) -> Tensor: return F.bitwise_not(self)
    def __eq__(self, other: Any) -> Any: return F.equal(self, other)
    def __ne__(self, other: Any) -> Any: return F.not_equal(self, other)
    def __lt__(self, other: Any) -> Tensor: return F.less(self, other)
    def __le__(self, other: Any) -> Tensor: return F.less_equal(self, other)
    def __gt__(self, other: Any) -> Tensor: return F.greater(self, other)
    def __ge__(self, other: Any) -> Tensor: return F.greater_equal(self, other)
    __hash__ = object.__hash__

    def exp(self) -> Tensor: return F.exp(self)
    def log(self) -> Tensor: return F.log(self)
    def sqrt(self) -> Tensor: return F.sqrt(self)
    def rsqrt(self) -> Tensor: return F.rsqrt(self)
    def square(self) -> Tensor: return F.square(self)
    def abs(self) -> Tensor: return F.abs(self)
    def sign(self) -> Tensor: return F.sign(self)
    def sin(self) -> Tensor: return F.sin(self)
    def cos(self) -> Tensor: return F.cos(self)
    def tanh(self) -> Tensor: return F.tanh(self)
    def sigmoid(self) -> Tensor: return F.sigmoid(self)
    def relu(self) -> Tensor: return F.relu(self)
    def floor(self) -> Tensor: return F.floor(self)
    def ceil(self) -> Tensor: return F.ceil(self)
    def round(self) -> Tensor: return F.round(self)
    def clip(self, low: Float | None = None, high: Float | None = None) -> Tensor: return F.clip(self, low, high)
    clamp = clip

    def sum(self, axis: Axes = None, keepdims: Bool = False) -> Tensor: return F.sum(self, axis, keepdims)
    def mean(self, axis: Axes = None, keepdims: Bool = False) -> Tensor: return F.mean(self, axis, keepdims)
    def max(self, axis: Axes = None, keepdims: Bool = False) -> Tensor: return F.max(self, axis, keepdims)
    def min(self, axis: Axes = None, keepdims: Bool = False) -> Tensor: return F.min(self, axis, keepdims)
    def prod(self, axis: Axes = None, keepdims: Bool = False) -> Tensor: return F.prod(self, axis, keepdims)
    def var(self, axis: Axes = None, correction: Int = 1, keepdims: Bool = False) -> Tensor:
        return F.var(self, axis, correction, keepdims)
    def std(self, axis: Axes = None, correction: Int = 1, keepdims: Bool = False) -> Tensor:
        return F.std(self, axis, correction, keepdims)
    def all(self, axis: Axes = None, keepdims: Bool = False) -> Tensor: return F.all(self, axis, keepdims)
    def any(self, axis: Axes = None, keepdims: Bool = False) -> Tensor: return F.any(self, axis, keepdims)
    def argmax(self, axis: Int | None = None, keepdims: Bool = False) -> Tensor: return F.argmax(self, axis, keepdims)
    def argmin(self, axis: Int | None = None, keepdims: Bool = False) -> Tensor: return F.argmin(self, axis, keepdims)
    def cumsum(self, axis: Int) -> Tensor: return F.cumsum(self, axis)
    def softmax(self, axis: Int = -1) -> Tensor: return F.softmax(self, axis)
    def log_softmax(self, axis: Int = -1) -> Tensor: return F.log_softmax(self, axis)
    def norm(self, axis: Axes = None, keepdims: Bool = False) -> Tensor: return F.norm(self, axis, keepdims)

    def reshape(self, *shape: Any) -> Tensor: return F.reshape(self, _shape(shape))
    view = reshape
    def flatten(self, start: Int = 0, end: Int = -1) -> Tensor: return F.flatten(self, start, end)
    def squeeze(self, axis: Axes = None) -> Tensor: return F.squeeze(self, axis)
    def unsqueeze(self, axis: Int) -> Tensor: return F.expand_dims(self, axis)
    expand_dims = unsqueeze
    def transpose(self, a: Int = -2, b: Int = -1) -> Tensor: return F.transpose(self, a, b)
    def permute(self, *axes: Any) -> Tensor: return F.permute(self, _shape(axes))
    def broadcast_to(self, *shape: Any) -> Tensor: return F.broadcast_to(self, _shape(shape))
    def expand(self, *shape: Any) -> Tensor: return F.expand(self, _shape(shape))
    def repeat_interleave(self, repeats: Int, axis: Int) -> Tensor: return F.repeat(self, repeats, axis)
    def tile(self, *repeats: Any) -> Tensor: return F.tile(self, _shape(repeats))
    def split(self, size: Int | list[Int], axis: Int = 0) -> list[Tensor]: return F.split(self, size, axis)
    def chunk(self, chunks: Int, axis: Int = 0) -> list[Tensor]: return F.chunk(self, chunks, axis)
    def flip(self, axis: Axes) -> Tensor: return F.flip(self, axis)
    def masked_fill(self, mask: Any, value: Float) -> Tensor: return F.where(mask, value, self)
    def gather(self, axis: Int, index: Any) -> Tensor: return F.gather(self, axis, index)
    def tril(self, diagonal: Int = 0) -> Tensor: return F.tril(self, diagonal)
    def triu(self, diagonal: Int = 0) -> Tensor: return F.triu(self, diagonal)

    @property
    def T(self) -> Tensor: return F.permute(self, tuple(reversed(range(len(self.shape)))))  # type: ignore[attr-defined]
    @property
    def mT(self) -> Tensor: return F.transpose(self, -2, -1)

    def astype(self, dtype: Any) -> Tensor: return F.astype(self, dtype)
    to = type = astype
    def float(self) -> Tensor: return F.astype(self, "float32")
    def double(self) -> Tensor: return F.astype(self, "float64")
    def half(self) -> Tensor: return F.astype(self, "float16")
    def long(self) -> Tensor: return F.astype(self, "int64")
    def int(self) -> Tensor: return F.astype(self, "int32")
    def bool(self) -> Tensor: return F.astype(self, "bool")
