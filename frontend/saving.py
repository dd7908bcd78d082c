"""Parameters on disk as safetensors, readable by every other framework."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tilegrad._base.errors import ModelImportError


def save_safetensors(state: Any, path: str | Path) -> None:
    """Write a Module's state, or a mapping of names to arrays, to a file."""
    from safetensors.numpy import save_file

    values: Mapping[str, Any] = state.state_dict() if hasattr(state, "state_dict") else state
    save_file({k: np.ascontiguousarray(v) if np.ndim(v) else np.asarray(v) for k, v in values.items()}, str(path))


def load_safetensors(path: str | Path) -> OrderedDict[str, np.ndarray]:
    """Arrays by name, for ``load_state_dict``. Raises ModelImportError for a file that is missing or damaged."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return OrderedDict(load_file(str(path)))
    except (OSError, SafetensorError) as e:
        raise ModelImportError(f"load_safetensors, file {path}", str(e), "a safetensors file") from e
