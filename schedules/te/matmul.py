"""matmul of any rank, as NumPy defines it, in one contraction stage."""

from __future__ import annotations

from typing import Any

from tilegrad._base.errors import DTypeError, ShapeError
from tilegrad._base.tvm import te, tirx


def accumulator(dtype: str) -> str:
    """The type that products of ``dtype`` are summed in: float32 for 16-bit floats, int32 for 8- and 16-bit integers."""
    narrow = {"float16": "float32", "bfloat16": "float32", "int8": "int32", "uint8": "int32", "int16": "int32"}
    return narrow.get(dtype, dtype)


def matmul(a: te.Tensor, b: te.Tensor, out_dtype: str | None = None, name: str = "matmul") -> te.Tensor:
    """``numpy.matmul(a, b)``: ``[..., m, k] @ [..., k, n]`` with broadcast batch dimensions; 1-D operands are vectors.

    Sums in float32 for float16 and bfloat16 and in int32 for int8. The result has ``out_dtype``, by default the
    operands' type, or the accumulator's for integers. Raises ShapeError and DTypeError.
    """
    acc, out = result_types(a, b, out_dtype, name)
    if not a.shape or not b.shape:
        raise ShapeError(f"{name}, argument 'a' or 'b'", "a scalar", "at least one dimension", "Use * for scalars.")
    k_dim = a.shape[-1]
    if extent(k_dim) != extent(b.shape[-2 if len(b.shape) > 1 else 0]):
        raise ShapeError(f"{name}, argument 'b'", f"shapes {dims(a)} and {dims(b)}", "equal inner dimensions")
    batch = _broadcast(list(a.shape[:-2]), list(b.shape[:-2]), f"{name} of {dims(a)} and {dims(b)}")
    rows = list(a.shape[-2:-1])
    cols = list(b.shape[-1:]) if len(b.shape) > 1 else []
    if extent(k_dim) == 0:  # an empty sum
        return te.compute((*batch, *rows, *cols), lambda *_: tirx.const(0, out), name=f"{name}_empty")
    k = te.reduce_axis((0, k_dim), "k")

    def product(*index: Any) -> Any:
        lead, inner = index[: len(batch)], index[len(batch) :]
        i, j = inner[: len(rows)], inner[len(rows) :]
        x = a(*_batch_index(a, lead), *i, k)
        y = b(*_batch_index(b, lead), k, *j) if cols else b(k)
        return te.sum(x.astype(acc) * y.astype(acc), axis=k)

    return cast(te.compute((*batch, *rows, *cols), product, name=name), out)


def result_types(a: te.Tensor, b: te.Tensor, out_dtype: str | None, where: str) -> tuple[str, str]:
    """(accumulator type, result type) of a contraction of ``a`` and ``b``. Raises DTypeError when they differ."""
    if a.dtype != b.dtype:
        raise DTypeError(where, f"{a.dtype} and {b.dtype}", "operands of one element type", "Cast one of them.")
    dtype = str(a.dtype)
    acc = accumulator(dtype)
    return acc, out_dtype or (acc if acc == "int32" else dtype)


def cast(x: te.Tensor, dtype: str) -> te.Tensor:
    """``x`` itself or a stage that converts it."""
    return x if x.dtype == dtype else te.compute(x.shape, lambda *i: x(*i).astype(dtype), name="cast")


def extent(dim: Any) -> int:
    """A static dimension as a Python integer."""
    return int(dim) if isinstance(dim, int) else int(dim.value)


def dims(x: te.Tensor) -> tuple[int, ...]:
    """The static shape of ``x``."""
    return tuple(extent(d) for d in x.shape)


def _broadcast(a: list[Any], b: list[Any], where: str) -> list[Any]:
    rank = max(len(a), len(b))
    out = []
    for x, y in zip([1] * (rank - len(a)) + a, [1] * (rank - len(b)) + b, strict=True):
        if extent(x) != extent(y) and 1 not in (extent(x), extent(y)):
            raise ShapeError(where, f"batch dimensions {extent(x)} and {extent(y)}", "equal ones, or 1")
        out.append(y if extent(x) == 1 and not isinstance(y, int) else x)
    return out


def _batch_index(x: te.Tensor, lead: tuple[Any, ...]) -> list[Any]:
    own = x.shape[:-2]
    return [tirx.const(0, v.ty.dtype) if extent(d) == 1 else v for d, v in zip(own, lead[len(lead) - len(own) :], strict=True)]
