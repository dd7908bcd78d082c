"""LocalBuilder: compiles candidates in worker processes, with a time limit, into a folder of its own."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import selectors
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tilegrad._base import settings
from tilegrad.tuner._pipe import Process, WorkerDied, WorkerTimeout
from tilegrad.tuner.interfaces import Built
from tilegrad.tuner.task import Task
from tilegrad.tuning_logs import Status, canonical

RECYCLE = 400
"""Builds after which a worker is replaced: compilers leak."""
REFERENCE_TIMEOUT_S = 120.0
PREFIX = "tilegrad-tune-"


def remove_orphans() -> None:
    """Delete the folders of sessions that were killed: their names tell the process, which is no more."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*-*"):
        pid = folder.name.removeprefix(PREFIX).split("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists() and Path("/proc/self").exists():
            shutil.rmtree(folder, ignore_errors=True)


def candidate_path(folder: Path, task: Task, config: Mapping[str, Any]) -> Path:
    """Where the builder puts what a config of a task became."""
    return folder / f"candidate-{_digest(task, canonical(config))}.json"


def reference_path(folder: Path, task: Task) -> Path:
    """Where the builder puts a task's inputs and reference results."""
    return folder / f"reference-{_digest(task, '')}.npz"


def _digest(task: Task, text: str) -> str:
    parts = (task.key, canonical(dataclasses.asdict(task.target)), text)
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=12).hexdigest()


class LocalBuilder:
    """``jobs`` worker processes (default: the usable cores), each compiling one candidate at a time.

    They start at construction, so that their imports overlap with the caller's. Candidates live in a temporary
    folder (also their compiler cache) that ``close`` deletes, or in ``folder``, which stays; the user's cache keeps
    only what is compiled for use.
    """

    def __init__(self, jobs: int | None = None, timeout_s: float = 30.0, folder: Path | None = None) -> None:
        self._jobs, self._timeout_s = jobs or settings.usable_cores(), timeout_s
        remove_orphans()
        self._kept = folder is not None
        self.folder = folder or Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
        self._workers: list[_Worker | None] = [self._start() for _ in range(self._jobs)]
        self._references: set[Path] = set()

    def _start(self) -> _Worker:
        env = {"TILEGRAD_CACHE_DIR": str(self.folder / "cache"), "TVM_NUM_THREADS": str(self._jobs), "OMP_NUM_THREADS": "1"}
        return _Worker(Process("tilegrad.tuner._build_worker", env))

    def build(self, task: Task, configs: Sequence[Mapping[str, Any]]) -> list[Built]:
        """Compile configs in parallel; each failure is the answer of its own config."""
        answers: list[Built | None] = [None] * len(configs)
        waiting = deque(enumerate(configs))
        running: dict[int, tuple[int, float]] = {}
        while waiting or running:
            for slot in range(self._jobs):
                if waiting and slot not in running:
                    i, config = waiting.popleft()
                    answers[i] = self._send(slot, task, config)
                    running[slot] = (i, time.monotonic() + self._timeout_s + self._grace(slot))
            for slot in self._ready(running):
                i, _ = running.pop(slot)
                answers[i] = self._answer(slot, answers[i])
        return [a if a is not None else Built(None, "compile_error", "no answer") for a in answers]

    def _grace(self, slot: int) -> float:
        """Time for a worker that is still starting."""
        worker = self._workers[slot]
        return 120.0 if worker is not None and worker.built <= 1 else 0.0

    def _send(self, slot: int, task: Task, config: Mapping[str, Any]) -> Built:
        worker = self._workers[slot]
        if worker is None or not worker.process.alive or worker.built >= RECYCLE:
            if worker is not None:
                worker.process.kill()
            worker = self._workers[slot] = self._start()
        path = candidate_path(self.folder, task, config)
        target = dataclasses.asdict(task.target)
        worker.process.send("build", **worker.about(task), target=target, config=dict(config), path=str(path))
        worker.built += 1
        return Built(str(path))

    def _ready(self, running: Mapping[int, tuple[int, float]]) -> list[int]:
        """Slots whose worker has answered, died or run out of time."""
        with selectors.DefaultSelector() as selector:
            for slot in running:
                selector.register(self._process(slot).popen.stdout, selectors.EVENT_READ, slot)  # type: ignore[arg-type]
            left = min(deadline for _, deadline in running.values()) - time.monotonic()
            found = [key.data for key, _ in selector.select(max(0.0, left))]
        now = time.monotonic()
        return found or [slot for slot, (_, deadline) in running.items() if deadline <= now]

    def _answer(self, slot: int, sent: Built | None) -> Built:
        try:
            answer = self._process(slot).receive(self._timeout_s)
        except WorkerTimeout as e:
            return Built(None, "compile_timeout", str(e))
        except WorkerDied as e:
            return Built(None, "compile_error", f"the compiler died: {e}")
        if answer["status"] == "ok" and sent is not None:
            return sent
        status: Status = "invalid_config" if answer["status"] == "invalid_config" else "compile_error"
        return Built(None, status, answer.get("error", ""))

    def _process(self, slot: int) -> Process:
        worker = self._workers[slot]
        assert worker is not None
        return worker.process

    def reference(self, task: Task) -> Path:
        """The NPZ of inputs and reference results of a task, computed once. Raises WorkerDied or WorkerTimeout."""
        path = reference_path(self.folder, task)
        if path not in self._references:
            worker = self._workers[0]
            if worker is None or not worker.process.alive:
                worker = self._workers[0] = self._start()
            answer = worker.process.ask("reference", REFERENCE_TIMEOUT_S, **worker.about(task), path=str(path))
            if answer["status"] != "ok":
                raise WorkerDied(answer.get("error", ""))
            self._references.add(path)
        return path

    def close(self) -> None:
        """Kill the workers and delete the candidates, unless their folder was given. Twice is fine."""
        for worker in self._workers:
            if worker is not None:
                worker.process.kill()
        if not self._kept:
            shutil.rmtree(self.folder, ignore_errors=True)


class _Worker:
    """A worker process and what it has been told."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.built = 0
        self._known: set[str] = set()

    def about(self, task: Task) -> dict[str, Any]:
        """The arguments that name a task; its kernel only the first time."""
        out: dict[str, Any] = {"key": task.key, "num_outputs": task.num_outputs}
        if task.key not in self._known:
            from tilegrad._base.tvm import ir

            self._known.add(task.key)
            out["func"] = ir.save_json(task.func)
        return out
