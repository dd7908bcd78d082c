"""Log files: reading them tolerantly, appending to them safely. Several processes may write to one log."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path

from tilegrad._base.errors import TuningError
from tilegrad.tuning_logs.records import Line, parse

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Contents:
    """The readable lines of one log, in order, and how many were skipped."""

    lines: tuple[Line, ...]
    skipped: int


def read(path: str | os.PathLike[str]) -> Contents:
    """Read a log. Damaged lines and lines of a newer version are skipped and counted.

    Raises TuningError when the file is missing or cannot be opened.
    """
    p = Path(path)
    try:
        found = p.stat()
        _check_regular(found.st_mode)
        return _read(str(p), found.st_mtime_ns, found.st_size)
    except OSError as e:
        hint = "Give the path of a log that `tilegrad tune -o LOG` wrote."
        raise TuningError(f"tuning log '{p}'", e.strerror or str(e), "a readable file of JSON lines", hint) from e


def _check_regular(mode: int) -> None:
    """Raise OSError for a directory, a device, a pipe: reading one may never end."""
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "Is a directory" if stat.S_ISDIR(mode) else "Is no regular file")


@lru_cache(maxsize=16)
def _read(path: str, _mtime_ns: int, _size: int) -> Contents:
    lines: list[Line] = []
    skipped = 0
    with open(path, encoding="utf-8", errors="replace") as f:
        for text in f:
            if not text.strip():
                continue
            line = parse(text)
            if line is None:
                skipped += 1
            else:
                lines.append(line)
    if skipped:
        log.warning("tuning log '%s': skipped %d lines that are damaged or of a newer version", path, skipped)
    return Contents(tuple(lines), skipped)


def shipped() -> list[Path]:
    """The logs that come with the package, in a stable order."""
    folder = Path(str(resources.files("tilegrad.tuning_logs")))
    return sorted(folder.glob("*.jsonl"))


class Appender:
    """Appends whole lines to one log, each on disk's side of the process before ``append`` returns.

    A line is one ``write`` to a descriptor opened with O_APPEND, under an advisory lock, so that several
    writers never mix; a torn last line (a crash, a full disk) is closed first. Raises TuningError when the
    log cannot be created or written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.exists():
                _check_regular(self.path.stat().st_mode)
            self._fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as e:
            hint = "Choose another log with -o LOG (log= in Python) or TILEGRAD_LOG."
            raise TuningError(f"tuning log '{self.path}'", e.strerror or str(e), "a file that can be written", hint) from e

    def append(self, line: Line) -> None:
        """Add one line."""
        data = line.line().encode() + b"\n"
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            try:
                size = os.fstat(self._fd).st_size
                if size and os.pread(self._fd, 1, size - 1) != b"\n":
                    data = b"\n" + data
                if os.write(self._fd, data) != len(data):
                    raise OSError(28, "No space left on device")
            finally:
                fcntl.flock(self._fd, fcntl.LOCK_UN)
        except OSError as e:
            hint = "Earlier trials are kept. Free some space and run the same command again: it goes on from there."
            raise TuningError(f"tuning log '{self.path}'", e.strerror or str(e), "room for one more line", hint) from e

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Appender:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def write(path: str | os.PathLike[str], lines: Iterable[Line]) -> int:
    """Write a whole log, replacing ``path`` in one step; returns the number of lines. Raises TuningError."""
    p, texts = Path(path), [line.line() for line in lines]
    temp = p.with_name(f".{p.name}.{os.getpid()}")
    try:
        temp.write_text("".join(t + "\n" for t in texts))
        temp.replace(p)
    except OSError as e:
        temp.unlink(missing_ok=True)
        raise TuningError(f"tuning log '{p}'", e.strerror or str(e), "a file that can be written") from e
    return len(texts)


def read_all(paths: Sequence[str | os.PathLike[str]]) -> Contents:
    """Several logs as one, in the order given."""
    parts = [read(p) for p in paths]
    return Contents(tuple(line for part in parts for line in part.lines), sum(part.skipped for part in parts))
