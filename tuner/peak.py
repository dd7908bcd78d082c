"""Roofline: the least time a kernel can take on this machine, from a measured peak of one core."""

from __future__ import annotations

import ctypes
import logging
from pathlib import Path

from tilegrad._base.errors import LibraryError
from tilegrad._base.target import Target
from tilegrad.tuner.task import Task

log = logging.getLogger(__name__)

_FLAGS = ("avx", "avx2", "fma", "avx512f")
"""Features that C compilers know by LLVM's name and that change the peak."""
_NARROW = {"float64": 0.5}


def compile_peak(target: Target, folder: Path) -> Path | None:
    """The peak kernel as a shared library; None where there is no compiler for it."""
    from tilegrad.runtime import toolchain

    flags = [f"-m{f}" for f in _FLAGS if f in target.features] + ["-O3", "-ffp-contract=fast", f"-DBYTES={target.vector_bytes}"]
    path = folder / "peak.so"
    try:
        compiler = toolchain.find(target)
        compiler.compile(Path(__file__).with_name("peak.c"), folder / "peak.o", [*flags, "-Wno-psabi"])
        compiler.link_shared([folder / "peak.o"], path, ["tilegrad_peak_flops"])
    except (LibraryError, OSError) as e:
        log.info("the peak of this machine is not known: %s", e)
        return None
    return path


def peak_of(path: str) -> float:
    """Floating-point operations a second of one core, by the library at ``path``."""
    function = ctypes.CDLL(path).tilegrad_peak_flops
    function.restype, function.argtypes = ctypes.c_double, [ctypes.c_float, ctypes.c_float]
    return float(function(1.0, 1e-9))


def least_seconds(task: Task, peak: float | None) -> float | None:
    """flops / (peak of one core times threads); None where nothing is counted or the peak is not known."""
    if not peak or not task.workload.flops:
        return None
    types = str(task.workload.fields.get("dtypes", ""))
    scale = next((s for name, s in _NARROW.items() if name in types or "f64" in types), 1.0)
    return task.workload.flops / (peak * scale * task.target.threads)
