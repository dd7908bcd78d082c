"""Building, loading, calling and exporting libraries. Importing this imports neither TVM nor NumPy."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilegrad.runtime.builder import Recipe as Recipe
    from tilegrad.runtime.builder import build as build
    from tilegrad.runtime.deploy import Loaded as Loaded
    from tilegrad.runtime.deploy import load as load
    from tilegrad.runtime.library import Context as Context
    from tilegrad.runtime.library import Library as Library
    from tilegrad.runtime.package import export as export

_HOMES = {
    "build": "builder", "Recipe": "builder", "Context": "library", "Library": "library",
    "export": "package", "load": "deploy", "Loaded": "deploy",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"tilegrad.runtime.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
