"""Proposals: their order, their determinism, and what they find in spaces whose optimum is known."""

import numpy as np
import pytest

from tests.fakes import FakeTemplate, FakeXGBoost, task
from tilegrad.tuner import model as cost_model
from tilegrad.tuner.model import CostModel
from tilegrad.tuner.strategy import Search
from tilegrad.tuner.task import Space
from tilegrad.tuning_logs import Record

GRID = FakeTemplate({"a": tuple(range(1, 31)), "b": tuple(range(10))}, pick={"a": 30, "b": 9})


def valley(c):
    """One minimum, at a = 17, b = 6, far from the analytic model's (1, 0) and from the default."""
    return 1.0 + 0.02 * abs(c["a"] - 17) + 0.05 * abs(c["b"] - 6)


def play(search, trials, cost=valley, batch=8):
    order = []
    while len(order) < trials:
        for i in search.propose(min(batch, trials - len(order))) or [None]:
            if i is None:
                return order
            c = search.space.configs[i]
            order.append(c)
            value = cost(c)
            ok = isinstance(value, float)
            record = Record("fake/1", {}, {}, c, "ok" if ok else value, (value,) * 3 if ok else None)
            search.observe(i, record)
    return order


def real_model():
    return CostModel(pytest.importorskip("xgboost"), seed=0)


def test_opening_default_then_hints_then_the_analytic_top():
    hints = [{"a": 5, "b": 5}, {"a": 99, "b": 0}, {"a": 6, "b": 5}, {"a": 7, "b": 7}, {"a": 8, "b": 8}]
    order = play(Search(Space(task(template=GRID)), hints=hints), 8)
    assert order[0] == {"a": 30, "b": 9}
    assert order[1:4] == [{"a": 5, "b": 5}, {"a": 6, "b": 5}, {"a": 7, "b": 7}], "configs out of the space are no hints"
    assert order[4:8] == [{"a": 1, "b": 0}, {"a": 2, "b": 0}, {"a": 1, "b": 1}, {"a": 3, "b": 0}]


@pytest.mark.parametrize("make", [lambda: None, real_model, lambda: CostModel(FakeXGBoost())], ids=["descent", "xgboost", "fake"])
def test_proposals_are_unique_deterministic_and_cover_the_space(make):
    small = FakeTemplate({"a": tuple(range(1, 11)), "b": tuple(range(8))}, pick={"a": 10, "b": 7})
    runs = [play(Search(Space(task(template=small)), seed=3, model=make()), 1000) for _ in range(2)]
    assert runs[0] == runs[1]
    assert len(runs[0]) == 80 == len({(c["a"], c["b"]) for c in runs[0]})


def test_without_a_model_descent_reaches_the_optimum_of_a_valley():
    order = play(Search(Space(task(template=GRID)), model=None), 110)
    assert {"a": 17, "b": 6} in order


def test_the_model_beats_the_analytic_order():
    """The analytic order meets the optimum after about 170 of 300 configs."""
    order = play(Search(Space(task(template=GRID)), model=real_model()), 80)
    assert {"a": 17, "b": 6} in order


def test_noise_below_the_spread_does_not_move_the_centre():
    search = Search(Space(task(template=GRID)))
    play(search, 8, lambda c: 1.0 if c != {"a": 1, "b": 0} else 0.9)
    search.propose(1)
    centre = search._centre
    other = next(i for i in range(len(search.space)) if i not in search._proposed)
    search.observe(other, Record("fake/1", {}, {}, {}, "ok", (0.8999,) * 3))
    search.propose(1)
    assert search._centre == centre


def test_failures_teach_but_timeouts_do_not():
    search = Search(Space(task(template=GRID)))
    play(search, 3, lambda c: {30: 1.0, 1: "crash"}.get(c["a"], "run_timeout"))
    rows = search.rows()
    assert len(rows) == 2 and sorted(rows.y)[0] == 0.0 and sorted(rows.y)[1] > 1.0


def test_gain_falls_with_trials_in_vain_and_ends_with_the_space():
    search = Search(Space(task()))
    before = search.gain()
    play(search, 11, lambda c: 1.0)
    assert 0 < search.gain() < before / 2
    play(search, 1, lambda c: 1.0)
    assert search.gain() == 0


def test_neighbours_move_one_knob_by_legal_steps():
    space = Space(task(template=FakeTemplate({"a": (8, 1, 2), "b": (0, 1)})))
    i = space.index['{"a":2,"b":0}']
    steps = {space.keys[j]: n for j, n in space.neighbours(i).items()}
    assert steps == {'{"a":1,"b":0}': 1, '{"a":8,"b":0}': 1, '{"a":2,"b":1}': 1}
    assert space.neighbours(space.index['{"a":1,"b":0}'])[space.index['{"a":8,"b":0}']] == 2


def test_knobs_of_any_json_kind_have_neighbours():
    space = Space(
        task(
            template=FakeTemplate(
                {"a": (1,), "b": (0, 1), "order": ("mn", "nm"), "tile": ([4, 8], [2, 16]), "flag": (True, False)}
            )
        )
    )
    for i in range(len(space)):
        assert len(space.neighbours(i)) == 4


def test_a_broken_xgboost_is_as_good_as_none(monkeypatch):
    import builtins

    real = builtins.__import__

    def broken(name, *args, **kwargs):
        if name == "xgboost":
            raise OSError("libxgboost.so: cannot open shared object file")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", broken)
    assert cost_model.xgboost() is None


def test_rows_of_related_workloads_lead_the_first_model_batch():
    """Rows that say 'b = 6 is four times faster' make the model propose b = 6 right after the opening."""
    space = Space(task(template=GRID))
    foreign = cost_model.Rows()
    for i, c in enumerate(space.configs):
        foreign.add(space.features[i], -1.5 if c["b"] == 6 else 0.0, 0.3)

    def related():
        return cost_model.Rows(list(foreign.x), list(foreign.y), list(foreign.w))

    plain = play(Search(space, model=real_model()), 16, lambda c: 1.0)
    taught = play(Search(Space(task(template=GRID)), model=real_model(), related=related), 16, lambda c: 1.0)
    count = [sum(c["b"] == 6 for c in run[8:]) for run in (plain, taught)]
    assert count[1] >= 2 > count[0]
    assert np.isfinite(space.features).all()
