"""Programs and scheduled kernels to one shared library."""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from tilegrad._base.errors import UsageError
from tilegrad._base.target import Target
from tilegrad.runtime import cache, emit, toolchain
from tilegrad.runtime import kernels as objects
from tilegrad.runtime import manifest as manifests
from tilegrad.runtime.library import Library
from tilegrad.runtime.program import Program

log = logging.getLogger(__name__)


def build(
    programs: Mapping[str, Program],
    kernels: Mapping[str, Any],
    target: Target,
    *,
    prefix: str = "tg",
    cflags: Sequence[str] = (),
) -> Library:
    """Compile the kernels in parallel, generate the entry points, link one ``.so``.

    Parameters
    ----------
    programs: entry name to Program. Entries share states and hyperparameters by name.
    kernels: the name that calls use to the scheduled kernel (``schedules.Scheduled``: func, scratch_bytes).
    prefix: what every public C function begins with.
    cflags: further compiler and linker flags, e.g. ``-fsanitize=thread``.

    Objects and the library are kept by content: an equal build later, in any process, compiles and links nothing.
    Raises LibraryError when a kernel does not compile or there is no C compiler, UsageError for malformed programs.
    """
    from tilegrad._base.tvm import tvm

    start = time.perf_counter()
    used = {c.kernel for p in programs.values() for c in p.calls}
    chosen = {name: k for name, k in kernels.items() if name in used}
    _check_arity(programs, chosen)
    manifest = manifests.make(programs, target, prefix, tvm.__version__)
    named = objects.symbols(chosen, target)
    source = emit.emit(programs, named, manifest)
    name = f"libraries/{cache.key(source.text, source.constants, _runtime_sources(), target.triple, *FLAGS, *cflags)}.so"
    path = cache.get(name)
    if path is None:
        path = cache.put(name, _link(source, objects.compile_all(chosen, named, target), target, cflags))
        cache.trim()
        log.info("built %s (%d kernels) in %.2f s", path, len(chosen), time.perf_counter() - start)
    return Library(path, manifest)


FLAGS = (*toolchain.CFLAGS, *toolchain.LINK_FLAGS)


def runtime_directory() -> Path:
    """Where the C runtime's sources lie."""
    return Path(str(files("tilegrad.runtime"))) / "csrc"


def _runtime_sources() -> str:
    return "".join(p.name + p.read_text() for p in sorted(runtime_directory().iterdir()) if p.suffix in (".c", ".h"))


def _link(source: emit.Source, kernel_objects: list[Path], target: Target, cflags: Sequence[str]) -> bytes:
    compiler = toolchain.find(target)
    runtime = _runtime_object(compiler, target, cflags)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        (work / "tables.c").write_text(source.text)
        if source.constants:
            (work / "constants.bin").write_bytes(source.constants)
        compiler.compile(work / "tables.c", work / "tables.o", cflags, include=runtime_directory())
        output = work / "library.so"
        compiler.link_shared([work / "tables.o", runtime, *kernel_objects], output, source.exports, cflags)
        return output.read_bytes()


def _runtime_object(compiler: toolchain.Toolchain, target: Target, cflags: Sequence[str]) -> Path:
    name = f"objects/runtime_{cache.key(_runtime_sources(), target.triple, *compiler.command, *FLAGS, *cflags)}.o"
    path = cache.get(name)
    if path is None:
        with tempfile.TemporaryDirectory() as folder:
            output = Path(folder) / "runtime.o"
            compiler.compile(runtime_directory() / "all.c", output, cflags)
            path = cache.put(name, output.read_bytes())
    return path


def _check_arity(programs: Mapping[str, Program], kernels: Mapping[str, Any]) -> None:
    for entry, program in programs.items():
        for call in program.calls:
            k = kernels.get(call.kernel)
            if k is None:
                raise UsageError(f"program '{entry}'", f"a call of '{call.kernel}'", f"one of the kernels {', '.join(kernels)}")
            takes = len(k.func.params) - (1 if k.scratch_bytes else 0)
            if takes != len(call.args):
                raise UsageError(f"program '{entry}', call of '{call.kernel}'", f"{len(call.args)} arguments", f"{takes}")
