"""``tilegrad doctor``: what this machine offers, and whether a kernel really compiles and runs on it."""

from __future__ import annotations

import platform
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata

import numpy as np
import typer

from tilegrad._base import settings
from tilegrad._base.errors import TilegradError
from tilegrad._base.target import Target
from tilegrad._base.version import __version__


def report() -> bool:
    """Print one line a fact; True when nothing that tilegrad needs is missing."""
    good = True
    for name, look in CHECKS:
        try:
            mark, text = typer.style("ok", fg="green"), look()
        except (TilegradError, ImportError, OSError, metadata.PackageNotFoundError) as e:
            good, mark, text = False, typer.style("no", fg="red"), " ".join(str(e).split())
        typer.echo(f"{mark}  {name:9} {text}")
    return good


def _python() -> str:
    return f"{platform.python_version()} on {platform.system()} {platform.machine()}, {sys.executable}"


def _cpu() -> str:
    t = Target.native()
    caches = ", ".join(f"L{i + 1} {size >> 10} KiB" for i, size in enumerate((t.l1_bytes, t.l2_bytes, t.l3_bytes)))
    return f"{t.cpu}; {caches}; vectors of {t.vector_bytes} bytes"


def _features() -> str:
    return ", ".join(Target.native().features) or "none beyond the baseline"


def _threads() -> str:
    return f"{settings.num_threads()} (this process may use {settings.usable_cores()} cores; TILEGRAD_NUM_THREADS changes it)"


def _compiler() -> str:
    from tilegrad.runtime import toolchain

    command = toolchain.find(Target.native()).command
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    return f"{shlex.join(command)}: {(done.stdout or done.stderr).splitlines()[0]}"


def _packages() -> str:
    names = ("apache-tvm", "apache-tvm-ffi", "numpy", "scipy")
    return ", ".join(f"{n} {metadata.version(n)}" for n in names)


def _xgboost() -> str:
    for name in ("xgboost-cpu", "xgboost"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    raise ImportError("not installed: the tuner ranks with the analytic model alone. pip install xgboost-cpu")


def _cache() -> str:
    folder = settings.cache_dir()
    folder.mkdir(parents=True, exist_ok=True)
    probe = folder / ".doctor"
    probe.write_text("")
    probe.unlink()
    return f"{folder}, {shutil.disk_usage(folder).free >> 20} MiB free"


def _log() -> str:
    path = settings.user_log()
    return str(path) if path.exists() else f"{path} (none yet: tilegrad tune MODEL writes it)"


def _kernel() -> str:
    """A 16 x 16 matrix product through the whole house, compared with NumPy."""
    from tilegrad._base.tvm import relax
    from tilegrad.relax_ext.driver import compile_graphs
    from tilegrad.relax_ext.graph import GraphBuilder

    builder = GraphBuilder()
    x = builder.input("x", (16, 16), "float32")
    builder.output("y", builder.emit(relax.op.matmul(x, x)))
    a = np.random.default_rng(0).standard_normal((16, 16), dtype=np.float32)
    start = time.perf_counter()
    library = compile_graphs({"doctor": builder.finish()}, logs=[])
    compiled = time.perf_counter()
    y = library.context().run("doctor", {"x": a})["y"]
    if not np.allclose(y, a @ a, rtol=1e-5, atol=1e-5):
        raise TilegradError(
            "a 16 x 16 matrix product", "other values than NumPy's", hint="Please report this with the lines above."
        )
    return f"a 16 x 16 matrix product compiled in {compiled - start:.1f} s and equals NumPy's"


CHECKS: tuple[tuple[str, Callable[[], str]], ...] = (
    ("tilegrad", lambda: __version__),
    ("python", _python),
    ("cpu", _cpu),
    ("features", _features),
    ("threads", _threads),
    ("packages", _packages),
    ("xgboost", _xgboost),
    ("compiler", _compiler),
    ("cache", _cache),
    ("log", _log),
    ("kernel", _kernel),
)
