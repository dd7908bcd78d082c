"""Where a Program's time goes: the measured seconds of each kernel call beside what is known of the kernel. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilegrad import schedules
from tilegrad.relax_ext import report
from tilegrad.relax_ext.driver import Build
from tilegrad.runtime.program import Program


@dataclass(frozen=True)
class KernelTime:
    """``calls`` calls of one kernel in one run of a Program.

    seconds, flops and bytes are those of all these calls. flops: a multiply-add counts two, 0 where the template counts none.
    bytes: each argument once a call. template, config, source: as chosen when it was compiled (``tuning_logs.SOURCES``).
    """

    kernel: str
    seconds: float
    flops: int
    bytes: int
    template: str
    config: Mapping[str, Any]
    source: str
    calls: int = 1

    @property
    def gflops(self) -> float:
        """Billions of floating-point operations a second."""
        return 1e-9 * self.flops / self.seconds if self.seconds else 0.0

    @property
    def gbytes(self) -> float:
        """Billions of bytes a second."""
        return 1e-9 * self.bytes / self.seconds if self.seconds else 0.0

    def __add__(self, other: KernelTime) -> KernelTime:
        """Both together; what is chosen for the kernel is the first one's."""
        sums = {k: getattr(self, k) + getattr(other, k) for k in ("seconds", "flops", "bytes", "calls")}
        return replace(self, **sums)


@dataclass(frozen=True)
class Profile:
    """One run of an entry, call by call in order (iterate over it); printed, kernel by kernel, the slowest first."""

    entry: str
    calls: tuple[KernelTime, ...]
    memory: report.Memory

    @staticmethod
    def of(build: Build, entry: str, timed: Sequence[tuple[str, float]]) -> Profile:
        """``timed``: (kernel, seconds) of every call, as ``runtime.Context.profile`` returns it."""
        program = build.programs[entry]
        known = {name: _known(program, name, build) for name in program.kernels}
        rows = []
        for call, (name, seconds) in zip(program.calls, timed, strict=True):
            moved = sum(program.buffers[a].nbytes for a in call.args)
            rows.append(replace(known[call.kernel], kernel=name, seconds=seconds, bytes=moved))
        return Profile(entry, tuple(rows), report.memory(program))

    def __iter__(self) -> Iterator[KernelTime]:
        return iter(self.calls)

    def __len__(self) -> int:
        return len(self.calls)

    @property
    def seconds(self) -> float:
        """All calls together."""
        return sum(c.seconds for c in self.calls)

    @property
    def kernels(self) -> list[KernelTime]:
        """Each kernel once with all of its calls, the slowest first."""
        found: dict[str, KernelTime] = {}
        for c in self.calls:
            found[c.kernel] = found[c.kernel] + c if c.kernel in found else c
        return sorted(found.values(), key=lambda k: -k.seconds)

    @property
    def templates(self) -> list[tuple[str, KernelTime]]:
        """(template, its calls together), the slowest first."""
        found: dict[str, KernelTime] = {}
        for c in self.calls:
            found[c.template] = found[c.template] + c if c.template in found else c
        return sorted(found.items(), key=lambda k: -k[1].seconds)

    def __str__(self) -> str:
        m = self.memory
        lines = [
            f"entry {self.entry}: {1e3 * self.seconds:.3f} ms in {len(self.calls)} calls of {len(self.kernels)} kernels",
            f"temporaries: {m.arena_bytes:,} bytes, {m.overhead:.2f} of the lower bound, at their fullest in call {m.peak_call} "
            f"of {len(self.calls)} ({m.peak_kernel})",
            _HEAD.format("ms", "share", "calls", "GFLOP/s", "GB/s", "template", "config", "kernel"),
        ]
        lines += [self._line(k, name, "", "(all)") for name, k in self.templates]
        lines += [self._line(k, k.template, k.source, k.kernel) for k in self.kernels]
        return "\n".join(lines)

    def _line(self, k: KernelTime, template: str, source: str, kernel: str) -> str:
        share = k.seconds / self.seconds if self.seconds else 0.0
        speed = f"{k.gflops:.1f}" if k.flops else "-"
        return _HEAD.format(
            f"{1e3 * k.seconds:.4f}", f"{share:.1%}", k.calls, speed, f"{k.gbytes:.1f}", template, source, kernel
        ).rstrip()


_HEAD = "{:>10} {:>6} {:>5} {:>8} {:>7}  {:<14} {:<8} {}"


def _known(program: Program, name: str, build: Build) -> KernelTime:
    """A kernel without its time."""
    _, workload = schedules.task_of(program.kernels[name])
    choice = build.choices[name]
    return KernelTime(name, 0.0, workload.flops, 0, choice.template, choice.config, choice.source)
