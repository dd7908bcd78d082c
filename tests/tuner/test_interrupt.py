"""Real processes and real signals: what is left after SIGINT and SIGKILL."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tilegrad.tuning_logs import read

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("tunable.py")


def start(log, *command):
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    args = command or (sys.executable, str(SCRIPT), str(log))
    process = subprocess.Popen(args, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 100
    try:
        while not (log.exists() and log.read_text().count("\n") >= 2):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
    except BaseException:
        process.kill()
        process.communicate()
        raise
    return process


def children(pid):
    return [int(p) for p in subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True).stdout.split()]


def gone(pids):
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        left = [p for p in pids if Path(f"/proc/{p}").exists() and "Z" not in Path(f"/proc/{p}/stat").read_text().split()[2]]
        if not left:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_a_polite_signal_saves_ends_soon_and_leaves_nobody(tmp_path, number):
    log = tmp_path / "log.jsonl"
    command = (sys.executable, "-m", "tilegrad", "tune", f"{SCRIPT}:large", "-o", str(log), "--effort", "full")
    process = start(log, *command)
    workers = children(process.pid)
    assert len(workers) >= 2
    begin = time.monotonic()
    process.send_signal(number)
    _, err = process.communicate(timeout=20)
    assert time.monotonic() - begin < 4, "the promise is two seconds; this machine may be busy"
    assert process.returncode == 130 and "go on with: tilegrad tune" in err
    assert gone(workers)
    contents = read(log)
    assert contents.skipped == 0 and contents.lines[-1].done is None, "the best so far is recorded as not finished"


@pytest.mark.long
def test_sigkill_keeps_every_finished_trial_and_leaves_nobody(tmp_path):
    log = tmp_path / "log.jsonl"
    process = start(log)
    workers = children(process.pid)
    process.kill()
    process.communicate()
    assert gone(workers)
    contents = read(log)
    assert len(contents.lines) >= 2 and contents.skipped <= 1
