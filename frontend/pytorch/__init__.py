"""PyTorch: import a module through ``torch.export``, and serve as a backend of ``torch.compile``."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilegrad.frontend.pytorch.importer import Imported, import_exported
    from tilegrad.frontend.pytorch.model import TorchModel, from_torch
    from tilegrad.frontend.pytorch.verification import Verification, verify

_WHERE = {
    "Imported": "importer",
    "import_exported": "importer",
    "TorchModel": "model",
    "from_torch": "model",
    "Verification": "verification",
    "verify": "verification",
}
__all__ = ["Imported", "TorchModel", "Verification", "from_torch", "import_exported", "verify"]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
