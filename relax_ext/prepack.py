"""Constants that a contraction packs become panels in the library: packed once, when it is built.

In: Programs and their scheduled kernels. Out: the same, where calls with such constants have kernels of their own that
read panels, and the constants have their data in that order. What is not a baked constant (parameters of a module, which
stay readable and settable by name) is untouched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilegrad import schedules
from tilegrad._base.target import Target
from tilegrad.runtime.program import Buffer, Call, Program
from tilegrad.schedules.contraction import TEMPLATE
from tilegrad.schedules.finish import finish
from tilegrad.schedules.template import Config

Scheduled = Mapping[str, schedules.Scheduled]


def prepack(
    programs: Mapping[str, Program], configs: Mapping[str, Config], scheduled: Scheduled, target: Target
) -> tuple[dict[str, Program], dict[str, schedules.Scheduled]]:
    """``configs``: those of the kernels of the contraction template, by name."""
    kernels = dict(scheduled)
    return {name: _program(p, configs, kernels, target) for name, p in programs.items()}, kernels


def _program(p: Program, configs: Mapping[str, Config], kernels: dict[str, schedules.Scheduled], target: Target) -> Program:
    buffers, funcs, calls = dict(p.buffers), dict(p.kernels), []
    for call in p.calls:
        constants = [i for i, a in enumerate(call.args) if buffers[a].role == "const"]
        if call.kernel in configs and constants and call.by_rows is None:
            call = _packed(call, constants, p, configs[call.kernel], buffers, funcs, kernels, target)
        calls.append(call)
    read = {a for c in calls for a in c.args} | set(p.ports)
    read |= {b.view_of for b in buffers.values() if b.view_of is not None}
    buffers = {n: b for n, b in buffers.items() if b.role != "const" or n in read}
    used = {c.kernel for c in calls} | {c.by_rows.single for c in calls if c.by_rows}
    funcs = {n: f for n, f in funcs.items() if n in used}
    return replace(p, buffers=buffers, calls=tuple(calls), kernels=funcs)


def _packed(
    call: Call, constants: list[int], p: Program, config: Config, buffers: dict[str, Buffer], funcs: dict[str, object],
    kernels: dict[str, schedules.Scheduled], target: Target,
) -> Call:  # fmt: skip
    func = p.kernels[call.kernel]
    done, fills = TEMPLATE.prepack(func, config, target, constants)
    if not fills:
        return call
    name = f"{call.kernel}_panels{'_'.join(map(str, sorted(fills)))}"
    kernels[name] = finish(done, target)
    funcs[name] = func
    args = list(call.args)
    for i, fill in fills.items():
        source = buffers[args[i]]
        assert source.data is not None
        data = fill(source.data)
        args[i] = f"{source.name}_{name}"
        buffers[args[i]] = Buffer(args[i], data.shape, str(data.dtype), "const", None, data)
    return replace(call, kernel=name, args=tuple(args))
