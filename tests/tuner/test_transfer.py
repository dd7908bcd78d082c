"""Rows from other workloads' records: relative to each workload's default, whatever the machine's speed."""

import math

import numpy as np
import pytest

from tests.fakes import TARGET, FakeTemplate, task
from tilegrad.schedules.template import Workload
from tilegrad.tuner.strategy import FOREIGN_WEIGHT, Search
from tilegrad.tuner.task import Space
from tilegrad.tuner.transfer import Pool, foreign_rows
from tilegrad.tuning_logs import Record


class Described(FakeTemplate):
    """A template that can be asked for a kernel of a workload, as real ones can."""

    def define(self, workload):
        return workload

    def match(self, func):
        return Workload(func.op, func.fields, 7, 8)


def record(m, config, cost, target=TARGET):
    return Record("fake/1", {"op": "matmul", "m": m}, target.record(), config, "ok", (cost,) * 3)


def test_residuals_are_relative_to_each_workloads_default():
    """On a machine ten times slower, with the model right but for b = 1, only b = 1 stands out."""
    template = Described()
    records = []
    for m, speed in ((64, 1.0), (256, 10.0)):
        for config in template.space(None, TARGET):
            cost = speed * template.estimate(None, config, TARGET) * (0.5 if config["b"] == 1 else 1.0)
            records.append(record(m, config, cost))
    rows = foreign_rows(task(template=template), records)
    assert len(rows) == 24 and set(rows.w) == {FOREIGN_WEIGHT}
    for x, y in zip(rows.x, rows.y, strict=True):
        assert y == pytest.approx(math.log(0.5) if x[1] == 1 else 0.0, abs=1e-6)
    assert rows.x[0].shape == Space(task(template=template)).features[0].shape


def test_records_that_the_template_cannot_read_are_left_out():
    template = Described()
    bad = Record("fake/1", {"no": "op"}, TARGET.record(), {"a": 1, "b": 0}, "ok", (1.0,))
    older = record(64, {"other": "knobs"}, 1.0)
    good = [record(32, {"a": a, "b": 0}, 1.0) for a in (1, 2)]
    for unread in (bad, older):
        assert len(foreign_rows(task(template=template), [unread] * 2)) == 0
    assert len(foreign_rows(task(template=template), [bad, bad, older, older, *good])) == 2


def test_a_single_trial_of_a_workload_says_nothing_and_costs_nothing():
    class Costly(Described):
        def default(self, workload, target):
            raise AssertionError("the default of a workload with one trial was computed")

    assert len(foreign_rows(task(template=Costly()), [record(m, {"a": 1, "b": 0}, 1.0) for m in (32, 64)])) == 0


def test_searches_of_one_session_teach_each_other():
    pool, template = Pool(), FakeTemplate()
    one, two = (Search(Space(task(name, template=template))) for name in ("one", "two"))
    pool.join("fake/1", one)
    pool.join("fake/1", two)
    one.observe(0, record(1, one.space.configs[0], 2.0))
    one.observe(1, record(1, one.space.configs[1], 9.0))
    from tilegrad.tuner.model import Rows

    taught = pool.rows("fake/1", two, Rows())
    assert len(taught) == 2 and taught.w == [FOREIGN_WEIGHT] * 2
    assert len(pool.rows("fake/1", one, Rows())) == 0, "its own trials come from the search itself"
    assert len(pool.rows("other/1", one, Rows([np.zeros(3)], [1.0], [0.3]))) == 1
