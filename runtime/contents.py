"""What export and load agree on: names of files, the manifest's checksum, which states belong to a package."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from tilegrad._base.errors import DTypeError, ShapeError, UsageError
from tilegrad.runtime.program import numpy_dtype

MANIFEST, PARAMETERS = "manifest.json", "parameters.safetensors"


_LINE = b',\n "checksum": "%b"\n}\n'


def manifest_text(manifest: Mapping[str, Any]) -> bytes:
    """The manifest's file: JSON whose last line is the SHA-256 of all before it."""
    body = json.dumps(manifest, indent=1)[:-2].encode()
    return body + _LINE % _sha256(body)


def is_whole(text: bytes) -> bool:
    """Whether a manifest's file is as ``manifest_text`` made it."""
    body = text[: -len(_LINE % _sha256(b""))]
    return text == body + _LINE % _sha256(body)


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest().encode()


def checked_states(manifest: Mapping[str, Any], given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """``given`` in the manifest's order, with zeros for hyperparameters that are missing. Raises as ``export`` does."""
    known = {s["name"]: s for s in manifest["states"]}
    if unknown := sorted(set(given) - set(known)):
        raise UsageError("states", f"unknown {', '.join(map(repr, unknown))}", f"names among {', '.join(known) or 'none'}")
    out = {}
    for name, s in known.items():
        dtype, shape = np.dtype(numpy_dtype(s["dtype"])), tuple(s["shape"])
        if name not in given and s["role"] == "state":
            raise UsageError("states", f"no {name!r}", f"an array {s['dtype']}{s['shape']}")
        array = np.asarray(given[name]) if name in given else np.zeros(shape, dtype)
        if array.shape != shape:
            raise ShapeError(f"state '{name}'", f"shape {array.shape}", f"{shape}")
        if s["dtype"] == "bfloat16" and array.dtype.name == "bfloat16":
            array = array.view(np.uint16)
        if array.dtype != dtype:
            raise DTypeError(f"state '{name}'", f"dtype {array.dtype}", s["dtype"])
        out[name] = array
    return out
