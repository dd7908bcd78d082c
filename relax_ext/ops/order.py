"""Lowering of sorting and running sums: upstream's call packed functions of its own runtime, which libraries do not have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tilegrad._base.tvm import ir, relax, te, tirx
from tilegrad.relax_ext.ops.register import plain
from tilegrad.schedules.floats import is_nan
from tilegrad.schedules.loops import PARALLEL_WORK, lane_loop, loop, seq

Index = Sequence[tirx.Expr]


def argsort(x: te.Tensor, axis: int, descending: bool, dtype: str) -> te.Tensor:
    """Stable order along an axis, NaNs as the largest, by Batcher's merge exchange: a fixed network, sorted in place.

    Stable because elements are compared by (value, place). Knuth, The Art of Computer Programming 3, algorithm 5.2.2M.
    """
    shape = [int(d) for d in x.shape]
    axis %= len(shape)
    n, others = shape[axis], [d for i, d in enumerate(shape) if i != axis]
    levels = max(n - 1, 0).bit_length()

    def body(ins: Sequence[Any], outs: Sequence[Any]) -> tirx.Stmt:
        data, out = ins[0], outs[0]

        def at(row: Index, place: Any) -> list[Any]:
            return [*row[:axis], place, *row[axis:]]

        with IRBuilder() as ib:
            with _rows(others) as row:
                with T.seq_scope():
                    with T.serial(0, n) as i:
                        T.buffer_store(out, tirx.Cast(dtype, i), at(row, i))
                    if levels:
                        with T.serial(0, levels) as a, T.serial(0, a + 1) as b:
                            p, k = tirx.const(1, "int32") << a, tirx.const(1, "int32") << (a - b)
                            with T.serial(0, n - k) as i:
                                start = tirx.Select(b == 0, 0, k)
                                here = tirx.all(i >= start, (i - start) // k % 2 == 0, i // (2 * p) == (i + k) // (2 * p))
                                first, second = at(row, i), at(row, i + k)
                                left, right = out[tuple(first)], out[tuple(second)]
                                wrong = _after(data[tuple(at(row, left))], data[tuple(at(row, right))], left, right, descending)
                                with T.If(here), T.Then(), T.If(wrong), T.Then(), T.seq_scope():
                                    T.buffer_store(out, left + right, first)
                                    T.buffer_store(out, left - right, second)
                                    T.buffer_store(out, left - right, first)
            return ib.get()

    out = tirx.decl_buffer(shape, dtype, "argsort", layout=None)
    return te.extern([shape], [x], body, dtype=dtype, out_buffers=[out], name="argsort", tag="argsort")


def _after(a: Any, b: Any, place_a: Any, place_b: Any, descending: bool) -> Any:
    """Whether element a must come after element b. No comparison is negated: simplification would forget NaNs."""
    first, second = (b, a) if descending else (a, b)
    wrong = tirx.any(first > second, tirx.all(a == b, place_a > place_b))
    if "float" not in str(a.ty.dtype):
        return wrong
    nan_a, nan_b = (tirx.Select(is_nan(v), 1, 0) for v in (first, second))
    among_nans = tirx.all(nan_a == 1, place_a > place_b)
    return tirx.any(nan_a > nan_b, tirx.all(nan_a == nan_b, tirx.any(wrong, among_nans)))


def scan(x: te.Tensor, dtype: str, combine: Callable[[Any, Any], Any], exclusive: bool, identity: int) -> te.Tensor:
    """Running combination along the middle of three axes; float32 in float64, as PyTorch has it.

    Neighbours that do not depend on one another run together: vectors along the last axis, rows where that is 1.
    """
    pre, n, post = (int(d) for d in x.shape)
    total = {"float32": "float64", "float16": "float32", "bfloat16": "float32"}.get(dtype, dtype)
    across = post > 1
    count, width = (post, 64) if across else (pre, 4)
    width = min(width, count)
    blocks = -(-count // width)

    def block(data: Any, out: Any, lanes: int, row: Any, first: Any) -> tirx.Stmt:
        acc = tirx.decl_buffer((lanes,), total, name="acc")
        i = tirx.Var("i", "int32")

        def step(lane: Any) -> list[tirx.Stmt]:
            at = (row, i, first + lane) if across else (first + lane, i, tirx.const(0, "int32"))
            after = tirx.BufferStore(acc, combine(acc[lane], tirx.Cast(total, data[at])), [lane])
            shown = tirx.BufferStore(out, tirx.Cast(dtype, acc[lane]), at)
            return [shown, after] if exclusive else [after, shown]

        start = lane_loop(lanes, "int32", lambda lane: [tirx.BufferStore(acc, tirx.const(identity, total), [lane])])
        return seq([tirx.AllocBuffer(acc), start, loop(i, n, lane_loop(lanes, "int32", step, across))])

    def body(ins: Sequence[Any], outs: Sequence[Any]) -> tirx.Stmt:
        p = tirx.Var("p", "int32")
        row, place = (tirx.floordiv(p, blocks), tirx.floormod(p, blocks)) if across else (p, p)
        full, rest = divmod(count, width)
        work = block(ins[0], outs[0], width, row, place * width)
        if rest:
            last = block(ins[0], outs[0], rest, row, tirx.const(full * width, "int32"))
            work = tirx.IfThenElse(place < full, work, last)
        jobs = pre * blocks if across else blocks
        large = pre * n * post >= PARALLEL_WORK
        return loop(p, jobs, work, tirx.ForKind.PARALLEL if large else tirx.ForKind.SERIAL)

    out = tirx.decl_buffer((pre, n, post), dtype, "scan", layout=None)
    return te.extern([(pre, n, post)], [x], body, dtype=dtype, out_buffers=[out], name="scan", tag="scan")


class _rows:
    """Loops over all axes but one: ``with _rows(extents) as indices``."""

    def __init__(self, extents: Sequence[int]) -> None:
        self._loops = [T.serial(0, d) for d in extents]

    def __enter__(self) -> list[tirx.Expr]:
        return [loop.__enter__() for loop in self._loops]

    def __exit__(self, *error: Any) -> None:
        for one in reversed(self._loops):
            one.__exit__(*error)


def _picked(x: te.Tensor, order: te.Tensor, axis: int, count: int) -> te.Tensor:
    axis %= len(x.shape)
    shape = [count if i == axis else d for i, d in enumerate(x.shape)]
    return te.compute(shape, lambda *i: x(*i[:axis], order(*i), *i[axis + 1 :]), name="picked")


def _legalize_argsort(bb: relax.BlockBuilder, call: ir.Call) -> relax.Expr:
    a = call.attrs
    return bb.call_te(argsort, call.args[0], plain(a.axis), plain(a.descending), str(call.ty.dtype), primfunc_name_hint="argsort")


def _legalize_sort(bb: relax.BlockBuilder, call: ir.Call) -> relax.Expr:
    a = call.attrs
    order = bb.emit(relax.op.argsort(call.args[0], plain(a.axis), plain(a.descending), "int64"))
    return relax.op.gather_elements(call.args[0], order, plain(a.axis))


def _legalize_topk(bb: relax.BlockBuilder, call: ir.Call) -> relax.Expr:
    a = call.attrs
    axis, k, both = plain(a.axis), plain(a.k), str(a.ret_type)

    def te_topk(x: te.Tensor) -> Any:
        order = argsort(x, axis, plain(a.largest), str(a.dtype))
        n = len(x.shape)
        places = te.compute([k if i == axis % n else d for i, d in enumerate(x.shape)], lambda *i: order(*i), name="places")
        values = _picked(x, order, axis, k)
        return {"both": [values, places], "values": values, "indices": places}[both]

    return bb.call_te(te_topk, call.args[0], primfunc_name_hint="topk")


def _legalize_scan(combine: Callable[[Any, Any], Any], identity: int) -> Callable[..., relax.Expr]:
    def legalize(bb: relax.BlockBuilder, call: ir.Call) -> relax.Expr:
        axis, dtype, exclusive = plain(call.attrs.axis), str(call.ty.dtype), bool(plain(call.attrs.exclusive))

        given, shape = [int(d) for d in call.args[0].ty.shape], [int(d) for d in call.ty.shape]
        k = 0 if axis is None else axis % len(given)
        split = (1, prod(given), 1) if axis is None else (prod(given[:k]), given[k], prod(given[k + 1 :]))
        rows = bb.emit(relax.op.reshape(call.args[0], split))
        result = bb.emit(bb.call_te(lambda x: scan(x, dtype, combine, exclusive, identity), rows, primfunc_name_hint="scan"))
        return relax.op.reshape(result, shape)

    return legalize


for _name, _legalize in (
    ("relax.argsort", _legalize_argsort),
    ("relax.topk", _legalize_topk),
    ("relax.cumsum", _legalize_scan(lambda a, b: a + b, 0)),
    ("relax.cumprod", _legalize_scan(lambda a, b: a * b, 1)),
    ("relax.sort", _legalize_sort),
):
    ir.register_op_attr(_name, "FLegalize", _legalize, level=11)
