"""The contraction template: one family for matmul, convolution, their gradients and any product-sum of two operands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tilegrad._base.errors import ScheduleError
from tilegrad._base.target import Target
from tilegrad._base.tvm import tirx
from tilegrad.schedules.contraction import model, prepack
from tilegrad.schedules.contraction.affine import size as elements
from tilegrad.schedules.contraction.bound import bound_of
from tilegrad.schedules.contraction.canonical import Contraction, canonicalise
from tilegrad.schedules.contraction.kernel import kernel
from tilegrad.schedules.contraction.modelled import ModelledTemplate
from tilegrad.schedules.contraction.pairs import paired
from tilegrad.schedules.contraction.phases import phases
from tilegrad.schedules.contraction.plan import Plan, element_bytes
from tilegrad.schedules.stages import id_of, loads, variables
from tilegrad.schedules.template import Config, Scheduled, Workload


class ContractionTemplate(ModelledTemplate):
    """See schedules.template.Template."""

    name = "contraction/1"
    model = model

    def match(self, func: tirx.PrimFunc) -> Workload | None:
        """The workload of a kernel with one product-sum; None for anything else."""
        c = canonicalise(func)
        return None if c is None else workload_of(c, func)

    def apply(self, func: tirx.PrimFunc, config: Config, target: Target) -> Scheduled:
        """Arrange the kernel. Raises ScheduleError for a config that does not fit it."""
        c = canonicalise(func)
        if c is None:
            raise ScheduleError("contraction template", "a kernel that is no contraction", "one that match accepts")
        parts = [paired(x, model.checked(config), target) for x in phases(c)]
        plans = [Plan(x.size, model.checked(config), target) for x in parts]
        if len(parts) > 1:
            plans = [replace(plan, config=_fitted(plan, x)) for plan, x in zip(plans, parts, strict=True)]
        return kernel(func, parts, plans, bound_of(func, c))

    def prepack(
        self, func: tirx.PrimFunc, config: Config, target: Target, constants: Sequence[int]
    ) -> tuple[Scheduled, dict[int, prepack.Fill]]:
        """As ``apply``, with those of the parameters ``constants`` replaced by their panels for which the result has a Fill."""
        c = canonicalise(func)
        if c is None or len(phases(c)) > 1:
            return self.apply(func, config, target), {}
        c = paired(c, model.checked(config), target)
        plan = Plan(c.size, config, target)
        bound = bound_of(func, c)
        sides = prepack.packable(func, c, plan, constants)
        if bound is not None and bound.group == "m":
            sides.pop("a", None)  # its tiles are others
        panels = {side: prepack.parameter(plan, side, c.acc) for side in sides}
        done = kernel(func, [c], [plan], bound, panels)
        by_index = {i: panels[side] for side, i in sides.items()}
        params = [by_index.get(i, p) for i, p in enumerate(done.func.params)]
        scheduled = Scheduled(tirx.PrimFunc(params, done.func.body, attrs=done.func.attrs), done.scratch_bytes)
        return scheduled, {i: prepack.fill(c, plan, side) for side, i in sides.items()}


TEMPLATE = ContractionTemplate()


def short(dtype: str) -> str:
    """f32 for float32, bf16 for bfloat16, i8, u8, b1 for bool."""
    for long, letter in (("bfloat", "bf"), ("float", "f"), ("uint", "u"), ("int", "i")):
        if dtype.startswith(long):
            return letter + dtype[len(long) :]
    return "b1" if dtype == "bool" else dtype


def workload_of(c: Contraction, func: tirx.PrimFunc) -> Workload:
    """The readable key of a contraction."""
    parts = phases(c)
    s = parts[0].size
    k = sum(x.size.k for x in parts)
    fields: dict[str, Any] = {"batch": s.batch, "m": s.m, "n": s.segments * s.n, "k": k, "layout": c.layout_a + c.layout_b}
    if len(parts) > 1:
        fields["phases"] = len(parts)
    operands = [str(loads(op.expr)[0].source.dtype) for op in (c.a, c.b)]
    fields["dtypes"] = [*map(short, operands), short(c.outputs[0].stage.dtype)]
    fields["epilogue"] = ",".join(_link_name(c, n) for n in range(1, len(c.chain)))
    if s.segments > 1:
        fields["segments"] = s.segments
    prologue = [",".join(map(_plain, op.prologue)) for op in (c.a, c.b)]
    if any(prologue):
        fields["prologue"] = prologue
    if "geometry" in c.annotations:
        fields["geometry"] = str(c.annotations["geometry"])
    traffic = sum(elements(p) * element_bytes(str(p.dtype)) for p in func.params)
    return Workload(_plain(c.name), fields, 2 * s.batch * s.m * s.segments * s.n * k, traffic)


def _fitted(plan: Plan, part: Contraction) -> Config:
    """The config chosen for all phases together, for one of them: it packs what cannot be read in place."""
    pack_a = plan.config["pack_a"] or part.layout_a not in "NTS"
    return {**plan.config, "pack_a": pack_a, "pack_b": plan.config["pack_b"] or part.layout_b != "N" or bool(plan.tail)}


def _plain(name: str) -> str:
    """A block's name without TOPI's prefix."""
    return name.removeprefix("T_")


def _link_name(c: Contraction, n: int) -> str:
    """The stage's name and, in brackets, over what its other operands extend: ``add[n]`` is a bias."""
    link = c.chain[n]
    own = {id_of(x.stage.buffer) for x in c.chain}
    where = dict(zip((id_of(i.var) for i in link.stage.spatial), link.index, strict=True))
    groups = {"b": c.batch, "m": c.m, "n": (*c.segments, *c.n)}
    names = []
    for read in loads(link.stage.body):
        if id_of(read.source) in own:
            continue
        used = {id_of(v) for i in read.indices for w in variables(i) for v in variables(where.get(id_of(w), w))}
        names.append("".join(g for g, axes in groups.items() if any(id_of(a.var) in used for a in axes)) or "1")
    return _plain(link.stage.name) + (f"[{' '.join(names)}]" if names else "")
