"""Transfer: trials of other workloads as training rows, from logs and from the tasks of the same session."""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from tilegrad._base.errors import ScheduleError
from tilegrad.tuner.model import Rows
from tilegrad.tuner.strategy import FOREIGN_WEIGHT, Search
from tilegrad.tuner.task import Task
from tilegrad.tuning_logs import Record, canonical

log = logging.getLogger(__name__)

MOST = 3000
"""Rows of other workloads at the most; fitting stays under a tenth of a second."""


def workload_of(template: Any, fields: Mapping[str, Any]) -> Any:
    """The Workload that a record's ``workload`` object stands for; with flops and bytes where its key determines a kernel."""
    from tilegrad.schedules.template import Workload

    bare = Workload(str(fields["op"]), {k: v for k, v in fields.items() if k != "op"})
    try:
        return template.match(template.define(bare)) or bare
    except ScheduleError:
        return bare


def foreign_rows(task: Task, records: Iterable[Record]) -> Rows:
    """Rows of records of other workloads; what the template cannot read (an older space, another rank) is left out."""
    groups: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for r in records:
        groups[r.workload_key, canonical(r.target)].append(r)
    rows = Rows()
    for group in groups.values():
        if len(rows) >= MOST:
            break
        if len(group) < 2:  # its own reference: it says nothing
            continue
        try:
            _add_group(rows, task, group)
        except Exception as e:  # any template may meet any log
            log.info("%s: records of %s do not transfer (%s)", task.template.name, group[0].workload, e)
    return rows


def _add_group(rows: Rows, task: Task, group: list[Record]) -> None:
    template = task.template
    target = task.target.with_threads(int(group[0].target["threads"]))
    workload = workload_of(template, group[0].workload)
    default = canonical(template.default(workload, target))
    found: list[tuple[np.ndarray, float]] = []
    reference = None
    for r in sorted(group, key=lambda r: r.cost_s):
        config = dict(r.config)
        estimate = template.estimate(workload, config, target)
        x = np.append(np.asarray(template.features(workload, config, target), np.float32), np.float32(math.log(estimate)))
        residual = math.log(r.cost_s / estimate)
        found.append((x, residual))
        if reference is None or canonical(config) == default:
            reference = residual
    for x, residual in found:
        rows.add(x, residual - (reference or 0.0), FOREIGN_WEIGHT)


class Pool:
    """What the searches of one session learn from: their own trials by template, and rows from logs."""

    def __init__(self) -> None:
        self._searches: dict[str, list[Search]] = defaultdict(list)

    def join(self, name: str, search: Search) -> None:
        """Let later searches of this template learn from ``search``."""
        self._searches[name].append(search)

    def rows(self, name: str, asking: Search | None, foreign: Rows) -> Rows:
        """Rows for a search that asks: those of logs and those of its siblings."""
        out = Rows(list(foreign.x), list(foreign.y), list(foreign.w))
        for search in self._searches[name]:
            if search is not asking:
                sibling = search.rows(FOREIGN_WEIGHT)
                for x, y, w in zip(sibling.x, sibling.y, sibling.w, strict=True):
                    out.add(x, y, w)
        return out
