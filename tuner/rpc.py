"""RpcRunner: measures on devices that TVM's RPC tracker knows, several at a time, with the library that ships.

A shim (``rpc_shim.c``), compiled for the devices' architecture, is uploaded once a session; it opens each uploaded candidate
and runs it through its own C interface. A device that dies leaves the tracker by itself; its trial is tried once more elsewhere.
"""

from __future__ import annotations

import gc
import json
import logging
import socket
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilegrad._base.errors import TuningError, UsageError
from tilegrad._base.target import Target
from tilegrad.runtime.manifest import ports_of
from tilegrad.runtime.program import numpy_dtype
from tilegrad.tuner import timing
from tilegrad.tuner.check import difference
from tilegrad.tuner.interfaces import Outcome
from tilegrad.tuner.runner import mode_of
from tilegrad.tuner.task import Task

log = logging.getLogger(__name__)

REQUEST_S = 20.0
"""Seconds to wait for a device of the tracker."""
SETTLE_S = 1.0
"""Seconds that the tracker needs to notice that a device is gone."""
HELP = "Start a tracker and servers as docs/device-farm.md shows."
ENTRY = "tilegrad_time"


def parse_address(text: str) -> tuple[str, int]:
    """``HOST:PORT``. Raises UsageError."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise UsageError("--rpc", repr(text), "HOST:PORT of an RPC tracker", "Start one with `python -m tvm.exec.rpc_tracker`.")
    return host, int(port)


class DeviceLost(Exception):
    """The session ended before it answered: the device died, or the candidate took the server's process with it."""


class Session:
    """One device for a while: the shim loaded there, and the arrays of the task at hand."""

    def __init__(self, remote: Any, shim: Path) -> None:
        self._remote, self._device = remote, remote.cpu(0)
        remote.upload(str(shim))
        self._function = remote.load_module(shim.name)[ENTRY]
        self._workpath = remote.get_function("tvm.rpc.server.workpath")
        self._task: str | None = None
        self._inputs: list[Any] = []
        self._expected: list[np.ndarray] = []

    def _tensor(self, x: np.ndarray) -> Any:
        from tilegrad._base.tvm import tvm

        return tvm.runtime.tensor(np.ascontiguousarray(x), self._device)

    def prepare(self, task: Task, reference: Path) -> None:
        """Send the inputs of a task, once."""
        if self._task == task.key:
            return
        with np.load(reference) as file:
            self._inputs = [self._tensor(file[f"in{i}"]) for i in range(sum(n.startswith("in") for n in file.files))]
            self._expected = [file[f"out{i}"] for i in range(sum(n.startswith("out") for n in file.files))]
        self._task = task.key

    def open(self, path: str, task: Task, label: str) -> Candidate:
        """Upload a candidate under a name of its own and give it arrays for its results."""
        described = json.loads(Path(path).read_text())
        name = f"{label}.so"
        self._remote.upload(described["library"], name)
        where = np.frombuffer(str(self._workpath(name)).encode() + b"\0", np.uint8)
        ports = ports_of(described["manifest"])["run"][len(self._inputs) :]
        outputs = [self._tensor(np.zeros(p.shape, numpy_dtype(p.dtype))) for p in ports]
        flush = 0 if mode_of(task) == "hot" else 2 * task.target.l3_bytes
        call = Call(self._function, self._tensor, self._tensor(where), [*self._inputs, *outputs], task.target.threads, flush)
        return Candidate(call, outputs, [p.dtype for p in ports], self._expected)

    def close(self) -> None:
        """Give the device back: every remote object must be gone."""
        self._inputs, self._function, self._workpath, self._remote, self._device = [], None, None, None, None
        gc.collect()


class Call:
    """``tilegrad_time`` on one candidate's arrays."""

    def __init__(
        self, function: Any, tensor: Callable[[np.ndarray], Any], where: Any, ports: list[Any], threads: int, flush: int
    ):
        self._function, self._tensor, self._where, self._ports = function, tensor, where, ports
        self._threads, self._flush = threads, flush

    def __call__(self, number: int, repeat: int) -> list[float]:
        """Seconds per run of ``repeat`` repeats."""
        numbers = self._tensor(np.array([self._threads, number, repeat, self._flush, len(self._ports)], np.int64))
        seconds = self._tensor(np.zeros(repeat))
        self._function(self._where, numbers, seconds, *self._ports)
        return [float(x) for x in seconds.numpy()]


class Candidate:
    """An uploaded library."""

    def __init__(self, call: Call, outputs: list[Any], dtypes: list[str], expected: list[np.ndarray]) -> None:
        self._call, self._outputs, self._dtypes, self._expected = call, outputs, dtypes, expected

    def wrong(self) -> str | None:
        """What is wrong with the results of the last run, if anything."""
        for i, (x, y, dtype) in enumerate(zip(self._outputs, self._expected, self._dtypes, strict=True)):
            text = difference(x.numpy(), y, dtype)
            if text:
                return f"output {i}: {text}"
        return None

    def timer(self, number: int) -> float:
        """Seconds of one of ``number`` runs in a row."""
        return self._call(number, 1)[0]


@dataclass
class _Job:
    index: int
    path: str
    lost: int = 0


class _Work:
    """The trials of a batch, handed out to devices; one whose device is lost is handed out once more."""

    def __init__(self, paths: list[str]) -> None:
        self._count = len(paths)
        self._waiting = deque(_Job(i, p) for i, p in enumerate(paths))
        self.answers: dict[int, Outcome] = {}

    @property
    def finished(self) -> bool:
        return len(self.answers) == self._count

    def take(self) -> _Job | None:
        try:
            return self._waiting.popleft()
        except IndexError:
            return None

    def give_back(self, job: _Job, error: str) -> None:
        job.lost += 1
        if job.lost < 2:
            self._waiting.append(job)
        else:
            self.answers[job.index] = Outcome("run_timeout" if "timeout" in error.lower() else "crash", None, error)


class RpcRunner:
    """Measures on ``devices`` (default: as many as the tracker has under ``key``) of one kind.

    ``reference`` gives the NPZ of inputs and expected results of a task; ``timeout_s`` bounds a session's one candidate.
    Raises TuningError when the tracker cannot be reached or has no device of this key.
    """

    def __init__(
        self, address: str, key: str, target: Target, reference: Callable[[Task], Path], timeout_s: float = 30.0
    ) -> None:
        self._key, self._reference, self._timeout_s = key, reference, timeout_s
        self._address = parse_address(address)
        self._folder = tempfile.TemporaryDirectory(prefix="tilegrad-rpc-")
        found = self._registered()
        if not found:
            raise TuningError(f"RPC tracker {address}", f"no device with key {key!r}", "a registered key", HELP)
        self._shim = compile_shim(target, Path(self._folder.name))
        self._sessions: list[Session | None] = [None] * found
        self._label = 0
        self._lock = threading.Lock()

    def _tracker(self) -> Any:
        """A connection of its own for each use: TVM's client serves one thread and one request at a time."""
        from tvm import rpc

        from tilegrad._base.tvm import tvm  # noqa: F401  (hides torch before tvm.rpc is imported)

        host, port = self._address
        try:
            socket.create_connection(self._address, REQUEST_S).close()
            tracker = rpc.connect_tracker(host, port)
            tracker._sock.settimeout(REQUEST_S)
        except (OSError, RuntimeError) as e:
            raise TuningError(f"RPC tracker {host}:{port}", str(e).splitlines()[0], "a tracker that answers", HELP) from e
        return tracker

    def _registered(self) -> int:
        """How many devices the tracker has under the key now."""
        tracker = self._tracker()
        try:
            return devices(tracker.summary(), self._key)
        finally:
            tracker.close()

    def measure(self, task: Task, paths: Sequence[str], reference: str | None, best_s: float | None) -> Iterator[Outcome]:
        """Measure on all devices at the same time; outcomes come in the order of ``paths``.

        Raises TuningError when no device is left.
        """
        work = _Work(list(paths))
        expected = self._reference(task)
        threads = [
            threading.Thread(target=self._serve, args=(slot, work, task, expected, best_s), daemon=True)
            for slot in range(min(len(self._sessions), len(paths)))
        ]
        for t in threads:
            t.start()
        for i in range(len(paths)):
            while i not in work.answers:
                if not any(t.is_alive() for t in threads) and i not in work.answers:
                    raise TuningError("RPC", f"no device with key {self._key!r} is left", "at least one", HELP)
                time.sleep(0.01)
            yield work.answers[i]

    def _serve(self, slot: int, work: _Work, task: Task, reference: Path, best_s: float | None) -> None:
        """One device's part of a batch. Ends when all is answered, or when there is no device for this slot any more."""
        while not work.finished:
            job = work.take()
            if job is None:
                time.sleep(0.02)  # another slot may yet give its trial back
                continue
            try:
                work.answers[job.index] = self._once(slot, task, job.path, reference, best_s)
            except DeviceLost as e:
                self._drop(slot)
                work.give_back(job, str(e))
                time.sleep(SETTLE_S)
                if self._registered() < sum(s is not None for s in self._sessions) + 1:
                    log.warning("a device of key %r is gone: %s", self._key, e)
                    return

    def _once(self, slot: int, task: Task, path: str, reference: Path, best_s: float | None) -> Outcome:
        try:
            session = self._session(slot)
            session.prepare(task, reference)
            candidate = session.open(path, task, self._name())
            candidate.timer(1)
            wrong = candidate.wrong()
            if wrong:
                return Outcome("wrong_answer", None, wrong)
            return Outcome("ok", tuple(timing.measure(candidate.timer, best_s, mode_of(task) == "hot")))
        except TuningError:
            raise
        except Exception as e:  # whatever a broken connection raises
            text = str(e).strip().splitlines()[-1] if str(e).strip() else type(e).__name__
            raise DeviceLost(text) from e

    def compare(self, task: Task, paths: Sequence[str], seconds: float | None = None) -> list[Outcome]:
        """Time all in turns on one device."""
        try:
            session = self._session(0)
            session.prepare(task, self._reference(task))
            timers = [session.open(p, task, self._name()).timer for p in paths]
            return [Outcome("ok", tuple(c)) for c in timing.compare(timers, mode_of(task) == "hot", seconds)]
        except Exception as e:
            self._drop(0)
            return [Outcome("crash", None, str(e)[-300:])] * len(paths)

    def _session(self, slot: int) -> Session:
        session = self._sessions[slot]
        if session is None:
            tracker = self._tracker()
            try:
                remote = tracker.request(self._key, session_timeout=int(max(1, 4 * self._timeout_s)), max_retry=1)
            finally:
                tracker.close()
            session = self._sessions[slot] = Session(remote, self._shim)
        return session

    def _drop(self, slot: int) -> None:
        session, self._sessions[slot] = self._sessions[slot], None
        if session is not None:
            session.close()

    def _name(self) -> str:
        with self._lock:
            self._label += 1
            return f"candidate{self._label}"

    def close(self) -> None:
        """Give all devices back; one that does not answer is left to the tracker's time-out."""

        def drop() -> None:
            for slot in range(len(self._sessions)):
                self._drop(slot)

        thread = threading.Thread(target=drop, daemon=True)
        thread.start()
        thread.join(1.0)
        self._folder.cleanup()


def devices(summary: Any, key: str) -> int:
    """How many servers of a key the tracker's summary lists."""
    return sum(str(s.get("key", "")).removeprefix("server:") == key for s in summary.get("server_info", []))


def compile_shim(target: Target, folder: Path) -> Path:
    """The shim for ``target``'s architecture. Raises LibraryError where there is no compiler for it."""
    from tilegrad.runtime import toolchain

    path = folder / "tilegrad_shim.so"
    compiler = toolchain.find(target)
    compiler.compile(Path(__file__).with_name("rpc_shim.c"), folder / "shim.o", ["-Wno-unused-result"])
    compiler.link_shared([folder / "shim.o"], path, [f"__tvm_ffi_{ENTRY}"], ["-ldl"])
    return path
