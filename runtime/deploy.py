"""Load: an exported package from Python with ctypes and NumPy alone. TVM is not imported, nor need it be installed."""

from __future__ import annotations

import _thread
import contextlib
import hashlib
import json
import mmap
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tilegrad._base.errors import LibraryError, UsageError
from tilegrad._base.target import cpu
from tilegrad.runtime import elf, safetensors
from tilegrad.runtime.contents import MANIFEST, PARAMETERS, checked_states, is_whole
from tilegrad.runtime.files import path_of
from tilegrad.runtime.library import Context, Library
from tilegrad.runtime.manifest import ABI
from tilegrad.runtime.program import RANDOM

BLOCK = 1 << 24
"""Bytes that are hashed between two looks at whether the checksum is still wanted."""


class Loaded:
    """An exported library with its parameters in one context: ``run`` by name, or call it with arrays in order."""

    def __init__(self, library: Library, context: Context) -> None:
        self.library = library
        self.context = context

    @property
    def entries(self) -> dict[str, Any]:
        """Every entry's ports; those of ``library.families`` are called by the family's name as well."""
        return self.library.entries

    def run(self, entry: str, args: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Call an entry with arrays by port name; see ``Context.run``."""
        return self.context.run(entry, args)

    def call(self, entry: str, *inputs: np.ndarray) -> np.ndarray | tuple[np.ndarray, ...]:
        """Call an entry with its inputs in order. One output is returned as it is, several as a tuple.

        Where a package holds it for several batch sizes, the first input's first axis chooses. Raises ShapeError that lists the
        batches there are when none fits; see also ``Context.run``.
        """
        names = [p.name for p in self.library.ports(entry) if p.role == "input"]
        if len(inputs) != len(names):
            raise UsageError(f"entry '{entry}'", f"{len(inputs)} inputs", f"{len(names)}: {', '.join(names)}")
        outputs = tuple(self.context.run(entry, dict(zip(names, inputs, strict=True))).values())
        return outputs[0] if len(outputs) == 1 else outputs

    def step(self, *inputs: np.ndarray) -> np.ndarray | tuple[np.ndarray, ...]:
        """``call("step", ...)``: one training step; the loss."""
        return self.call("step", *inputs)

    def evaluate(self, *inputs: np.ndarray) -> np.ndarray | tuple[np.ndarray, ...]:
        """``call("evaluate", ...)``: loss and prediction in evaluation mode; nothing is updated."""
        return self.call("evaluate", *inputs)

    def predict(self, *inputs: np.ndarray) -> np.ndarray | tuple[np.ndarray, ...]:
        """``call("predict", ...)``: the prediction in evaluation mode, without the target."""
        return self.call("predict", *inputs)

    def __call__(self, *inputs: np.ndarray) -> np.ndarray | tuple[np.ndarray, ...]:
        """Call the first of ``library.names``."""
        return self.call(self.library.names[0], *inputs)

    def state(self, name: str) -> np.ndarray:
        """A parameter, optimizer state or hyperparameter; writing to the array changes it."""
        return self.context.state(name)

    @property
    def states(self) -> dict[str, np.ndarray]:
        """Every state and hyperparameter by name."""
        return self.context.states

    def seed(self, seed: int) -> None:
        """Start the random operators (dropout) anew: the same seed gives the same numbers.

        Raises UsageError for a seed that is no whole number of 64 bits, and for a package without random operators.
        """
        if not isinstance(seed, int | np.integer) or not -(2**63) <= seed < 2**63:
            raise UsageError("seed", f"{seed!r} of type {type(seed).__name__}", "a whole number from -2**63 to 2**63 - 1")
        if RANDOM not in self.states:
            raise UsageError("seed", "a package without random operators", "one that draws numbers, with dropout for example")
        self.state(RANDOM)[...] = (seed, 0)

    def save(self, path: str | Path) -> None:
        """Write every state and hyperparameter as safetensors. Raises LibraryError when the file cannot be written."""
        dtypes = {name: s["dtype"] for name, s in self.library.states.items()}
        safetensors.save(path_of(path, "save, argument 'path'"), self.states, dtypes)

    def restore(self, path: str | Path) -> None:
        """Take the states from a file that ``save``, or the C function of that name, wrote. Other arrays in it are ignored.

        Raises LibraryError for a damaged file, UsageError, ShapeError or DTypeError when it does not fit; then nothing
        has changed.
        """
        self._take(safetensors.load(path_of(path, "restore, argument 'path'"), self.library.states))

    def _take(self, arrays: Mapping[str, np.ndarray]) -> None:
        checked = checked_states(self.library.manifest, arrays)
        for name in arrays:
            self.state(name)[...] = checked[name]

    def __repr__(self) -> str:
        return f"Loaded({', '.join(self.library.names)}; {self.library.path.parent})"


def load(directory: str | Path, num_threads: int | None = None) -> Loaded:
    """Load an exported package.

    Checks the manifest's version, the machine and the checksums of the files it uses first; only then is anything from the
    package run. ``num_threads``: default ``TILEGRAD_NUM_THREADS``, else the affinity mask. Raises LibraryError that says what
    is wrong.
    """
    folder = path_of(directory, "load, argument 'directory'")
    with _File(folder / PARAMETERS) as parameters:  # takes longest, and lets other threads run: it is done beside the rest
        manifest = _read_manifest(folder)
        with _form_of(folder / MANIFEST):
            _check_machine(manifest)
            path = folder / f"lib{manifest['prefix']}.so"
            if not {path.name, PARAMETERS} <= set(manifest["files"]):
                raise LibraryError(
                    f"package {folder}", "a manifest that lists no library or no parameters", "an exported package"
                )
            code, checksum = _File(path), manifest["files"][PARAMETERS]["sha256"]
            code.check(manifest["files"][path.name]["sha256"])
            arch = elf.machine(code.data[:64])
            if arch != manifest["target"]["arch"]:
                raise LibraryError(
                    f"library {path}", f"a file for {arch}", manifest["target"]["arch"], "Export the package again."
                )
            library = Library(path.absolute(), manifest)
        try:
            with _own_name(library, code):
                loaded = Loaded(library, library.context(num_threads))
            loaded._take(safetensors.parse(parameters.data, parameters.path, library.states))
        finally:
            parameters.check(checksum)  # its error comes first: whatever else went wrong may be due to it
    return loaded


_names: dict[Path, str] = {}
"""Checksums of the libraries that were loaded first by each name."""


@contextlib.contextmanager
def _own_name(library: Library, code: _File) -> Iterator[None]:
    """Where another library was loaded by this name before, a copy is loaded: the system would give the one from before."""
    path, digest = library.path, code.digest
    if _names.setdefault(path, digest) == digest:
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        library.path = Path(folder) / path.name
        library.path.write_bytes(code.data)
        try:
            yield
        finally:
            library.path = path


@contextlib.contextmanager
def _form_of(path: Path) -> Iterator[None]:
    """Reading in a manifest what is not there is an error of the package."""
    try:
        yield
    except (KeyError, TypeError, AttributeError) as e:
        raise LibraryError(f"manifest {path}", f"no proper {e}", "the file that export wrote") from e


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        text = path.read_bytes()
        manifest = json.loads(text)
    except OSError as e:
        raise LibraryError(f"package {folder}", f"no readable {MANIFEST}: {e.strerror}", "a folder that export wrote") from e
    except (ValueError, RecursionError) as e:
        raise LibraryError(
            f"manifest {path}", f"damaged JSON: {e}", "the file that export wrote", "Export the package again."
        ) from e
    if not isinstance(manifest, dict) or "abi" not in manifest:
        raise LibraryError(f"manifest {path}", "JSON of another kind", "the file that export wrote")
    if manifest["abi"] != ABI:
        hint = "Export the package again with this version of tilegrad, or use the version that wrote it."
        raise LibraryError(f"package {folder}", f"ABI version {manifest['abi']!r}", f"{ABI}", hint)
    if not is_whole(text):
        raise LibraryError(f"manifest {path}", "a wrong checksum: it was changed or is damaged", "the file that export wrote")
    return manifest


def _check_machine(manifest: Mapping[str, Any]) -> None:
    (arch, features, _), needs = cpu(), manifest["target"]
    if needs["arch"] != arch:
        raise LibraryError("package", f"code for {needs['arch']}", f"{arch}, this machine", "Export it for this target.")
    if missing := [f for f in needs["features"] if f not in features]:
        raise LibraryError(
            "package", f"code that needs {', '.join(missing)}", "features of this CPU", "Export it for a smaller target."
        )


class _File:
    """A file of a package, mapped. Its checksum is computed by ``check``, or beside the body of a ``with`` statement."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data: mmap.mmap | bytes = b""
        self._problem = ""
        self._digest = hashlib.sha256()
        self._wanted = True
        self._hashing: Any = None
        try:
            file = os.open(path, os.O_RDONLY)
            try:
                self.data = mmap.mmap(file, 0, access=mmap.ACCESS_READ)
            finally:
                os.close(file)
        except (OSError, ValueError) as e:
            self._problem = str(e)

    def _hash(self) -> None:
        with memoryview(self.data) as data:
            for at in range(0, len(data), BLOCK):
                if self._wanted:
                    self._digest.update(data[at : at + BLOCK])

    @property
    def digest(self) -> str:
        """The checksum, once it is computed."""
        return self._digest.hexdigest()

    def check(self, wanted: str) -> None:
        """Raises LibraryError unless the file is there and is what the manifest says."""
        if self._hashing is None:
            self._hash()
        else:
            self._wait()
        if self._problem:
            raise LibraryError(f"package file {self.path}", self._problem, "a complete package", "Copy or export it again.")
        if self.digest != wanted:
            got = "a wrong checksum: it is damaged or incomplete"
            raise LibraryError(f"package file {self.path}", got, wanted[:16] + "...", "Copy it again.")

    def __enter__(self) -> _File:
        self._hashing = _thread.allocate_lock()
        self._hashing.acquire()
        _thread.start_new_thread(self._hash_beside, ())  # threading.Thread waits until it runs
        return self

    def _hash_beside(self) -> None:
        try:
            self._hash()
        finally:
            self._hashing.release()

    def _wait(self) -> None:
        with self._hashing:
            pass

    def __exit__(self, *error: object) -> None:
        self._wanted = False
        self._wait()
