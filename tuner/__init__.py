"""How the best config is found: tasks, strategy, cost model, builder, runner. Importing this imports no TVM."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilegrad.tuner.api import Interrupted as Interrupted
    from tilegrad.tuner.api import tune as tune
    from tilegrad.tuner.report import Report as Report
    from tilegrad.tuner.task import Task as Task
    from tilegrad.tuner.task import tasks_of as tasks_of

_HOMES = {"tune": "api", "Interrupted": "api", "Report": "report", "Task": "task", "tasks_of": "task"}

__all__ = ["Interrupted", "Report", "Task", "tasks_of", "tune"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"tilegrad.tuner.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
