"""Worker processes that answer JSON lines: the worker's loop, and the parent's handle with deadlines. Nothing but Python."""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

_PR_SET_PDEATHSIG = 1


def serve(commands: Mapping[str, Callable[..., dict[str, Any]]]) -> None:
    """Answer requests ``{"do": name, ...arguments}`` until stdin ends. An exception is an answer, not the end."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with suppress(OSError, AttributeError):  # Linux: never outlive the parent, even while inside a kernel that hangs
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers.write('{"ready":true}\n')
    answers.flush()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = commands[request.pop("do")](**request)
        except MemoryError:
            answer = {"status": "crash", "error": "out of memory"}
        except Exception as e:
            answer = {"status": "error", "error": f"{type(e).__name__}: {e}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


class WorkerDied(Exception):
    """The worker ended before it answered; the text says how."""


class WorkerTimeout(Exception):
    """The worker did not answer in time. It has been killed."""


class Process:
    """A worker's handle. Starts at construction, becomes ready in its own time; ``kill`` ends it and its children."""

    def __init__(self, module: str, environment: Mapping[str, str] | None = None, startup_s: float = 120.0) -> None:
        self._startup_s = startup_s
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), **(environment or {})}
        self._err = tempfile.TemporaryFile()  # a pipe that nobody reads would stop a talkative worker
        self.popen = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._err,
            env=env,
            start_new_session=True,
        )
        assert self.popen.stdin and self.popen.stdout
        self._in, self._out = self.popen.stdin, self.popen.stdout
        self._buffer = b""
        self._ready = False

    def send(self, do: str, **arguments: Any) -> None:
        """Send a request; ``receive`` gets its answer. A dead worker is noticed there."""
        with suppress(BrokenPipeError):
            self._in.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
            self._in.flush()

    def receive(self, timeout_s: float) -> dict[str, Any]:
        """The next answer. Raises WorkerTimeout (the worker is killed) or WorkerDied."""
        if not self._ready:
            self._line(self._startup_s)
            self._ready = True
        return dict(json.loads(self._line(timeout_s)))

    def ask(self, do: str, timeout_s: float, **arguments: Any) -> dict[str, Any]:
        """``send`` and ``receive``."""
        self.send(do, **arguments)
        return self.receive(timeout_s)

    def _line(self, timeout_s: float) -> bytes:
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self._out], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                self.kill()
                raise WorkerTimeout(f"no answer within {timeout_s:.0f} s")
            data = os.read(self._out.fileno(), 1 << 16)
            if not data:
                raise WorkerDied(self._epitaph())
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _epitaph(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self.popen.wait(1.0)  # its output ended: the exit code is about to come
        self._err.seek(max(0, self._err.seek(0, os.SEEK_END) - 4000))
        noise = self._err.read()
        self.kill()
        code = self.popen.returncode
        how = f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
        last = noise.decode(errors="replace").strip().splitlines()[-1:]
        return how + (f" ({last[0][:200]})" if last else "")

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self.popen.poll() is None

    def kill(self) -> None:
        """End the process group at once and wait for it. Twice is fine."""
        if self.popen.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.popen.pid, signal.SIGKILL)
            self.popen.wait()
        for stream in (self._in, self._out, self._err):
            with suppress(OSError):
                stream.close()
