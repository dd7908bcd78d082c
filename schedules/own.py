"""Templates of users' own: for kernels made by ``tg.call_te(..., template=...)``, which carry the template's address.

The address is an attribute of the kernel, so the tuner's worker processes, which get the kernel alone, find the template too.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import math
import sys
from abc import ABC, abstractmethod
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tilegrad._base.errors import ScheduleError, UsageError
from tilegrad._base.target import Target
from tilegrad._base.tvm import tirx
from tilegrad.schedules.finish import element_bytes
from tilegrad.schedules.template import Config, Scheduled, Workload

ATTRIBUTE = "tilegrad.template"


class OwnTemplate(ABC):
    """Base of users' templates: set ``name``, write ``space`` and ``apply``; the rest may be overridden.

    ``name`` is ``operator/version``; records of tuning are matched on it, so raise the version when old configs no longer
    mean what they did. The class is defined at the top of a module and made without arguments.
    """

    name: str

    @abstractmethod
    def space(self, workload: Workload, target: Target) -> list[Config]:
        """All legal configs, in a stable order."""

    @abstractmethod
    def apply(self, func: tirx.PrimFunc, config: Config, target: Target) -> Scheduled:
        """Arrange the kernel, by ``tvm.s_tir.Schedule`` for example. Raises ScheduleError when the config is illegal for it."""

    def match(self, func: tirx.PrimFunc) -> Workload | None:
        """The kernel's shapes and dtypes, parameters in order; None hands the kernel to the general templates."""
        shapes = [[int(d) for d in p.shape] for p in func.params]
        dtypes = [str(p.dtype) for p in func.params]
        size = sum(math.prod(s) * element_bytes(d) for s, d in zip(shapes, dtypes, strict=True))
        return Workload(self.name.partition("/")[0], {"shapes": shapes, "dtypes": dtypes}, 0, size)

    def default(self, workload: Workload, target: Target) -> Config:
        """The config without tuning: the first of the space."""
        return self.space(workload, target)[0]

    def estimate(self, workload: Workload, config: Config, target: Target) -> float:
        """Seconds expected: traffic at 4 GB/s."""
        return (workload.bytes + 1) / 4e9

    def features(self, workload: Workload, config: Config, target: Target) -> np.ndarray:
        """log2 of the traffic and of every numeric knob."""
        knobs = [v for _, v in sorted(config.items()) if isinstance(v, int | float)]
        return np.log2(np.array([workload.bytes + 1, *(abs(v) + 1 for v in knobs)], np.float32))

    def define(self, workload: Workload) -> tirx.PrimFunc:
        """Impossible: the definition is the user's."""
        raise ScheduleError(f"template '{self.name}'", "a workload alone", "the kernel itself", "Tune the model that calls it.")


def address(template: OwnTemplate) -> str:
    """Where the template's class is, and what its source is. Raises UsageError where another process would not find it."""
    kind = type(template)
    if not isinstance(template, OwnTemplate) or "<locals>" in kind.__qualname__:
        raise UsageError(
            "call_te, argument 'template'", f"an object of {kind.__qualname__}", "an object of a subclass of OwnTemplate",
            "Define the class at the top of a module: the tuner's processes import it.",
        )  # fmt: skip
    file = Path(inspect.getfile(kind)).resolve()
    place = str(file) if kind.__module__ == "__main__" else kind.__module__
    return f"{place}:{kind.__qualname__}:{hashlib.sha256(file.read_bytes()).hexdigest()[:16]}"


def template_of(func: tirx.PrimFunc) -> OwnTemplate | None:
    """The template that a kernel carries the address of."""
    found = func.attrs.get(ATTRIBUTE) if func.attrs is not None else None
    return None if found is None else _load(str(found))


@cache
def _load(text: str) -> OwnTemplate:
    place, name, _ = text.rsplit(":", 2)
    module: Any = _from_file(place) if place.endswith(".py") else importlib.import_module(place)
    return getattr(module, name)()


def _from_file(path: str) -> Any:
    main = sys.modules["__main__"]
    if getattr(main, "__file__", None) and Path(str(main.__file__)).resolve() == Path(path):
        return main
    spec = importlib.util.spec_from_file_location("tilegrad_own_" + hashlib.sha256(path.encode()).hexdigest()[:8], path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
