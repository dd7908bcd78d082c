"""qemu and a cross compiler for tests of other machines: ``make test`` installs them where it may. CI=1: absence fails."""

from __future__ import annotations

import shutil

import pytest

from tilegrad._base.errors import LibraryError
from tilegrad._base.target import Target
from tilegrad.runtime import toolchain


def emulator(arch: str) -> list[str]:
    """The command that runs a program for ``arch`` with Debian's libraries for it."""
    for name in (f"qemu-{arch}", f"qemu-{arch}-static"):
        if path := shutil.which(name):
            return [path, "-L", f"/usr/{arch}-linux-gnu"]
    return pytest.skip(f"no qemu-{arch}: make qemu, or apt install qemu-user")


def cross_compiler(target: Target) -> tuple[str, ...]:
    """The compiler's command, as ``toolchain.find`` gives it."""
    try:
        return toolchain.find(target).command
    except LibraryError as e:
        return pytest.skip(str(e))
