"""From an unscheduled kernel to its template, and from there to a finished kernel."""

from __future__ import annotations

from tilegrad._base.target import Target
from tilegrad._base.tvm import tirx, tvm_ffi
from tilegrad.schedules.attention import TEMPLATE as ATTENTION
from tilegrad.schedules.contraction import TEMPLATE as CONTRACTION
from tilegrad.schedules.elementwise import TEMPLATE as ELEMENTWISE
from tilegrad.schedules.finish import finish
from tilegrad.schedules.opaque import OpaqueTemplate
from tilegrad.schedules.own import template_of
from tilegrad.schedules.reduction import TEMPLATE as REDUCTION
from tilegrad.schedules.template import Config, Scheduled, Template, Workload
from tilegrad.schedules.window import TEMPLATE as WINDOW

TEMPLATES: tuple[Template, ...] = (ATTENTION, WINDOW, CONTRACTION, REDUCTION, ELEMENTWISE, OpaqueTemplate())
"""From special to general; the first that matches takes the kernel. The last one always does."""


def template_named(name: str) -> Template | None:
    """The template with this name and version, e.g. ``contraction/1``; None when this version is unknown here."""
    return next((t for t in TEMPLATES if t.name == name), None)


def task_of(func: tirx.PrimFunc) -> tuple[Template, Workload]:
    """The template that takes an unscheduled kernel, its own one first, and the kernel's workload."""
    own = template_of(func)
    for template in TEMPLATES if own is None else (own, *TEMPLATES):
        workload = template.match(func)
        if workload is not None:
            return template, workload
    raise AssertionError("the opaque template matches every kernel")


def schedule(func: tirx.PrimFunc, target: Target, config: Config | None = None) -> Scheduled:
    """Arrange an unscheduled kernel for ``target``; without a config, by its template's default.

    The result follows the common rules of ``schedules.finish``. Raises ScheduleError when the config is illegal.
    """
    if _writes_nothing(func):
        return finish(Scheduled(func.with_body(tirx.Evaluate(tirx.const(0, "int32")))), target)
    template, workload = task_of(func)
    return finish(template.apply(func, template.default(workload, target) if config is None else config, target), target)


def _writes_nothing(func: tirx.PrimFunc) -> bool:
    """Whether everything that the kernel stores has no elements (TVM would leave loop variables without loops)."""
    stored: list[tirx.BufferStore] = []
    tvm_ffi.structural_walk(func.body, (tirx.BufferStore, stored.append))
    return bool(stored) and all(any(isinstance(d, tirx.IntImm) and int(d) == 0 for d in s.buffer.shape) for s in stored)
