"""The one place that imports TVM.

``tvm_ffi`` imports torch when it is installed (3 to 8 s and 400 MB); hiding torch during
the import avoids that. Torch can be imported normally afterwards and DLPack works.
Every room writes ``from tilegrad._base.tvm import relax, te, ...`` instead of ``import tvm``.
"""

from __future__ import annotations

import os
import sys

if "tvm" not in sys.modules:
    # TVM's own pool is used by oracles in tests only; make it honest about the cores there are.
    os.environ.setdefault("TVM_NUM_THREADS", str(len(os.sched_getaffinity(0))))
    _hide_torch = "torch" not in sys.modules
    if _hide_torch:
        sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        import tvm
    finally:
        if _hide_torch:
            del sys.modules["torch"]

import tvm
import tvm_ffi
from tvm import ir, relax, s_tir, te, tirx, topi

__all__ = ["ir", "relax", "s_tir", "te", "tirx", "topi", "tvm", "tvm_ffi"]
