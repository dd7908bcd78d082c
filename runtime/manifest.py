"""The manifest: what a library contains, as plain JSON data. It is inside every library and beside every exported one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tilegrad._base.errors import LibraryError, UsageError
from tilegrad._base.target import Target
from tilegrad._base.version import __version__
from tilegrad.runtime import families as family
from tilegrad.runtime.program import Program

ABI = 3
"""Version of the C ABI and of the manifest's form; a loader refuses any other."""

LONGEST = 64
"""Characters of a prefix: files and every public function begin with it."""
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
FUNCTIONS = (
    "context_create", "context_create_in", "context_destroy", "workspace_size", "last_error", "num_threads", "manifest",
    "benchmark", "profile", "state", "get_state", "set_state", "set_hyper", "seed", "save", "load",
    "context", "status", "use_threads", "cpp",
)  # fmt: skip
"""What a prefix is followed by in the public functions and in the C++ namespace; an entry cannot have such a name."""

KEYWORDS = frozenset(
    "auto break case char const continue default do double else enum extern float for goto if inline int long register restrict "
    "return short signed sizeof static struct switch typedef union unsigned void volatile while "
    "alignas alignof and and_eq asm bitand bitor bool catch class compl concept constexpr decltype delete dynamic_cast explicit "
    "export false friend mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public "
    "reinterpret_cast requires static_assert static_cast template this thread_local throw true try typeid typename using virtual "
    "wchar_t xor xor_eq".split()
)
"""Of C and C++."""

TAKEN = frozenset(
    "assert complex ctype errno fenv float inttypes iso646 limits locale math setjmp signal stdalign stdarg stdatomic stdbit "
    "stdbool stdckdint stddef stdint stdio stdlib stdnoreturn string tgmath threads time uchar wchar wctype "
    "alloca endian features libintl pthread sched semaphore strings syscall syslimits unistd "
    "c dl gcc m rt tgrt".split()
)
"""Prefixes whose files would hide others: headers of C, headers that these and C++'s include, libraries of the system."""


class Port(NamedTuple):
    """One argument of an entry. ``written``: the entry changes the array. ``limits``: see ``runtime.program.Buffer``."""

    name: str
    role: str
    shape: tuple[int, ...]
    dtype: str
    written: bool
    limits: tuple[int, int, int] | None = None

    @property
    def range(self) -> str:
        """The whole numbers that it takes, for a person; empty for all."""
        if self.limits is None:
            return ""
        low, high, also = self.limits
        return f"{low} to {high}" + ("" if low <= also <= high else f", or {also}")

    def __str__(self) -> str:
        return f"{self.role} '{self.name}' {self.dtype}[{', '.join(map(str, self.shape))}]"


def make(
    programs: Mapping[str, Program], target: Target, prefix: str, tvm_version: str, families: Mapping[str, family.Family]
) -> dict[str, Any]:
    """The manifest of a library with these entries.

    Raises UsageError for names that are no C identifiers, for a state that two entries declare differently, and for a family
    whose entries do not fit together.
    """
    _check_names([*programs, *families], prefix)
    states: dict[str, dict[str, Any]] = {}
    entries: dict[str, Any] = {}
    for entry, program in programs.items():
        outputs = [program.buffers.get(a) for c in program.calls for a in c.args[len(c.args) - c.num_outputs :]]
        written = {b.view_of or b.name for b in outputs if b}
        ports = []
        for name in program.ports:
            b = program.buffers[name]
            described: dict[str, Any] = {"name": name, "role": b.role, "shape": list(b.shape), "dtype": b.dtype}
            if b.limits:
                described["limits"] = list(b.limits)
            if b.role in ("state", "hyper"):
                before = states.setdefault(name, described)
                if (before["shape"], before["dtype"]) != (described["shape"], described["dtype"]):
                    raise UsageError(
                        f"entry '{entry}', state '{name}'", f"{b.dtype}{list(b.shape)}", f"{before['dtype']}{before['shape']}"
                    )
            ports.append({**described, "written": name in written})
        entries[entry] = {"ports": ports, "calls": [c.kernel for c in program.calls]}
    return {
        "abi": ABI,
        "prefix": prefix,
        "target": {"arch": target.arch, "triple": target.triple, "features": list(target.features), "threads": target.threads},
        "versions": {"tilegrad": __version__, "tvm": tvm_version},
        "entries": entries,
        "families": family.described(families, entries),
        "states": list(states.values()),
    }


def ports_of(manifest: Mapping[str, Any]) -> dict[str, tuple[Port, ...]]:
    """Every entry's ports. Raises LibraryError when the manifest has not the form of this version."""
    try:
        if manifest["abi"] != ABI:
            raise LibraryError(
                "library", f"ABI version {manifest['abi']}", f"{ABI}", "Export it again with this version of tilegrad."
            )
        return {entry: tuple(map(_port, e["ports"])) for entry, e in manifest["entries"].items()}
    except (KeyError, TypeError, AttributeError) as e:
        raise LibraryError("library manifest", f"no proper {e}", "the manifest that export wrote") from e


def _port(p: Mapping[str, Any]) -> Port:
    limits = tuple(p["limits"]) if "limits" in p else None
    return Port(p["name"], p["role"], tuple(p["shape"]), p["dtype"], bool(p["written"]), limits)


def _check_names(entries: Sequence[str], prefix: str) -> None:
    if not entries:
        raise UsageError("build", "no programs", "at least one")
    fits = isinstance(prefix, str) and _NAME.fullmatch(prefix) and len(prefix) <= LONGEST
    if not fits or prefix in KEYWORDS:
        raise UsageError("prefix", repr(prefix), f"a C identifier that is no keyword, of at most {LONGEST} characters")
    if prefix in TAKEN:
        hidden = f"{prefix}.h and lib{prefix}.so would hide the system's"
        raise UsageError("prefix", repr(prefix), "no name of a header or library of the system", f"Choose another: {hidden}.")
    for entry in entries:
        if not _NAME.fullmatch(entry) or entry in KEYWORDS.union(FUNCTIONS) or entry.startswith("call_"):
            raise UsageError("entry name", repr(entry), f"a C identifier other than {', '.join(FUNCTIONS)}")
