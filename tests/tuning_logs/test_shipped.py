"""Every record that ships still describes a kernel that its template can build, on a machine that it fits."""

from dataclasses import replace

import pytest

from tilegrad._base.target import Target
from tilegrad.tuning_logs import read, shipped
from tilegrad.tuning_logs.tools import best

SAMPLE = 4
"""Records that the ordinary run compiles."""


def test_shipped_logs_are_whole():
    for path in shipped():
        contents = read(path)
        assert contents.skipped == 0 and contents.lines, path


def every():
    return [b for path in shipped() for b in best(read(path).lines)]


def rebuilt(entry):
    """The template, workload and target of a best entry, from its JSON alone."""
    from tilegrad import schedules
    from tilegrad.schedules.template import Workload

    template = schedules.template_named(entry.template)
    assert template is not None, f"{entry.template} is no template of this version: ship no such records"
    fields = {k: v for k, v in entry.workload.items() if k != "op"}
    t = entry.target
    return template, Workload(entry.workload["op"], fields), Target(t["arch"], tuple(t["features"]), t["threads"])


CACHES = [(32 << 10, 512 << 10), (32 << 10, 1 << 20), (48 << 10, 2 << 20)]
"""L1 and L2 of machines that records come from; blocks are chosen by them."""


def test_every_shipped_config_is_in_the_space_of_its_workload():
    for entry in every():
        template, workload, target = rebuilt(entry)
        spaces = (template.space(workload, replace(target, l1_bytes=l1, l2_bytes=l2)) for l1, l2 in CACHES)
        assert any(dict(entry.config) in space for space in spaces), (entry.workload, entry.config)


def kernels_of_the_benchmarks():
    """Kernels by template and key: those of training steps, whose epilogues and prologues no key alone determines."""
    from benchmarks import shipped_log
    from tilegrad import schedules

    found = {}
    for level in shipped_log.LEVELS:
        target = shipped_log.target_of(level)
        for name in shipped_log.TASKS:
            for program in shipped_log.step_of(name, target).programs.values():
                for func in program.kernels.values():
                    template, workload = schedules.task_of(func)
                    found[template.name, workload.key] = func
        for task in shipped_log.tasks((*shipped_log.products(), *shipped_log.convolutions()), target):
            found[task.template.name, task.workload.key] = task.func
    return found


def compiles(entry, kernels):
    """Build a record's kernel: one of ``kernels``, by template and key, or what its key defines. Raises ScheduleError."""
    from tilegrad import runtime
    from tilegrad.schedules.finish import finish
    from tilegrad.tuner._build_worker import one_call, outputs_of

    template, workload, target = rebuilt(entry)
    func = kernels.get((entry.template, workload.key)) or template.define(workload)
    scheduled = finish(template.apply(func, dict(entry.config), target), target)
    runtime.build({"run": one_call(func, outputs_of(func))}, {"kernel": scheduled}, target)


def test_a_sample_of_shipped_records_compiles():
    """Some products, evenly over the log; the long test below takes every record."""
    products = [
        b for b in every() if b.workload["op"] == "matmul" and not b.workload["epilogue"] and "prologue" not in b.workload
    ]
    assert len(products) >= SAMPLE
    for entry in products[:: len(products) // SAMPLE]:
        compiles(entry, {})


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_every_shipped_record_compiles():
    from tilegrad._base.errors import ScheduleError

    kernels = kernels_of_the_benchmarks()
    for entry in every():
        try:
            compiles(entry, kernels)
        except ScheduleError:
            raise AssertionError(f"no kernel is known for {entry.workload}") from None
