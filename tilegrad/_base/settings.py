"""Environment variables, read in one place at call time so that tests and users can change them."""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType

from tilegrad._base.errors import UsageError


def _platformdirs() -> ModuleType:
    import platformdirs  # here, because a deployed library is loaded where only NumPy is installed

    return platformdirs


def cache_dir() -> Path:
    """Compiled objects and libraries. ``TILEGRAD_CACHE_DIR`` overrides the user's cache folder."""
    return Path(os.environ.get("TILEGRAD_CACHE_DIR") or _platformdirs().user_cache_dir("tilegrad")).absolute()


def user_log() -> Path:
    """The user's tuning log. ``TILEGRAD_LOG`` overrides the one in the user's data folder."""
    return Path(os.environ.get("TILEGRAD_LOG") or Path(_platformdirs().user_data_dir("tilegrad")) / "tuning.jsonl")


def usable_cores() -> int:
    """Cores in this process's affinity mask."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        return os.cpu_count() or 1


def num_threads(requested: int | None = None) -> int:
    """``requested``, else ``TILEGRAD_NUM_THREADS``, else the affinity mask. Raises UsageError unless >= 1."""
    text: object = requested if requested is not None else os.environ.get("TILEGRAD_NUM_THREADS") or usable_cores()
    try:
        n = int(str(text))
    except ValueError:
        n = 0
    if n < 1:
        raise UsageError("num_threads", repr(text), "a whole number of at least 1", "Leave it out to use every core you may use.")
    return n
