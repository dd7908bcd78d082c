"""A device farm on loopback: one tracker, two servers. Slow to start (TVM's servers), hence long."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.tuner import tunable
from tilegrad import tuner
from tilegrad._base.errors import TuningError, UsageError
from tilegrad.tuner.rpc import devices, parse_address

# TVM's client leaves its sockets to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")

ROOT = Path(__file__).parents[2]
# TVM imports torch where it is installed; the project's way of importing it does not.
LAUNCH = "import tilegrad._base.tvm, runpy, sys; sys.argv = sys.argv[1:]; runpy.run_module(sys.argv[0], run_name='__main__')"


def test_addresses():
    assert parse_address("board:9190") == ("board", 9190)
    for bad in ("board", "board:", ":9190", "board:x"):
        with pytest.raises(UsageError, match="HOST:PORT"):
            parse_address(bad)


def test_servers_of_a_key_are_counted():
    summary = {"server_info": [{"key": "server:pi"}, {"key": "server:pi"}, {"key": "server:pie"}]}
    assert (devices(summary, "pi"), devices(summary, "x"), devices({}, "pi")) == (2, 0, 0)


def test_no_tracker_is_a_typed_error(tmp_path):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    with pytest.raises(TuningError, match="docs/device-farm.md"):
        tuner.tune(tunable.small, trials=2, log=tmp_path / "l.jsonl", rpc=f"127.0.0.1:{port}", key="x", jobs=1)


def test_rpc_needs_a_key(tmp_path):
    with pytest.raises(UsageError, match="both, or neither"):
        tuner.tune(tunable.small, log=tmp_path / "l.jsonl", rpc="127.0.0.1:1")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.fixture(scope="module")
def farm():
    """(tracker port, server processes)"""
    pytest.importorskip("tornado", reason="TVM's tracker needs tornado")
    started = []

    def start(module, *args):
        env = os.environ | {"PYTHONPATH": str(ROOT), "TVM_NUM_THREADS": "2"}
        process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, module, *args],
            env=env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        started.append(process)
        return process

    tracker = free_port()
    start("tvm.exec.rpc_tracker", "--host", "127.0.0.1", "--port", str(tracker), "--port-end", str(tracker + 1))
    wait(lambda: socket.create_connection(("127.0.0.1", tracker), 1).close())
    servers = []
    for _ in range(2):
        port = free_port()
        address = ("--host", "127.0.0.1", "--port", str(port), "--port-end", str(port + 9))
        servers.append(start("tvm.exec.rpc_server", *address, "--tracker", f"127.0.0.1:{tracker}", "--key", "loop"))

    def registered():
        from tvm import rpc

        assert devices(rpc.connect_tracker("127.0.0.1", tracker).summary(), "loop") == 2

    wait(registered)
    yield tracker, servers
    for process in started:
        kill(process)


def wait(condition, seconds=90):
    deadline = time.monotonic() + seconds
    while True:
        try:
            return condition()
        except (OSError, AssertionError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.3)


def kill(process):
    """The launcher and the processes it leaves behind."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


@pytest.mark.long
@pytest.mark.timeout(240)
def test_two_devices_then_one_dies(farm, tmp_path):
    tracker, servers = farm
    address = f"127.0.0.1:{tracker}"
    report = tuner.tune(tunable.small, trials=6, log=tmp_path / "log.jsonl", rpc=address, key="loop", jobs=1)
    assert report.trials == 6 and report.errors == 0 and report.tasks[0].row.best_s < 1e-2
    with pytest.raises(TuningError, match="no device with key 'other'"):
        tuner.tune(tunable.small, trials=7, log=tmp_path / "log.jsonl", rpc=address, key="other", jobs=1)
    events = []

    def listen(event):
        events.append(event)
        if event.kind == "trial" and len(events) == 2:
            kill(servers[0])

    report = tuner.tune(
        tunable.model(1000), trials=12, log=tmp_path / "two.jsonl", rpc=address, key="loop", jobs=1, progress=listen
    )
    assert report.trials == 12 and report.errors == 0, "trials of the device that died were made on the other"
