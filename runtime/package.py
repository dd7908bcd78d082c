"""Export: a directory that holds a library and everything one needs to use it, from C or from Python."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tilegrad._base.errors import LibraryError
from tilegrad.runtime import amalgam, cache, example, header, safetensors, wrapper
from tilegrad.runtime.contents import MANIFEST, PARAMETERS, checked_states, manifest_text
from tilegrad.runtime.files import path_of, write
from tilegrad.runtime.library import Library

if TYPE_CHECKING:
    from tilegrad.runtime.builder import Recipe


def export(
    library: Library,
    directory: str | Path,
    states: Mapping[str, np.ndarray],
    *,
    prefix: str | None = None,
    notes: Mapping[str, str] | None = None,
    plain: Recipe | None = None,
) -> Path:
    """Write ``library`` as a package and return its directory.

    Parameters
    ----------
    states: values of the library's states and hyperparameters by name; hyperparameters not given are zero.
    prefix: what the C functions, the files and the CMake targets are called; default: the library's own.
    notes: a sentence, such as meaning and unit, for the header; by name of a port, state or entry.

    plain: the same entries with kernels as plain loops (``relax_ext.driver.plain_recipe``); adds ``<prefix>.c``, the whole
        library as one file of C.

    The package: ``lib<prefix>.so``, ``lib<prefix>.a``, ``<prefix>.h``, ``<prefix>.hpp``, ``parameters.safetensors``,
    ``manifest.json`` with checksums, ``main.c`` and ``CMakeLists.txt``.

    Raises UsageError, ShapeError or DTypeError for states that are missing or do not fit, LibraryError when the
    directory cannot be written or the library was itself exported.
    """
    out = path_of(directory, "export, argument 'directory'")
    if library.recipe is None:
        raise LibraryError(
            "export", f"the exported library {library.path}", "a library built in this process", "Copy its folder."
        )
    recipe = library.recipe()
    if prefix is not None and prefix != recipe.prefix:
        recipe = recipe.with_prefix(prefix)
        library = recipe.library()
    arrays = checked_states(library.manifest, states)
    name = library.manifest["prefix"]
    contents: dict[str, bytes] = {
        f"lib{name}.so": cache.content(library.path),
        f"lib{name}.a": recipe.static_library(),
        f"{name}.h": header.header(library.manifest, notes or {}).encode(),
        f"{name}.hpp": wrapper.wrapper(library.manifest).encode(),
        "main.c": example.example(library.manifest).encode(),
        "CMakeLists.txt": example.cmake(library.manifest).encode(),
    }
    if plain is not None:
        contents[f"{name}.c"] = amalgam.c_source(plain.with_prefix(name)).encode()
    dtypes = {s["name"]: s["dtype"] for s in library.manifest["states"]}
    try:
        out.mkdir(parents=True, exist_ok=True)
        for file, data in contents.items():
            write(out / file, [data], 0o755 if file.endswith(".so") else 0o644)
        safetensors.save(out / PARAMETERS, arrays, dtypes)
        contents[PARAMETERS] = (out / PARAMETERS).read_bytes()
        manifest = {**library.manifest, "files": {file: _described(data) for file, data in contents.items()}}
        write(out / MANIFEST, [manifest_text(manifest)])
    except OSError as e:
        raise LibraryError(f"export to {out}", str(e), "a folder that can be written") from e
    return out


def _described(data: bytes) -> dict[str, Any]:
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
