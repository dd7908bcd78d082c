"""Files kept by content: objects and libraries under ``settings.cache_dir()``.

Every file ends with the SHA-256 of what comes before (ELF readers ignore trailing bytes), so a damaged entry is
noticed and made again. Writing is a temporary file and a rename; nobody ever sees half an entry.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import logging
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tilegrad._base import settings
from tilegrad._base.errors import LibraryError, UsageError

log = logging.getLogger(__name__)

_puts = itertools.count()
ROOMS = ("objects", "libraries", "builds")
"""Folders of the cache: kernels, libraries, and what the graph side keeps about whole builds."""

_TRAILER = hashlib.sha256().digest_size


@dataclass(frozen=True)
class Info:
    """What the cache holds: number of files and their size in bytes."""

    directory: Path
    files: int
    bytes: int
    limit_bytes: int


def key(*parts: object) -> str:
    """A name for content that follows from ``parts``: 32 hexadecimal digits."""
    h = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode()
        h.update(len(data).to_bytes(8, "little") + data)
    return h.hexdigest()[:32]


def get(name: str) -> Path | None:
    """The entry's file, or None when there is none or it is damaged (then it is removed)."""
    path = settings.cache_dir() / name
    try:
        data = path.read_bytes()
    except OSError:
        return None
    if len(data) < _TRAILER or hashlib.sha256(data[:-_TRAILER]).digest() != data[-_TRAILER:]:
        log.warning("damaged cache entry %s is made again", path)
        _remove(path)
        return None
    with contextlib.suppress(OSError):
        os.utime(path)  # recently used entries are the last to go
    return path


def content(path: Path) -> bytes:
    """An entry's data, without what the cache adds."""
    return path.read_bytes()[:-_TRAILER]


def put(name: str, data: bytes) -> Path:
    """Store ``data`` and return its file.

    Raises LibraryError when the disk is full or the folder not writable, UsageError for a limit that is no number.
    """
    _limit_bytes()
    path = settings.cache_dir() / name
    temp = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", suffix=".tmp", delete=False) as f:
            temp = Path(f.name)
            f.write(data)
            f.write(hashlib.sha256(data).digest())
        os.chmod(temp, 0o644)
        os.replace(temp, path)
    except OSError as e:
        if temp is not None:
            _remove(temp)
        raise LibraryError(
            f"cache entry {path}", str(e), hint="Free some space or set TILEGRAD_CACHE_DIR to another folder."
        ) from e
    if next(_puts) % 64 == 0:
        trim()
    return path


def trim() -> None:
    """Remove the entries used longest ago until the cache is within ``TILEGRAD_CACHE_LIMIT_MB`` (default 2048)."""
    entries = sorted(_entries(), key=lambda e: e[1])
    excess = sum(size for _, _, size in entries) - _limit_bytes()
    for path, _, size in entries:
        if excess <= 0:
            return
        _remove(path)
        excess -= size


def info() -> Info:
    """Size of the cache."""
    entries = _entries()
    return Info(settings.cache_dir(), len(entries), sum(size for _, _, size in entries), _limit_bytes())


def clear() -> Info:
    """Remove everything; returns what was there."""
    before = info()
    for room in ROOMS:
        shutil.rmtree(settings.cache_dir() / room, ignore_errors=True)
    return before


def _limit_bytes() -> int:
    text = os.environ.get("TILEGRAD_CACHE_LIMIT_MB") or "2048"
    if not (text.isascii() and text.isdigit()):
        raise UsageError("TILEGRAD_CACHE_LIMIT_MB", repr(text), "a whole number of mebibytes")
    return int(text) << 20


def _entries() -> list[tuple[Path, float, int]]:
    found = []
    for room in ROOMS:
        for path in (settings.cache_dir() / room).glob("*"):
            with contextlib.suppress(OSError):
                stat = path.stat()
                found.append((path, stat.st_mtime, stat.st_size))
    return found


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
