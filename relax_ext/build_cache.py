"""What a build came to, kept by what went into it: a second build of the same Graphs, in any process, lowers nothing.

The key covers the Graphs (structure and constants), target, prefix, the logs' state, versions and tilegrad's own
sources. The library itself is kept by the runtime's cache; an entry whose library is gone counts as missing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import tilegrad
from tilegrad import tuning_logs
from tilegrad._base import settings
from tilegrad._base.target import Target
from tilegrad._base.tvm import tvm, tvm_ffi
from tilegrad.relax_ext.graph import Graph
from tilegrad.runtime import cache

_ROOMS = ("_base", "relax_ext", "runtime", "schedules", "tuning_logs")


def key(graphs: Mapping[str, Graph], target: Target, prefix: str, logs: Iterable[Path], families: Mapping[str, Any]) -> str:
    """Content address of a build."""
    parts: list[Any] = [prefix, repr(target), repr(families), tvm.__version__, tvm_ffi.__version__, _sources()]
    for name, g in graphs.items():
        parts += [name, tvm_ffi.structural_hash(g.module), repr(g.inputs), repr(g.outputs)]
    for path in logs:
        stat = path.stat()
        parts += [path, stat.st_mtime_ns, stat.st_size]
    return cache.key(*parts)


def get(name: str) -> tuple[Path, dict[str, Any]] | None:
    """The library and what was stored with it."""
    path = cache.get(f"builds/{name}.json")
    if path is None:
        return None
    entry = json.loads(path.read_bytes()[: -hashlib.sha256().digest_size])
    library = cache.get(entry["library"])
    return None if library is None else (library, entry)


def put(name: str, library: Path, entry: Mapping[str, Any]) -> None:
    """Keep a build. ``library`` lies in the cache folder."""
    where = library.relative_to(settings.cache_dir()).as_posix()
    cache.put(f"builds/{name}.json", json.dumps({"library": where, **entry}).encode())


def log_files(logs: Any) -> list[Path]:
    """The files that ``logs`` stands for (see ``tuning_logs.Records.load``); those that do not exist are left out."""
    if logs is None:
        named = [settings.user_log(), *tuning_logs.shipped()]
    else:
        named = [Path(logs)] if isinstance(logs, str | Path) else [Path(p) for p in logs]
    return [p for p in named if p.exists()]


@lru_cache(maxsize=1)
def _sources() -> str:
    """The state of tilegrad's own code: names, sizes and times of the files that a build depends on."""
    root = Path(tilegrad.__file__).parent
    h = hashlib.sha256()
    for room in _ROOMS:
        for path in sorted((root / room).rglob("*")):
            if path.suffix in (".py", ".c", ".h"):
                stat = path.stat()
                h.update(f"{path.relative_to(root)} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    return h.hexdigest()
