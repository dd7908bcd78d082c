"""Operators on the form of numbers: the bits of a float, and greatest common divisors."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tilegrad._base.tvm import relax, te, tirx
from tilegrad.relax_ext.ops.register import register, shape, tensor


def _reinterpret(x: te.Tensor, dtype: str) -> te.Tensor:
    """The same bits as another dtype of the same width: float32 as int32, int64 as float64, ..."""
    return te.compute(x.shape, lambda *i: tirx.reinterpret(dtype, x(*i)), name="reinterpret")


reinterpret = register("tilegrad.reinterpret", lambda x, dtype: tensor(x.shape, dtype), _reinterpret)


def _pair(x: relax.TensorType, y: relax.TensorType) -> relax.TensorType:
    assert shape(x) == shape(y) and x.dtype == y.dtype
    return tensor((2, *x.shape), x.dtype)


def _euclid(x: te.Tensor, y: te.Tensor) -> te.Tensor:
    """Two numbers of which one is zero and the other the greatest common divisor, on a new first axis.

    x and y are whole numbers that are not negative, of one shape and dtype.
    """
    n, dtype = prod(int(d) for d in x.shape), str(x.dtype)
    # Lamé: Euclid's algorithm takes its longest on Fibonacci numbers, so log 2 / log 1.618 = 1.44 divisions a bit suffice.
    rounds = int(1.45 * int(dtype.lstrip("uint"))) // 2 + 1

    def body(ins: Sequence[Any], outs: Sequence[Any]) -> tirx.Stmt:
        out = outs[0]
        with IRBuilder() as ib:
            with T.serial(0, n) as flat, T.seq_scope():
                i = _unravelled(flat, x.shape)
                places = [(which, *i) for which in (0, 1)]
                for source, place in zip(ins, places, strict=True):
                    T.buffer_store(out, source[tuple(i)], place)
                with T.serial(0, rounds) as _, T.seq_scope():
                    for large, small in (places, places[::-1]):
                        with T.If(out[small] > tirx.const(0, dtype)), T.Then():
                            T.buffer_store(out, tirx.truncmod(out[large], out[small]), large)
            return ib.get()

    result = tirx.decl_buffer((2, *x.shape), dtype, "euclid", layout=None)
    return te.extern([result.shape], [x, y], body, dtype=dtype, out_buffers=[result], name="euclid")


def _unravelled(flat: Any, extents: Sequence[Any]) -> list[Any]:
    index = []
    for d in reversed([int(d) for d in extents]):
        index.append(tirx.floormod(flat, d))
        flat = tirx.floordiv(flat, d)
    return index[::-1]


euclid = register("tilegrad.euclid", _pair, _euclid)
