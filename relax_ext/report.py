"""What a Program costs, in numbers a person can check: kernels, bytes moved, memory and when it peaks. Changes nothing."""

from __future__ import annotations

from dataclasses import dataclass

from tilegrad.relax_ext.graph import Graph
from tilegrad.relax_ext.pipeline import PHASES, lower
from tilegrad.runtime.program import Program


@dataclass(frozen=True)
class Traffic:
    """Kernel calls of one run and the bytes that they read and write, each argument counted once a call."""

    calls: int
    bytes: int


@dataclass(frozen=True)
class Memory:
    """Bytes of temporaries. ``lower_bound`` is the largest sum of buffers alive at once, at call ``peak_call``."""

    arena_bytes: int
    lower_bound: int
    peak_call: int
    peak_kernel: str

    @property
    def overhead(self) -> float:
        """Arena over lower bound; 1 is perfect."""
        return self.arena_bytes / self.lower_bound if self.lower_bound else 1.0


def traffic(program: Program) -> Traffic:
    """Calls and bytes of a Program."""
    return Traffic(len(program.calls), sum(program.buffers[a].nbytes for c in program.calls for a in c.args))


def memory(program: Program) -> Memory:
    """The memory plan against its lower bound."""
    life: dict[str, tuple[int, int]] = {}
    for t, c in enumerate(program.calls):
        for a in c.args:
            name = program.buffers[a].view_of or a
            if program.buffers[name].role == "temp":
                life[name] = (life.get(name, (t, t))[0], t)
    alive = [sum(program.buffers[n].nbytes for n, (a, b) in life.items() if a <= t <= b) for t in range(len(program.calls))]
    peak = max(range(len(alive)), key=alive.__getitem__, default=0)
    return Memory(program.arena_bytes, alive[peak] if alive else 0, peak, program.calls[peak].kernel if alive else "")


def unfused(graph: Graph, name: str = "main") -> Program:
    """The Program that the Graph would be without fusion."""
    return lower(graph, name, tuple(p for p in PHASES if p[0] != "fuse"))


def text(graph: Graph, program: Program) -> str:
    """A few lines: before and after fusion, and the memory plan."""
    before, after, mem = traffic(unfused(graph, program.name)), traffic(program), memory(program)
    return (
        f"kernels  {before.calls} before fusion, {after.calls} after\n"
        f"bytes    {before.bytes:,} moved before fusion, {after.bytes:,} after\n"
        f"memory   {mem.arena_bytes:,} bytes of temporaries, {mem.overhead:.2f} of the lower bound,"
        f" at its fullest in call {mem.peak_call} ({mem.peak_kernel})\n"
    )
