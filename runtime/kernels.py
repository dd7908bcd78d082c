"""Kernels to objects: LLVM through ``tvm.compile``, in parallel, kept by content."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tilegrad._base import settings
from tilegrad._base.errors import LibraryError
from tilegrad._base.target import Target
from tilegrad.runtime import cache
from tilegrad.runtime.emit import Kernel
from tilegrad.runtime.lowering import pipeline_for

OBJECT_VERSION = 3
"""Counts changes in how objects are made; older cache entries are then no longer found."""

_HEAP = "Unknown device id"
"""What TVM says when it would call its workspace allocator in a kernel whose parameters are plain pointers."""


def symbols(kernels: Mapping[str, Any], target: Target) -> dict[str, Kernel]:
    """The symbol of every scheduled kernel: a hash of its structure, the target and the versions."""
    from tilegrad._base.tvm import tvm, tvm_ffi

    context = (str(target.tvm), tvm.__version__, tvm_ffi.__version__, OBJECT_VERSION)
    found = {}
    for name, scheduled in kernels.items():
        plain = scheduled.func.with_attr("global_symbol", "kernel")
        found[name] = Kernel("tgk_" + cache.key(tvm_ffi.structural_hash(plain), *context)[:24], scheduled.scratch_bytes)
    return found


def compile_all(kernels: Mapping[str, Any], named: Mapping[str, Kernel], target: Target) -> list[Path]:
    """One object a distinct symbol, in the order of the symbols. Raises LibraryError naming the kernel that failed."""
    by_symbol = {named[name].symbol: name for name in kernels}
    paths = {symbol: cache.get(_entry(symbol)) for symbol in by_symbol}
    missing = [s for s, p in paths.items() if p is None]
    if missing:
        llvm = target.tvm  # made once, outside the threads
        with ThreadPoolExecutor(min(len(missing), settings.num_threads())) as pool:
            jobs = {s: pool.submit(_compile, by_symbol[s], kernels[by_symbol[s]].func, s, llvm) for s in missing}
            for symbol, job in jobs.items():
                paths[symbol] = cache.put(_entry(symbol), job.result())
    return [p for _, p in sorted(paths.items()) if p is not None]


def _entry(symbol: str) -> str:
    return f"objects/{symbol}.o"


def _compile(name: str, func: Any, symbol: str, llvm: Any) -> bytes:
    from tilegrad._base.tvm import tvm

    try:
        module = tvm.IRModule({symbol: pointer_kernel(func, symbol)})
        library = tvm.compile(module, target=llvm, tir_pipeline=pipeline_for(func))
    except Exception as e:  # TVM's errors have no common type; the kernel's name is what the reader needs
        if _HEAP in str(e):
            hint = "Schedule it with schedules.schedule."
            raise LibraryError(f"kernel '{name}'", "an allocation on the heap", "scratch as a parameter", hint) from e
        raise LibraryError(f"kernel '{name}'", f"an error of TVM: {e}", hint="This is a fault of the kernel's schedule.") from e
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.o"
        library.mod.write_to_file(str(path), "o")
        return path.read_bytes()


def pointer_kernel(func: Any, symbol: str) -> Any:
    """The kernel with plain pointers as parameters.

    TVM generates some forty checks for every parameter that is a buffer: most of a small kernel's code and half of its
    compile time. A Program's shapes are static and the builder has compared them with the kernel's.
    """
    from tilegrad._base.tvm import ir, tirx, tvm_ffi

    pointers, views = [], []
    for i, buffer in enumerate(func.params):
        pointers.append(tirx.Var(f"p{i}", ir.PointerType(ir.PrimType(str(buffer.dtype)), "global")))
        views.append(tirx.DeclBuffer(buffer, data=pointers[-1]))
    # TVM's builder marks a sequence of statements for itself; its code generator then prints a warning about the mark.
    body = tvm_ffi.structural_map(func.body, (tirx.AttrStmt, lambda a: a.body if a.attr_key == "pragma_scope" else a))
    return tirx.PrimFunc(pointers, tirx.SeqStmt([*views, body]), attrs=func.attrs).with_attr("global_symbol", symbol)
