"""PyTorch's own operator samples (``op_db``) through the importer: forward and gradient against PyTorch.

    python -m benchmarks.torch_conformance --json [--quick] [--samples N] [--only NAME ...] [--part I/N]
                                         [--processes N]
    python -m benchmarks.torch_conformance --merge FILE ...

Every operator but random, FFT, linear-algebra, sparse, complex and ``special.`` ones. An operator is *claimed* when at
least one of its samples imports. A sample of a claimed operator passes when its values and its gradients (where PyTorch
has them) agree; it is *refused* when we raise, and *wrong* when we return something else without a word. Where PyTorch's
own gradient is not the derivative and ours is, by a central difference in float64, the sample passes; so does one that draws
random numbers.
``--quick``: one sample, float32. Otherwise ``--samples`` (default 8) in float32 and as many in float64.
``--merge`` adds up the rows of several runs (``--json``): the last row of an operator counts.
The extra ``torch`` and the package expecttest must be installed.
"""

from __future__ import annotations

import argparse
import json
import queue
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT

LEFT_OUT = (
    r"fft\.|linalg\.|special\.|sparse|to_sparse|masked\.sparse|stft|istft"  # transforms, linear algebra, sparse
    r"|cholesky|lu$|lu_|geqrf|ormqr|qr$|svd|pinverse|triangular_solve|logdet|matrix_exp|pca_lowrank|norm\.nuc"
    r"|view_as_real|view_as_complex|complex|polar|imag|resolve_conj|resolve_neg|cdouble|cfloat|chalf|.*\.complex$"
    r"|cauchy|exponential|geometric|log_normal|normal|uniform|bernoulli|multinomial|rand|.*dropout|.*rrelu|.*fractional_max_pool"
    r"|jiterator"  # CUDA only
)
UNDEFINED = re.compile(r"(new_)?empty")
"""Operators whose values are whatever the memory holds: shapes and dtypes count."""

TOLERANCE = {"float32": (2e-4, 2e-5), "float64": (1e-7, 1e-9), "float16": (2e-2, 1e-3), "bfloat16": (5e-2, 1e-2)}
"""Relative and absolute, of values; gradients may differ ten times as much."""

SECONDS_PER_OPERATOR = 240


def main() -> None:
    """Parse arguments; print one row per operator and a summary."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--json", action="store_true", help="one JSON object a line")
    p.add_argument("--quick", action="store_true", help="one sample an operator, float32")
    p.add_argument("--samples", type=int, default=8)
    p.add_argument("--only", nargs="*", help="names of operators")
    p.add_argument("--part", metavar="I/N", help="every N-th operator, from the I-th (counted from 0)")
    p.add_argument("--processes", type=int, default=2)
    p.add_argument("--merge", nargs="+", metavar="FILE", help="no run: the summary of the rows in these files")
    p.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.merge:
        print(json.dumps({"summary": summary(merged(a.merge))}))
        return
    if a.worker:
        from benchmarks._conformance_worker import serve

        serve(1 if a.quick else a.samples, ["float32"] if a.quick else ["float32", "float64"], TOLERANCE)
        return
    known = operators()
    names = [n for n in a.only if n in known] if a.only else known
    if a.part:
        first, every = (int(v) for v in a.part.split("/"))
        names = names[first::every]
    rows = Pool(a).run(names, lambda row: print(json.dumps(row) if a.json else _line(row), flush=True))
    print(json.dumps({"summary": summary(rows)}))


def operators() -> list[str]:
    """Names in op_db (variant after a dot) that count."""
    from torch.testing._internal.common_methods_invocations import op_db

    names = [f"{o.name}.{o.variant_test_name}" if o.variant_test_name else o.name for o in op_db]
    return [n for n in dict.fromkeys(names) if not re.match(f"(nn\\.functional\\.|torch\\.)?({LEFT_OUT})", n)]


def merged(files: Sequence[str]) -> list[dict[str, Any]]:
    """The rows of several runs, the last one of every operator."""
    lines = [json.loads(line) for f in files for line in Path(f).read_text().splitlines() if line.startswith("{")]
    return list({row["operator"]: row for row in lines if "operator" in row}.values())


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of the issue."""
    claimed = [r for r in rows if r["claimed"]]
    passed, tried = (sum(r[k] for r in claimed) for k in ("passed", "samples"))
    return {
        "operators_in_op_db": len(rows),
        "operators_claimed": len(claimed),
        "operators_claimed_fraction": round(len(claimed) / max(len(rows), 1), 4),
        "samples": tried,
        "samples_passed_fraction": round(passed / max(tried, 1), 4),
        "silently_wrong": sum(r["wrong"] for r in rows),
        "silently_wrong_operators": [r["operator"] for r in rows if r["wrong"]],
        "crashed": [r["operator"] for r in rows if r.get("crashed")],
    }


def _line(row: dict[str, Any]) -> str:
    state = (
        "ok"
        if row["claimed"] and row["passed"] == row["samples"]
        else "WRONG"
        if row["wrong"]
        else "part"
        if row["claimed"]
        else "no"
    )
    return f"{state:6}{row['operator']:50}{row['passed']}/{row['samples']}  {row['notes'][0] if row['notes'] else ''}"


class Pool:
    """Worker processes that take one operator at a time; one that dies or hangs costs its operator and is replaced."""

    def __init__(self, a: argparse.Namespace) -> None:
        self._command = [
            sys.executable,
            "-W",
            "ignore",
            "-m",
            "benchmarks.torch_conformance",
            "--worker",
            "--samples",
            str(a.samples),
        ]
        self._command += ["--quick"] if a.quick else []
        self._processes = a.processes

    def run(self, names: list[str], show: Callable[[dict[str, Any]], None]) -> list[dict[str, Any]]:
        """One row a name, shown as it comes."""
        todo: queue.Queue[str] = queue.Queue()
        for n in names:
            todo.put(n)
        rows: list[dict[str, Any]] = []
        threads = [threading.Thread(target=self._serve, args=(todo, rows, show)) for _ in range(self._processes)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        return rows

    def _serve(self, todo: queue.Queue[str], rows: list[dict[str, Any]], show: Callable[[dict[str, Any]], None]) -> None:
        worker: subprocess.Popen[str] | None = None
        while True:
            try:
                name = todo.get_nowait()
            except queue.Empty:
                break
            if worker is None:
                worker = subprocess.Popen(
                    self._command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
                )
            row = self._ask(worker, name)
            if row is None:
                row = {"operator": name, "claimed": True, "samples": 1, "passed": 0, "wrong": 0, "refused": 0, "crashed": True,
                       "notes": [f"the process ended with {worker.poll()} or took too long"]}  # fmt: skip
                worker.kill()
                worker.wait()
                worker = None
            rows.append(row)
            show(row)
        if worker is not None:
            assert worker.stdin is not None
            worker.stdin.close()
            worker.wait()

    def _ask(self, worker: subprocess.Popen[str], name: str) -> dict[str, Any] | None:
        assert worker.stdin is not None and worker.stdout is not None
        done = threading.Event()
        threading.Thread(target=_kill_after, args=(worker, done), daemon=True).start()
        try:
            worker.stdin.write(name + "\n")
            worker.stdin.flush()
            for line in worker.stdout:
                if line.startswith("{"):
                    return json.loads(line)
            return None
        except BrokenPipeError:
            return None
        finally:
            done.set()


def _kill_after(worker: subprocess.Popen[str], done: threading.Event) -> None:
    """End a worker that takes too long. Seconds are counted one by one, so that time in which everything is suspended is none."""
    for _ in range(SECONDS_PER_OPERATOR):
        if done.wait(1):
            return
    worker.kill()


if __name__ == "__main__":
    main()
