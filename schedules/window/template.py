"""The window template: convolution with one channel a group, or one channel in all, and its gradients."""

from __future__ import annotations

from tilegrad._base.errors import ScheduleError
from tilegrad._base.target import Target
from tilegrad._base.tvm import tirx
from tilegrad.schedules.contraction.canonical import product
from tilegrad.schedules.contraction.modelled import ModelledTemplate
from tilegrad.schedules.contraction.template import workload_of
from tilegrad.schedules.template import Config, Scheduled, Workload
from tilegrad.schedules.window import model
from tilegrad.schedules.window.correlate import Correlate
from tilegrad.schedules.window.form import Window, inner, window
from tilegrad.schedules.window.gather import Gather
from tilegrad.schedules.window.plan import Line, Plan, Shape, fields_of


class WindowTemplate(ModelledTemplate):
    """See schedules.template.Template."""

    name = "window/1"
    model = model

    def match(self, func: tirx.PrimFunc) -> Workload | None:
        """The workload of a window sum; None for anything else."""
        w = window(func)
        return None if w is None else _workload(w, func)

    def apply(self, func: tirx.PrimFunc, config: Config, target: Target) -> Scheduled:
        """Arrange the kernel. Raises ScheduleError for a config that does not fit it."""
        w = window(func)
        if w is None:
            raise ScheduleError("window template", "a kernel that is no window sum", "one that match accepts")
        plan = Plan(_shape(w), config, target)
        return (Gather if w.form == "gather" else Correlate)(w, plan).build(func)


TEMPLATE = WindowTemplate()


def _shape(w: Window) -> Shape:
    lines = [
        Line(s.position.extent, s.image, s.limit, s.stride, tuple(tuple(f for f, _ in live) for live in s.reads)) for s in w.sides
    ]
    return Shape(w.form, product(w.outer), product(inner(w)), product(w.summed), tuple(lines), w.c.acc)


def _workload(w: Window, func: tirx.PrimFunc) -> Workload:
    """The contraction's key, and how the window lies."""
    whole, shape = workload_of(w.c, func), _shape(w)
    kept = {k: whole.fields[k] for k in ("dtypes", "epilogue", "prologue", "geometry") if k in whole.fields}
    work = shape.outer * shape.inner * shape.summed * shape.taps
    for line in shape.lines:
        work *= line.positions
    return Workload(whole.op, {**fields_of(shape), **kept}, 2 * work, whole.bytes)
