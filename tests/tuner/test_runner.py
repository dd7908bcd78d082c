"""The measuring process with real libraries that crash, hang or lie. Only orders of magnitude of time are looked at."""

import json
import shutil
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from tests.fakes import task
from tilegrad.runtime.manifest import ABI
from tilegrad.tuner.runner import LocalRunner, mode_of

SOURCE = Path(__file__).with_name("candidate.c")
PORTS = [
    {"name": "x0", "role": "input", "shape": [16], "dtype": "float32", "written": False},
    {"name": "x1", "role": "output", "shape": [16], "dtype": "float32", "written": True},
]
MANIFEST = {"abi": ABI, "prefix": "tg", "entries": {"run": {"ports": PORTS, "calls": ["kernel"]}}, "states": [], "families": {}}


@pytest.fixture(scope="module")
def candidates(tmp_path_factory):
    """A function from compiler definitions to the path of a candidate."""
    cc = shutil.which("cc") or shutil.which("gcc")
    if cc is None:
        pytest.skip("platform: no C compiler")
    folder = tmp_path_factory.mktemp("candidates")

    def make(*definitions):
        name = "_".join(definitions).replace("=", "") or "good"
        library = folder / f"{name}.so"
        if not library.exists():
            defines = [f"-D{d}" for d in definitions]
            subprocess.run([cc, "-O1", "-shared", "-fPIC", *defines, str(SOURCE), "-o", str(library)], check=True)
        path = folder / f"{name}.json"
        path.write_text(json.dumps({"library": str(library), "manifest": MANIFEST}))
        return str(path)

    return make


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    x = np.linspace(-1, 1, 16, dtype=np.float32)
    path = tmp_path_factory.mktemp("reference") / "reference.npz"
    np.savez(path, in0=x, out0=x.astype(np.float64) + 1.0)
    runner = LocalRunner(lambda task: path, timeout_s=2.0)
    yield runner
    runner.close()


def outcome(runner, path):
    (found,) = runner.measure(task(), [path], None, None)
    return found


def test_a_good_candidate_is_measured_several_times(runner, candidates):
    found = outcome(runner, candidates())
    assert found.status == "ok" and len(found.costs_s) >= 5 and all(0 < c < 1e-3 for c in found.costs_s)


@pytest.mark.parametrize(
    ("define", "status", "text"),
    [
        ("WRONG", "wrong_answer", "1 of 16 elements differ, by up to 0.5"),
        ("SEGFAULT", "crash", "SIGSEGV"),
        ("ILLEGAL", "crash", "SIGILL"),
        ("FAILS", "crash", "scripted failure"),
        ("HANG", "run_timeout", "no answer within 2 s"),
    ],
)
def test_a_bad_candidate_costs_one_trial_and_the_next_is_measured(runner, candidates, define, status, text):
    bad, good = runner.measure(task(), [candidates(define), candidates()], None, None)
    assert (bad.status, bad.costs_s) == (status, None) and text in bad.error
    assert good.status == "ok"


def test_a_missing_library_is_a_failure_of_its_own(runner, tmp_path):
    path = tmp_path / "gone.json"
    path.write_text(json.dumps({"library": str(tmp_path / "gone.so"), "manifest": MANIFEST}))
    assert outcome(runner, str(path)).status == "crash"


def test_what_is_clearly_slower_is_measured_briefly(runner, candidates):
    fast, slow = candidates(), candidates("SLOW=30")
    found = list(runner.measure(task(), [fast, slow], None, None))
    assert len(found[1].costs_s) == 2 and found[1].costs_s[0] > 0.03


def test_comparison_measures_all_in_turns(runner, candidates):
    fast, slow = runner.compare(task(), [candidates(), candidates("SLOW=1")])
    assert fast.status == slow.status == "ok" and len(fast.costs_s) == len(slow.costs_s) >= 5
    assert max(fast.costs_s) < min(slow.costs_s)
    crashed = runner.compare(task(), [candidates(), candidates("SEGFAULT")])
    assert [o.status for o in crashed] == ["crash", "crash"]
    assert outcome(runner, candidates()).status == "ok"


def test_the_reference_kernel_is_timed_before_every_fourth(runner, candidates):
    good = candidates()
    found = list(runner.measure(task(), [candidates("N=8")] * 0 + [candidates("SLOW=1")] * 5, good, None))
    assert [o.reference_s is not None for o in found] == [True, False, False, False, True]
    assert all(o.reference_s is None or o.reference_s < 1e-3 for o in found)


def test_the_process_has_no_tvm_and_ends_with_close(runner, candidates):
    outcome(runner, candidates())
    popen = runner._process.popen
    maps = Path(f"/proc/{popen.pid}/maps").read_text()
    assert "libtvm" not in maps and "torch" not in maps
    start = time.monotonic()
    runner.close()
    runner.close()
    assert popen.returncode is not None and time.monotonic() - start < 2
    assert outcome(runner, candidates()).status == "ok", "a closed runner starts again when asked"


def test_memory_bound_kernels_are_measured_cold():
    from dataclasses import replace

    t = task()
    assert mode_of(t) == "hot"
    assert mode_of(replace(t, workload=replace(t.workload, bytes=1 << 26, flops=1 << 20))) == "cold"
    assert mode_of(replace(t, workload=replace(t.workload, bytes=1 << 26, flops=1 << 34))) == "hot"


def test_the_peak_of_a_core_and_the_roofline(runner, tmp_path):
    from dataclasses import replace

    from tilegrad._base.target import Target
    from tilegrad.tuner.peak import least_seconds

    peak = runner.peak(Target.native(), tmp_path)
    assert peak is not None and 1e9 < peak < 1e12
    t = task(flops=10**9)
    assert least_seconds(t, 1e10) == pytest.approx(0.05), "two threads"
    wide = replace(t, workload=replace(t.workload, fields={"dtypes": ["f64", "f64", "f64"]}))
    assert least_seconds(wide, 1e10) == pytest.approx(0.1)
    assert least_seconds(t, None) is None and least_seconds(task(flops=0), 1e10) is None


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "bool", "float16"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 5)])
def test_results_are_spoilt_before_a_run_and_arrays_are_aligned(shape, dtype):
    from tilegrad.runtime.arrays import LINE, aligned
    from tilegrad.tuner._run_worker import spoil

    x = aligned(np.ones(shape, dtype))
    assert x.shape == shape and x.ctypes.data % LINE == 0 and (x == 1).all()
    spoil(x)
    assert np.isnan(x).all() if "float" in dtype else (x == (-1 if dtype == "int64" else True)).all()
