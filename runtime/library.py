"""A built library from Python: ctypes and NumPy, nothing else. The same code runs built and exported libraries."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from tilegrad._base import settings
from tilegrad._base.errors import IndexingError, LibraryError, UsageError
from tilegrad.runtime.arrays import address
from tilegrad.runtime.binding import Binder
from tilegrad.runtime.families import Family, read
from tilegrad.runtime.manifest import Port, ports_of
from tilegrad.runtime.memory import zeros
from tilegrad.runtime.program import numpy_dtype

if TYPE_CHECKING:
    from tilegrad.runtime.builder import Recipe

Arrays = Mapping[str, np.ndarray]

_NO_CONTEXT, _BUSY, _BAD_ARGUMENT = 1, 2, 3


class Library:
    """A shared library and what its manifest says about it. Loaded into the process when first needed."""

    def __init__(self, path: Path, manifest: dict[str, Any], recipe: Callable[[], Recipe] | None = None) -> None:
        self.recipe = recipe
        """Makes what it was built from; None for an exported library."""
        self.path = path
        self.manifest = manifest
        self.entries: dict[str, tuple[Port, ...]] = ports_of(manifest)
        """Every entry's ports, in the order of the C function's argument array."""
        self.states: dict[str, dict[str, Any]] = {s["name"]: s for s in manifest["states"]}
        """What the manifest says of every state and hyperparameter."""
        self.families: dict[str, Family] = read(manifest)
        """Entries that are one function of several batch sizes; ``run`` takes a family's name as well as an entry's."""
        self._functions: _Functions | None = None

    def context(self, num_threads: int | None = None) -> Context:
        """A new Context: own states, temporaries and threads.

        ``num_threads``: default ``TILEGRAD_NUM_THREADS``, else the affinity mask. Raises LibraryError when the
        library cannot be loaded or the context not be made.
        """
        return Context(self, settings.num_threads(num_threads))

    @property
    def names(self) -> list[str]:
        """What there is to call: families, then the entries that belong to none."""
        parts = {e for f in self.families.values() for e in f.entries.values()}
        return [*self.families, *(e for e in self.entries if e not in parts)]

    def ports(self, name: str, batch: int | None = None) -> tuple[Port, ...]:
        """The ports of an entry, or of a family for a batch (default: its largest).

        Raises UsageError for an unknown name, ShapeError for a batch that the family does not take.
        """
        known = isinstance(name, str)
        if known and name in self.entries:
            return self.entries[name]
        if not known or name not in self.families:
            raise UsageError("entry", repr(name), f"one of {', '.join([*self.families, *self.entries])}")
        family = self.families[name]
        batch = family.sizes[0] if batch is None else batch
        family.check(name, batch)
        largest = self.entries[family.entries[family.sizes[0]]]
        return tuple(
            p._replace(shape=(batch, *p.shape[1:])) if rows else p for p, rows in zip(largest, family.batched, strict=True)
        )

    def function(self, name: str, batch: int | None = None) -> Callable[[Any, Any], int]:
        """The C function of an entry, or of a family with its batch, taking context and argument array."""
        if name in self.entries:
            return self.functions.entries[name]
        function = self.functions.families[name]
        return lambda context, pointers: function(context, batch, pointers)

    def batch_of(self, name: str, args: Arrays) -> int | None:
        """The batch that the arrays for a family have; None for an entry."""
        if not isinstance(name, str) or not isinstance(args, Mapping):
            self.ports(name)  # which knows what is wrong with a name
            expected = "arrays by port name: a dict"
            raise UsageError(f"entry '{name}', argument 'args'", f"{type(args).__name__}", expected)
        if name not in self.families:
            return None
        for p, rows in zip(self.ports(name), self.families[name].batched, strict=True):
            if rows and p.role == "input" and (shape := getattr(args.get(p.name), "shape", None)):
                return int(shape[0])
        return self.families[name].sizes[0]

    @property
    def functions(self) -> _Functions:
        """The C functions (loads the library)."""
        if self._functions is None:
            self._functions = _Functions(self.path, self.manifest["prefix"], [*self.entries], [*self.families])
        return self._functions

    def __repr__(self) -> str:
        return f"Library({', '.join(self.entries)}; {self.path})"


class _Functions:
    """The library's C functions with their argument types."""

    def __init__(self, path: Path, prefix: str, entries: list[str], families: list[str]) -> None:
        p, c = ctypes.c_void_p, ctypes
        try:
            library = ctypes.CDLL(str(path))
            self.context_create_in = self._get(library, f"{prefix}_context_create_in", p, c.c_int, p, c.c_size_t)
            self.context_destroy = self._get(library, f"{prefix}_context_destroy", c.c_int, p)
            self.workspace_size = self._get(library, f"{prefix}_workspace_size", c.c_size_t, c.c_int)
            self.last_error = self._get(library, f"{prefix}_last_error", c.c_char_p, p)
            self.use_threads = self._get(library, f"{prefix}_use_threads", c.c_int, p, p)
            self.state = self._get(library, f"{prefix}_state", p, p, c.c_char_p, p)
            self.benchmark = self._get(library, f"{prefix}_benchmark", c.c_int, p, c.c_uint, p, c.c_int, c.c_int, p)
            self.profile = self._get(library, f"{prefix}_profile", c.c_int, p, c.c_uint, p, c.c_int, p)
            self.entries = {e: self._get(library, f"{prefix}_{e}", c.c_int, p, p) for e in entries}
            self.families = {e: self._get(library, f"{prefix}_{e}", c.c_int, p, c.c_int64, p) for e in families}
        except (OSError, AttributeError) as e:
            raise LibraryError(f"library {path}", str(e), "a library that tilegrad built", "Build or export it again.") from e

    @staticmethod
    def _get(library: ctypes.CDLL, name: str, result: Any, *args: Any) -> Callable[..., Any]:
        f = getattr(library, name)
        f.restype, f.argtypes = result, list(args)
        return f


class Context:
    """States, temporaries and threads for calls of a library's entries. One call at a time; make one per thread."""

    def __init__(self, library: Library, num_threads: int) -> None:
        self.library = library
        self.num_threads = num_threads
        self._f = library.functions
        self._workspace = self._memory(self._f.workspace_size(num_threads))  # arrays of ``state`` keep it alive
        self._start = address(self._workspace)
        self._pointer = self._f.context_create_in(num_threads, self._start, self._workspace.nbytes)
        if not self._pointer:
            raise LibraryError(f"library {library.path}", self._f.last_error(None).decode(), "a context")
        self._states: dict[str, np.ndarray] = {}
        self._forms: dict[tuple[str, int | None], tuple[Binder, Callable[..., int]]] = {}

    def _memory(self, nbytes: int) -> np.ndarray:
        try:
            return zeros(nbytes)
        except (MemoryError, OSError) as e:
            raise LibraryError(f"library {self.library.path}", f"no memory for {nbytes} bytes: {e}", "a context") from e

    def run(self, entry: str, args: Arrays) -> dict[str, np.ndarray]:
        """Call an entry, or a family by the batch of its first input, and return the outputs by port name.

        ``args``: arrays by port name, C-contiguous, of the port's exact shape and dtype; they are used in place. A
        missing state or hyper means the context's own; missing outputs are allocated. Arrays given for written ports
        are written. Raises UsageError, ShapeError or DTypeError naming the port; LibraryError when the call fails.
        """
        binder, function = self._entry(entry, args)
        pointers, outputs, keep = binder.bind(args)
        status = function(self._pointer, pointers)
        if status:
            raise self._error(status, entry)
        return outputs

    def prepare(self, entry: str, args: Arrays) -> Callable[[], dict[str, np.ndarray]]:
        """Check ``args`` once and return a function that runs ``entry`` on these very arrays, output arrays included."""
        binder, function = self._entry(entry, args)
        pointers, outputs, keep = binder.bind(args)

        def call(keep: Any = keep) -> dict[str, np.ndarray]:
            status = function(self._pointer, pointers)
            if status:
                raise self._error(status, entry)
            return outputs

        return call

    def caller(self, entry: str, batch: int | None = None) -> Callable[[Any], None]:
        """A function of the C argument array (one pointer per port, NULL for the context's own state) that checks nothing but
        the status: for callers that keep their arrays bound. Raises LibraryError or UsageError when the call fails."""
        function = self.library.function(entry, batch)

        def call(pointers: Any) -> None:
            status = function(self._pointer, pointers)
            if status:
                raise self._error(status, entry)

        return call

    def use_threads(self, run: Any) -> None:
        """Run parallel loops on the program's threads instead of the context's: ``run`` is a C function pointer with the
        signature of libgomp's ``GOMP_parallel``, None for the context's own again. Raises LibraryError when it is in use."""
        status = self._f.use_threads(self._live(), ctypes.cast(run, ctypes.c_void_p) if run is not None else None)
        if status:
            raise self._error(status, "use_threads")

    def state(self, name: str) -> np.ndarray:
        """The context's own array of a state or hyperparameter; writing to it changes the value."""
        if not isinstance(name, str) or name not in self._states:
            if not isinstance(name, str) or name not in self.library.states:
                raise UsageError("state", repr(name), f"one of {', '.join(self.library.states)}")
            known = self.library.states[name]
            start = self._f.state(self._live(), name.encode(), None) - self._start
            shape, dtype = tuple(known["shape"]), np.dtype(numpy_dtype(known["dtype"]))
            size = prod(shape) * dtype.itemsize
            self._states[name] = self._workspace[start : start + size].view(dtype).reshape(shape)
        return self._states[name]

    @property
    def states(self) -> dict[str, np.ndarray]:
        """Every state and hyperparameter by name, as ``state`` returns it."""
        return {name: self.state(name) for name in self.library.states}

    def benchmark(self, entry: str, args: Arrays, number: int = 1, repeat: int = 1, *, warm_up: bool = True) -> list[float]:
        """Seconds a run, for each of ``repeat`` series of ``number`` runs, timed in C; ``warm_up``: after one run more."""
        index, pointers, keep = self._timed(entry, args, number, repeat)
        seconds = np.empty(repeat)
        for n, r in ([(1, 1)] if warm_up else []) + [(number, repeat)]:
            status = self._f.benchmark(self._live(), index, pointers, n, r, seconds.ctypes.data)
            if status:
                raise self._error(status, entry)
        return seconds.tolist()

    def profile(self, entry: str, args: Arrays, repeat: int = 10) -> list[tuple[str, float]]:
        """(kernel, seconds) of every call in order: the median of ``repeat`` runs."""
        index, pointers, keep = self._timed(entry, args, 1, repeat)
        calls = self.library.manifest["entries"][entry]["calls"]
        seconds = np.empty((repeat, len(calls)))
        status = self._f.profile(self._live(), index, pointers, repeat, seconds.ctypes.data)
        if status:
            raise self._error(status, entry)
        return list(zip(calls, np.median(seconds, axis=0).tolist(), strict=True))

    def close(self) -> None:
        """Stop the threads; no more calls. Arrays of ``state`` stay valid. Raises UsageError while a call is running."""
        if self._pointer:
            if self._f.context_destroy(self._pointer) == _BUSY:
                raise self._error(_BUSY, "close")
            self._pointer = None

    def _timed(self, entry: str, args: Arrays, number: int, repeat: int) -> tuple[int, Any, Any]:
        if any(not isinstance(n, int | np.integer) or n < 1 for n in (number, repeat)):
            raise UsageError("benchmark", f"number {number!r}, repeat {repeat!r}", "whole numbers of at least 1 each")
        if not isinstance(entry, str) or entry not in self.library.entries:
            raise UsageError("benchmark, entry", repr(entry), f"one of {', '.join(self.library.entries)}")
        pointers, _, keep = self._entry(entry, args)[0].bind(args)
        return list(self.library.entries).index(entry), pointers, keep

    def _entry(self, name: str, args: Arrays) -> tuple[Binder, Callable[..., int]]:
        found = self._forms.get((name, self.library.batch_of(name, args)))
        return found or self._form(name, args)

    def _form(self, name: str, args: Arrays) -> tuple[Binder, Callable[..., int]]:
        batch = self.library.batch_of(name, args)
        ports = self.library.ports(name, batch)
        found = self._forms[name, batch] = (Binder(name, ports), self.library.function(name, batch))
        return found

    def _live(self) -> int:
        if self._pointer is None:
            raise self._closed("context")
        return self._pointer

    @staticmethod
    def _closed(where: str) -> UsageError:
        return UsageError(where, "a closed context", "an open one", "Make a new one with Library.context().")

    def _error(self, status: int, entry: str) -> Exception:
        if self._pointer is None or status == _NO_CONTEXT:
            return self._closed(f"entry '{entry}'")
        if status == _BUSY:
            hint = "Make one context per thread with Library.context()."
            return UsageError(f"entry '{entry}'", "a context that is inside a call on another thread", "one call at a time", hint)
        text = self._f.last_error(self._pointer).decode(errors="replace")
        if status == _BAD_ARGUMENT:  # arrays were checked before: it is one of their numbers
            got, _, expected = text.partition(": ")[2].partition(", expected ")
            return IndexingError(f"entry '{entry}'", got, expected)
        return LibraryError(f"entry '{entry}'", f"error {status}: {text}")

    def __enter__(self) -> Context:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_pointer", None):
            self.close()
