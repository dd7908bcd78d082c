"""What an exported library costs: size, start, the overhead of a call from C and from Python, memory.

    python -m benchmarks.export --json [--quick]

The MLP is that of benchmarks.train_step (784-512-512-10, batch 128, SGD); calls are timed on a model of one kernel
(relu of 64 numbers, one thread), so that what is seen is the call. ``load_first_call_ms`` counts from before ``tg.load``
to after the first step, checksums included; importing NumPy is not counted. ``rss_vs_torch`` is the peak resident memory
of a Python process that loads and trains the MLP over that of one that trains it in PyTorch; below 1 is less memory.
``any_batch_vs_static`` is the speed of an inference entry for up to 64 rows at 64 rows over that of the static entry;
``any_batch_ratios`` the same for other numbers of rows, each against an entry compiled for that number alone;
``any_batch_8_64_ratios`` with a second entry for up to 8 rows.
``needs`` are the libraries that the exported one is linked with.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, arguments, emit, machine

CALL_C = r"""
#include "one.h"
#include <stdio.h>
#include <time.h>
static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return 1e6 * (double)t.tv_sec + 1e-3 * (double)t.tv_nsec;
}
int main(void) {
  static float x[64], y[64];
  double best = 1e9;
  one_context *ctx = one_context_create(1);
  if (!ctx) return 1;
  for (int r = 0; r < 20; ++r) {
    double start = now();
    for (int i = 0; i < 10000; ++i)
      if (ENTRY) return 2;
    double took = (now() - start) / 10000;
    if (took < best) best = took;
  }
  printf("%.4f\n", best);
  return 0;
}
"""

CALL_PYTHON = """
import sys, time, statistics, numpy as np, tilegrad as tg
m = tg.load(sys.argv[1], num_threads=1)
(entry, ports), = list(m.entries.items())[:1]
names = [p.name for p in ports if p.role == "input"]
args = {names[0]: np.ones(64, "float32")}
prepared = m.context.prepare(entry, args)
def us(f, n=2000):
    times = []
    for _ in range(15):
        start = time.perf_counter()
        for _ in range(n): f()
        times.append((time.perf_counter() - start) / n * 1e6)
    return statistics.median(times)
print(us(lambda: m.run(entry, args)), us(prepared))
"""

ANY_BATCH = """
import statistics, sys, time, numpy as np, tilegrad as tg
n = tg.nn
net = n.Sequential(n.Linear(784, 512), n.ReLU(), n.Linear(512, 512), n.ReLU(), n.Linear(512, 10))
x = np.random.default_rng(0).standard_normal((64, 784), dtype=np.float32)
any_batch = tg.compile(net, [x], max_batch=[int(v) for v in sys.argv[1:]])
for rows in (64, 63, 37, 8, 1):
    static = tg.compile(net, [x[:rows]])
    calls = []
    for compiled, batch in ((static, None), (any_batch, rows)):
        arguments = compiled.bound("run", batch).arguments([x[:rows]])
        calls.append(compiled._context.prepare("run", arguments))
    times = [[], []]
    for _ in range(60):
        for call, all in zip(calls, times):
            start = time.perf_counter()
            for _ in range(10): call()
            all.append(time.perf_counter() - start)
    print(rows, statistics.median(times[0]) / statistics.median(times[1]))
"""

LOAD = """
import sys, time, resource, numpy as np
import tilegrad as tg, tilegrad.runtime.deploy
x, y = np.random.default_rng(0).standard_normal((128, 784), dtype=np.float32), np.arange(128) % 10
start = time.perf_counter()
m = tg.load(sys.argv[1])
m.step(x, y)
first = time.perf_counter() - start
for _ in range(100): m.step(x, y)
assert "tvm" not in sys.modules
print(1e3 * first, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""

TORCH = """
import resource, sys, torch
torch.set_num_threads(int(sys.argv[2]))
n = torch.nn
net = n.Sequential(n.Linear(784, 512), n.ReLU(), n.Linear(512, 512), n.ReLU(), n.Linear(512, 10))
opt = torch.optim.SGD(net.parameters(), lr=0.01)
x, y = torch.randn(128, 784), torch.arange(128) % 10
for _ in range(11):
    opt.zero_grad(); n.functional.cross_entropy(net(x), y).backward(); opt.step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def python(code: str, *args: object, threads: int = 1) -> list[float]:
    """The numbers that ``code`` prints in a fresh process."""
    import os

    env = {**os.environ, "PYTHONPATH": str(ROOT), "TILEGRAD_NUM_THREADS": str(threads)}
    command = [sys.executable, "-c", code, *map(str, args)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, cwd=ROOT)
    return [float(v) for v in done.stdout.split()]


def median(code: str, *args: object, threads: int, times: int) -> list[float]:
    """The element-wise median over fresh processes."""
    import statistics

    return [
        statistics.median(column) for column in zip(*(python(code, *args, threads=threads) for _ in range(times)), strict=True)
    ]


def any_batch_ratios(*most: int, threads: int) -> dict[str, float]:
    """Number of rows -> speed of an inference entry made for up to ``most`` rows over that of one made for the number alone."""
    found = python(ANY_BATCH, *most, threads=threads)
    return {str(int(rows)): round(ratio, 3) for rows, ratio in zip(found[::2], found[1::2], strict=True)}


def one_kernel(folder: Path) -> None:
    """Export relu of 64 numbers as ``one``."""
    code = (
        "import sys, numpy as np, tilegrad as tg\n"
        "f = tg.compile(lambda x: tg.relu(x), (np.ones(64, 'float32'),), logs=[], num_threads=1)\n"
        "f.export(sys.argv[1], prefix='one')"
    )
    python(code, folder)


def call_us_c(folder: Path) -> float:
    """Microseconds of one call from C, fastest of 20 series."""
    manifest = json.loads((folder / "manifest.json").read_text())
    entry = next(iter(manifest["entries"]))
    (folder / "call.c").write_text(CALL_C.replace("ENTRY", f"one_call_{entry}(ctx, x, y)"))
    subprocess.run(["cc", "-O2", "call.c", "-L.", "-lone", "-Wl,-rpath,.", "-o", "call"], cwd=folder, check=True)
    return float(subprocess.run(["./call"], cwd=folder, capture_output=True, text=True, check=True).stdout)


def needs(library: Path) -> list[str] | None:
    """Names of the shared libraries that ``library`` is linked with; None without readelf."""
    if shutil.which("readelf") is None:
        return None
    text = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    return sorted(line.split("[")[1].split("]")[0] for line in text.splitlines() if "(NEEDED)" in line)


def main() -> None:
    """Measure and print."""
    args = arguments(
        __doc__ or "", log={"default": None, "help": "tuning log for the MLP (default: yours, then the shipped ones)"}
    )
    times = 3 if args.quick else 15
    with tempfile.TemporaryDirectory() as temp:
        mlp, one = Path(temp) / "mlp", Path(temp) / "one"
        code = "import sys, json\nfrom benchmarks import train_step\ntrain_step.prepare('mlp', *json.loads(sys.argv[1]))"
        python(code, json.dumps([str(mlp), args.threads, [args.log] if args.log else None]), threads=args.threads)
        one_kernel(one)
        library = next(mlp.glob("*.so"))
        first_ms, rss = median(LOAD, mlp, threads=args.threads, times=times)
        run_us, prepared_us = python(CALL_PYTHON, one)
        any_batch, two_entries = (any_batch_ratios(*most, threads=args.threads) for most in ((64,), (8, 64)))
        summary: dict[str, Any] = {
            "mlp_lib_kb": round(library.stat().st_size / 1024, 1),
            "needs": needs(library),
            "load_first_call_ms": round(first_ms, 2),
            "call_us_c": round(call_us_c(one), 3),
            "call_us_python": round(run_us, 2),
            "call_us_python_prepared": round(prepared_us, 2),
            "any_batch_vs_static": any_batch.pop("64"),
            "any_batch_ratios": any_batch,
            "any_batch_8_64_ratios": two_entries,
            "one_kernel_lib_kb": round(next(one.glob("*.so")).stat().st_size / 1024, 1),
            "rss_mb": round(rss, 1),
        }
    try:
        (torch_rss,) = python(TORCH, "mlp", args.threads, threads=args.threads)
        summary |= {"torch_rss_mb": round(torch_rss, 1), "rss_vs_torch": round(rss / torch_rss, 3)}
    except subprocess.CalledProcessError:
        summary |= {"missing": {"torch": "PyTorch is not installed"}}
    for key in ("mlp_lib_kb", "load_first_call_ms", "call_us_c", "call_us_python", "any_batch_vs_static", "rss_vs_torch"):
        if key in summary:
            emit({"measure": key, "value": summary[key]}, args.json)
    emit({"summary": {"threads": args.threads, **summary, "machine": machine()}}, args.json)


if __name__ == "__main__":
    main()
