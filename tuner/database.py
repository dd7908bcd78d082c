"""LogDatabase: the session's memory, a log that is appended to and other logs that are only read."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from tilegrad._base.target import Target
from tilegrad.tuner.task import Task
from tilegrad.tuning_logs import Appender, Line, Record, Records, Verdict, canonical, fits, read, shipped

# What shapes the code a template makes. Everything else a machine may have does not keep a record from serving it.
_VECTOR = {"avx", "avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl", "neon", "sve", "sve2"}
_BY_DTYPE = {
    "16": {"f16c", "avx512fp16", "avx512bf16", "fullfp16", "bf16"},
    "8": {"avx512vnni", "avxvnni", "dotprod", "i8mm"},
}


def record_target(target: Target, workload: dict[str, Any]) -> dict[str, Any]:
    """The ``target`` object of a record: only the features that code for this workload uses."""
    types = "".join(str(v) for k, v in workload.items() if "dtype" in k)
    used = _VECTOR.union(*(names for mark, names in _BY_DTYPE.items() if mark in types))
    return target.record() | {"features": [f for f in target.features if f in used]}


class LogDatabase:
    """Reads ``log`` (if it exists) and ``warm_start``, appends to ``log``. Raises TuningError when it cannot be written.

    Lines of ``run`` in ``log`` are this very session, interrupted: they are recalled, but give no hints, so that a
    resumed session proposes what it would have proposed.
    """

    def __init__(
        self, log: str | os.PathLike[str] | None, warm_start: Sequence[str | os.PathLike[str]] = (), run: str = ""
    ) -> None:
        self._appender = Appender(log) if log is not None else None
        own = read(log).lines if log is not None else ()
        self._own: dict[tuple[str, str], list[Line]] = defaultdict(list)
        for line in own:
            self._own[line.template, line.workload_key].append(line)
        past = [line for path in warm_start for line in read(path).lines]
        known = [line for path in shipped() for line in read(path).lines]
        mine = [line for line in own if line.run != run]
        self._foreign = [*known, *past, *mine]
        self._records = Records([*past, *mine], known)

    def recall(self, task: Task) -> dict[str, Record]:
        """Trials of this task in the log, measured with the same thread count, by canonical config."""
        return {canonical(r.config): r for r in self._mine(task) if isinstance(r, Record)}

    def recorded(self, task: Task) -> list[dict[str, Any]]:
        """Configs of this workload that worked: every one in the log, and the best of other logs."""
        mine = [dict(r.config) for r in self.recall(task).values() if r.status == "ok"]
        return mine + self._records.exact(task.template.name, task.workload.json(), task.target)

    def hints(self, task: Task) -> list[dict[str, Any]]:
        """Best configs of other runs, then of the nearest shapes, shipped ones last."""
        return self._records.near(task.template.name, task.workload.json(), task.target)

    def related(self, task: Task) -> list[Record]:
        """Successful trials of this template for other workloads, on machines whose code runs here."""
        name, key = task.template.name, task.workload.key
        trials = (r for r in self._foreign if isinstance(r, Record) and r.status == "ok" and r.template == name)
        return [r for r in trials if fits(r.target, task.target) and r.workload_key != key]

    def verdict(self, task: Task) -> Verdict | None:
        """The last verdict on this task in the log."""
        return next((v for v in reversed(self._mine(task)) if isinstance(v, Verdict)), None)

    def append(self, line: Line) -> None:
        """Keep one line; it is in the file before this returns."""
        self._own[line.template, line.workload_key].append(line)
        if self._appender is not None:
            self._appender.append(line)

    def close(self) -> None:
        """Close the log."""
        if self._appender is not None:
            self._appender.close()

    def _mine(self, task: Task) -> list[Line]:
        """Lines of the log on this very task, from machines with the same vectors and threads."""
        w = task.workload
        mine = record_target(task.target, w.json())

        def same(theirs: Mapping[str, Any]) -> bool:
            alike = theirs["arch"] == mine["arch"] and theirs["threads"] == mine["threads"]
            return alike and set(theirs["features"]) == set(mine["features"])

        return [line for line in self._own[task.template.name, w.key] if same(line.target)]
