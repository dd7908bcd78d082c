"""The C compiler: found, asked to compile one file, asked to link."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tilegrad._base.errors import LibraryError
from tilegrad._base.target import Target

CFLAGS = ("-std=c11", "-O2", "-fPIC", "-fvisibility=hidden", "-ffunction-sections", "-Wall", "-Wextra")
LINK_FLAGS = ("-shared", "-s", "-Wl,--gc-sections", "-Wl,-z,noexecstack", "-Wl,--build-id=none")


@dataclass(frozen=True)
class Toolchain:
    """``command`` compiles and links for one target, as gcc does."""

    command: tuple[str, ...]

    def compile(self, source: Path, output: Path, flags: Sequence[str] = (), include: Path | None = None) -> None:
        """One C file to one object. Raises LibraryError with the compiler's own words."""
        # A relative name and its folder as working directory: no path of this machine gets into the object.
        extra = ["-I", str(include)] if include else []
        self._run([*CFLAGS, *flags, *extra, "-c", source.name, "-o", str(output)], source.parent)

    def link_shared(self, objects: Sequence[Path], output: Path, exports: Sequence[str], flags: Sequence[str] = ()) -> None:
        """Objects to a shared library in which every symbol but ``exports`` is local."""
        script = output.with_suffix(".map")
        script.write_text("{ global: " + " ".join(f"{e};" for e in exports) + " local: *; };\n")
        names = output.with_suffix(".rsp")
        names.write_text("\n".join(f'"{o}"' for o in objects))
        self._run(
            [*LINK_FLAGS, *flags, f"-Wl,--version-script={script}", f"-Wl,-soname,{output.name}", f"@{names}"]
            + ["-o", str(output), "-lm", "-lpthread"],
            output.parent,
        )

    def _run(self, args: Sequence[str], directory: Path) -> None:
        command = [*self.command, *args]
        try:
            done = subprocess.run(command, cwd=directory, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        except OSError as e:
            raise LibraryError(f"C compiler {shlex.join(self.command)}", str(e), hint=INSTALL) from e
        if done.returncode:
            lines = done.stderr.strip().splitlines()
            raise LibraryError(f"C compiler {shlex.join(self.command)}", "\n".join(["an error:", *lines[-12:]]))


INSTALL = (
    "Install gcc or clang (apt install gcc), or run `pip install 'tilegrad[cc]'` for the ziglang compiler; CC names another one."
)


def find(target: Target) -> Toolchain:
    """A compiler for ``target``: $CC, cc, gcc, clang, ziglang; for another architecture ``<triple>-gcc``, clang or ziglang.

    Raises LibraryError that says what to install.
    """
    native = target.arch == Target.native().arch
    if native and os.environ.get("CC"):
        command = shlex.split(os.environ["CC"])
        if shutil.which(command[0]) is None:
            raise LibraryError("C compiler from CC", f"{os.environ['CC']!r}, which is not on PATH", "a compiler's name", INSTALL)
        return Toolchain(tuple(command))
    for name in ("cc", "gcc", "clang") if native else (f"{target.triple}-gcc",):
        if path := shutil.which(name):
            return Toolchain((path,))
    if importlib.util.find_spec("ziglang"):
        return Toolchain((sys.executable, "-m", "ziglang", "cc", "-target", target.triple))
    hint = (
        INSTALL
        if native
        else f"apt install gcc-{target.triple.replace('_', '-')}, or `pip install 'tilegrad[cc]'` for the ziglang compiler."
    )
    raise LibraryError(f"C compiler for {target.triple}", "none on PATH", hint=hint)
