"""Paths that callers give, and files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tilegrad._base.errors import UsageError


def path_of(value: Any, where: str) -> Path:
    """A path given by a caller. Raises UsageError for anything else."""
    if isinstance(value, str | os.PathLike) and "\0" not in (text := os.fsdecode(value)):
        return Path(text)
    raise UsageError(where, f"{value!r} of type {type(value).__name__}", "a path, as str or pathlib.Path, without null bytes")


def write(path: Path, parts: Iterable[bytes], mode: int = 0o644) -> None:
    """Replace a file at once when all of the new one is there: a process that has the old one mapped keeps it.

    Raises OSError; then the old file is as it was, and nothing else is left behind.
    """
    temp = None
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", delete=False) as f:
            temp = f.name
            f.writelines(parts)
        os.chmod(temp, mode)
        os.replace(temp, path)
    except BaseException:
        if temp is not None:
            with contextlib.suppress(OSError):
                os.unlink(temp)
        raise
