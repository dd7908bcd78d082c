"""Programs and scheduled kernels to one shared library, or to the objects of a static one."""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

from tilegrad._base.errors import UsageError
from tilegrad._base.target import Target
from tilegrad.runtime import cache, elf, emit, toolchain
from tilegrad.runtime import kernels as objects
from tilegrad.runtime import manifest as manifests
from tilegrad.runtime.families import Family
from tilegrad.runtime.library import Library
from tilegrad.runtime.program import Buffer, Program

log = logging.getLogger(__name__)

FLAGS = (*toolchain.CFLAGS, *toolchain.LINK_FLAGS)


def build(
    programs: Mapping[str, Program],
    kernels: Mapping[str, Any],
    target: Target,
    *,
    prefix: str = "tg",
    cflags: Sequence[str] = (),
    families: Mapping[str, Family] | None = None,
) -> Library:
    """Compile the kernels in parallel, generate the entry points, link one ``.so``.

    Parameters
    ----------
    programs: entry name to Program. Entries share states and hyperparameters by name.
    kernels: the name that calls use to the scheduled kernel (``schedules.Scheduled``: func, scratch_bytes).
    prefix: what every public C function begins with.
    cflags: further compiler and linker flags, e.g. ``-fsanitize=thread``.
    families: entries that are one function of several batch sizes, by the name that the library gets for them.

    Objects and the library are kept by content: an equal build later, in any process, compiles and links nothing.
    Raises LibraryError when a kernel does not compile or there is no C compiler, UsageError for malformed programs.
    """
    return Recipe(dict(programs), dict(kernels), target, prefix, tuple(cflags), dict(families or {})).library()


@dataclass(frozen=True)
class Recipe:
    """Everything a library is made of; export makes other forms of the same library from it."""

    programs: Mapping[str, Program]
    kernels: Mapping[str, Any]
    target: Target
    prefix: str
    cflags: tuple[str, ...] = ()
    families: Mapping[str, Family] = field(default_factory=dict)

    def with_prefix(self, prefix: str) -> Recipe:
        """The same library under another prefix: the kernels are not compiled again."""
        return replace(self, prefix=prefix)

    def library(self) -> Library:
        """The shared library, from the cache or built now."""
        start = time.perf_counter()
        key = cache.key(self._source.text, self._source.constants, _runtime_sources(), self.target.triple, *FLAGS, *self.cflags)
        path = cache.get(f"libraries/{key}.so")
        if path is None:
            path = cache.put(f"libraries/{key}.so", self._link())
            log.info("built %s (%d kernels) in %.2f s", path, len(self.used), time.perf_counter() - start)
        return Library(path, self.manifest, lambda: self)

    def static_library(self) -> bytes:
        """The archive. Names that only its own objects share begin with ``<prefix>__`` in it and are hidden."""
        with tempfile.TemporaryDirectory() as folder:
            paths = self._objects(Path(folder))
            members = {path.name: path.read_bytes() for path in paths}
        names = elf.private_names(members.values(), self._source.exports, self.prefix)
        return elf.archive({name: elf.rename(data, names) for name, data in members.items()})

    @cached_property
    def used(self) -> dict[str, Any]:
        """The kernels that are called."""
        calls = [c for p in self.programs.values() for c in p.calls]
        used = {c.kernel for c in calls} | {c.by_rows.single for c in calls if c.by_rows}
        chosen = {name: k for name, k in self.kernels.items() if name in used}
        _check_arguments(self.programs, chosen)
        return chosen

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """What the library will say about itself."""
        from tilegrad._base.tvm import tvm

        return manifests.make(self.programs, self.target, self.prefix, tvm.__version__, self.families)

    @cached_property
    def symbols(self) -> dict[str, emit.Kernel]:
        """Their symbols and scratch."""
        return objects.symbols(self.used, self.target)

    @cached_property
    def _source(self) -> emit.Source:
        manifest = self.manifest  # first, because it checks names and states
        return emit.emit(self.programs, self.symbols, manifest)

    def _objects(self, work: Path) -> list[Path]:
        """Objects of the tables (in ``work``), the runtime and the kernels."""
        compiled = objects.compile_all(self.used, self.symbols, self.target)
        compiler = toolchain.find(self.target)
        runtime = _runtime_object(compiler, self.target, self.cflags)
        (work / "tables.c").write_text(self._source.text)
        if self._source.constants:
            (work / "constants.bin").write_bytes(self._source.constants)
        compiler.compile(work / "tables.c", work / "tables.o", self.cflags, include=runtime_directory())
        return [work / "tables.o", runtime, *compiled]

    def _link(self) -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            output = Path(folder) / f"lib{self.prefix}.so"
            paths = self._objects(Path(folder))
            toolchain.find(self.target).link_shared(paths, output, self._source.exports, self.cflags)
            return output.read_bytes()


def runtime_directory() -> Path:
    """Where the C runtime's sources lie."""
    return Path(str(files("tilegrad.runtime"))) / "csrc"


def _runtime_sources() -> str:
    return "".join(p.name + p.read_text() for p in sorted(runtime_directory().iterdir()) if p.suffix in (".c", ".h"))


def _runtime_object(compiler: toolchain.Toolchain, target: Target, cflags: Sequence[str]) -> Path:
    name = f"objects/runtime_{cache.key(_runtime_sources(), target.triple, *compiler.command, *FLAGS, *cflags)}.o"
    path = cache.get(name)
    if path is None:
        with tempfile.TemporaryDirectory() as folder:
            output = Path(folder) / "runtime.o"
            compiler.compile(runtime_directory() / "all.c", output, cflags)
            path = cache.put(name, output.read_bytes())
    return path


def _check_arguments(programs: Mapping[str, Program], kernels: Mapping[str, Any]) -> None:
    """Every call passes what its kernel was compiled for; nothing checks it again at run time."""
    for entry, program in programs.items():
        for call in program.calls:
            where = f"program '{entry}', call of '{call.kernel}'"
            if missing := [a for a in call.args if a not in program.buffers]:
                raise UsageError(where, f"unknown buffers {missing}", "declared ones")
            buffers = [program.buffers[a] for a in call.args]
            by = call.by_rows
            for name, rows in ((call.kernel, by.rows), (by.single, 1)) if by else ((call.kernel, 0),):
                if name not in kernels:
                    raise UsageError(where, f"an unknown kernel '{name}'", f"one of {', '.join(kernels)}")
                k = kernels[name]
                takes = [_typed(p) for p in k.func.params]
                gives = [*map(_typed, buffers)] + ([f"uint8[{k.scratch_bytes}]"] if k.scratch_bytes else [])
                for i, step in enumerate(by.row_bytes if by else ()):
                    if step:
                        gives[i] = f"{buffers[i].dtype} of {step * rows} bytes"
                        takes[i] = f"{k.func.params[i].dtype} of {_nbytes(k.func.params[i])} bytes"
                if gives != takes:
                    raise UsageError(where, ", ".join(gives), ", ".join(takes))


def _nbytes(param: Any) -> int:
    return Buffer(param.name, tuple(int(d) for d in param.shape), str(param.dtype), "temp").nbytes


def _typed(buffer: Any) -> str:
    """Dtype and shape of a Program's or a kernel's buffer."""
    return f"{buffer.dtype}[{', '.join(str(int(d)) for d in buffer.shape)}]"
