"""What every scheduled kernel gets at the end, whatever its template: the rules that the runtime relies on.

1. Blocks are lowered to loops and allocations.
2. No heap: an allocation that TVM would serve from its workspace becomes part of one scratch parameter; inside a
   parallel loop each thread gets its own part.
3. Floats keep their NaNs, infinities and roundings (schedules.floats): no simplification that holds for real numbers only.
4. float32 mathematics is the project's own (schedules.math): no libm call, the same bits on any libc.
5. Parameters are declared with the alignment of their elements, so that any C-contiguous array may be passed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilegrad._base.errors import ScheduleError
from tilegrad._base.target import Target
from tilegrad._base.tvm import ir, s_tir, tirx, tvm, tvm_ffi
from tilegrad.schedules import floats, math
from tilegrad.schedules.template import Scheduled

STACK_BYTES = 1024
"""TVM puts an allocation of fewer bytes on the stack and asks the workspace allocator for any other."""
SCRATCH_ALIGN = 64
_RUNTIME_CALLS = ("tirx.tvm_call_packed", "tirx.tvm_call_cpacked", "tirx.call_extern", "tirx.call_pure_extern")

_LOWER = tvm.transform.Sequential(
    [
        s_tir.transform.LowerInitBlock(),
        s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir.transform.ConvertBlocksToOpaque(),
        s_tir.transform.CompactBufferAllocation(),
        s_tir.transform.LowerMatchBuffer(),
        s_tir.transform.LowerOpaqueBlock(),
    ]
)


def finish(scheduled: Scheduled, target: Target) -> Scheduled:
    """Apply the common rules. Raises ScheduleError for an allocation of unknown size or a call into TVM's runtime."""
    func = _lower_blocks(scheduled.func)
    _check_calls(func)
    func = math.lower(floats.strict(func))
    scratch = _Scratch(scheduled.scratch_bytes, target.threads)
    body = scratch.move(func.body)
    params = list(func.params)
    if scheduled.scratch_bytes:
        params, old = params[:-1], params[-1]
    table = {int(p.id_): tirx.decl_buffer(p.shape, p.dtype, name=p.name, data_alignment=element_bytes(p.dtype)) for p in params}
    outer = [table[int(p.id_)] for p in params]
    if scratch.bytes:
        view = scratch.buffer()
        outer.append(view)
        table[int(scratch.placeholder.id_)] = view
        if scheduled.scratch_bytes:
            table[int(old.id_)] = view
    body = tvm_ffi.structural_map(body, (ir.Var, lambda v: table.get(int(v.id_), v)))
    done = tirx.PrimFunc(outer, body, attrs=func.attrs).with_attr(
        {"tirx.is_scheduled": True, "tirx.noalias": True, "s_tir": True}
    )
    return Scheduled(done, scratch.bytes)


def element_bytes(dtype: Any) -> int:
    """Bytes of one element as it lies in memory (bool takes one)."""
    return max(1, tvm.DataType(str(dtype)).bits // 8)


def _lower_blocks(func: tirx.PrimFunc) -> tirx.PrimFunc:
    found: list[Any] = []
    tvm_ffi.structural_walk(func.body, (s_tir.SBlockRealize, found.append))
    if not found:
        return func
    return _LOWER(tvm.IRModule({"main": func}))["main"]


def _check_calls(func: tirx.PrimFunc) -> None:
    """Refuse calls that only TVM's own runtime could serve (sorting, vendor libraries)."""

    calls: list[Any] = []
    tvm_ffi.structural_walk(func.body, (ir.Call, calls.append))
    for call in calls:
        if getattr(call.op, "name", "") in _RUNTIME_CALLS:
            raise ScheduleError("kernel", f"a call to {call.args[0]}", "loops", "Define the operator in TE.")


class _Scratch:
    """Moves allocations into one buffer, laid out one after the other at multiples of 64 bytes."""

    def __init__(self, used: int, threads: int) -> None:
        self.bytes = used
        self._threads = threads
        self.placeholder = tirx.decl_buffer((1,), "uint8", name="scratch", data_alignment=SCRATCH_ALIGN)

    def buffer(self) -> Any:
        """The scratch parameter."""
        return tirx.decl_buffer((self.bytes,), "uint8", name="scratch", data_alignment=SCRATCH_ALIGN)

    def move(self, body: tirx.Stmt) -> tirx.Stmt:
        """``body`` with every allocation either small and on the stack, or a view of scratch."""
        return tvm_ffi.structural_mutate(
            body, [(tirx.AllocBuffer, lambda s, _: self._place(s, None)), (tirx.For, lambda s, m: self._loop(s, m))]
        )

    def _loop(self, loop: Any, mutator: Any) -> Any:
        if loop.kind != tirx.ForKind.PARALLEL:
            return mutator.default_mutate(loop)
        big = [a for a in _allocations(loop.body) if not _fits_stack(a.buffer)]
        if not big:
            body = tvm_ffi.structural_map(loop.body, (tirx.AllocBuffer, lambda s: self._place(s, None)))
            return _parallel(loop.loop_var, loop.min, loop.extent, body)
        # One range of iterations a thread, so that the thread's number finds its part of scratch.
        extent = _static(loop.extent, loop.loop_var.name)
        parts = min(self._threads, extent)
        chunk = -(-extent // parts)
        part = tirx.Var("part", loop.loop_var.ty.dtype)
        body = tvm_ffi.structural_map(loop.body, (tirx.AllocBuffer, lambda s: self._place(s, (part, parts))))
        first = part * chunk
        inner = tirx.For(loop.loop_var, loop.min + first, tirx.min(chunk, extent - first), tirx.ForKind.SERIAL, body)
        if parts * chunk - extent >= chunk:  # more threads than chunks
            inner = tirx.IfThenElse(first < extent, inner, None)
        return _parallel(part, tirx.const(0, part.ty.dtype), tirx.const(parts, part.ty.dtype), inner)

    def _place(self, alloc: Any, part: tuple[Any, int] | None) -> tirx.Stmt:
        if _fits_stack(alloc.buffer):
            return alloc
        size = -(-_nbytes(alloc.buffer) // SCRATCH_ALIGN) * SCRATCH_ALIGN
        start = -(-self.bytes // SCRATCH_ALIGN) * SCRATCH_ALIGN
        self.bytes = start + size * (part[1] if part else 1)
        offset: Any = tirx.const(start, "int64")
        if part:
            offset = offset + tirx.Cast("int64", part[0]) * size
        return tirx.DeclBuffer(alloc.buffer, data=tirx.handle_add_byte_offset(tirx.buffer_data(self.placeholder), offset))


def _parallel(var: Any, start: Any, extent: Any, body: tirx.Stmt) -> tirx.Stmt:
    return tirx.For(var, start, extent, tirx.ForKind.PARALLEL, body)


def _allocations(stmt: tirx.Stmt) -> Sequence[Any]:
    found: list[Any] = []
    tvm_ffi.structural_walk(stmt, (tirx.AllocBuffer, found.append))
    return found


def _static(extent: Any, what: str) -> int:
    if not isinstance(extent, tirx.IntImm):
        raise ScheduleError(f"kernel, '{what}'", "an extent known only at run time", "a static extent")
    return int(extent.value)


def _nbytes(buffer: Any) -> int:
    n = element_bytes(buffer.dtype)
    for d in buffer.shape:
        n *= _static(d, buffer.name)
    return n


def _fits_stack(buffer: Any) -> bool:
    return _nbytes(buffer) < STACK_BYTES and buffer.scope() == "global"
