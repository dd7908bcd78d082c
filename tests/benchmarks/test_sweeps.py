"""Recorded sweeps: what is outside a space, which measurement counts, and what the default reached in them."""

import math

import pytest

from benchmarks import sweeps, tuner_replay
from tilegrad.tuner.task import Space
from tilegrad.tuning_logs import Appender, Record, canonical

WHEN = "2026-11-30T07:00:00Z"
RECORDED = [n for n in sweeps.WORKLOADS if sweeps.recorded(n)]


def test_what_is_outside_is_seeded_legal_and_not_in_the_space(monkeypatch):
    monkeypatch.setattr(sweeps, "OUTSIDE", 20)
    space = Space(sweeps.task_of("square"))
    first, again = sweeps.outside(space), sweeps.outside(space)
    assert first == again and len({canonical(c) for c in first}) == sweeps.OUTSIDE
    assert not {canonical(c) for c in first} & set(space.keys)
    assert all(sweeps.legal(space.task, c) for c in first) and not sweeps.legal(space.task, first[0] | {"mr": 12, "nr": 32})


def test_the_last_measurement_of_a_config_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(sweeps, "FOLDER", tmp_path)
    made = [("space", 1, (3.0, 1.0, 2.0)), ("space", 2, None), ("outside", 3, (5.0,)), ("again", 1, (4.0,)), ("again", 3, (6.0,))]
    target = {"arch": "x86_64", "features": ["avx2"], "threads": 2}
    with Appender(sweeps.log_of("square")) as log:
        for run, mr, costs in made:
            log.append(
                Record(
                    "contraction/1", {"op": "matmul"}, target, {"mr": mr}, "ok" if costs else "crash", costs, time=WHEN, run=run
                )
            )
    for _ in range(2):  # growing, then compressed
        assert sweeps.costs("square") == {'{"mr":1}': 4.0} and sweeps.costs("square", "outside") == {'{"mr":3}': 6.0}
        sweeps.pack("square")
    assert sweeps.recorded("square") and not sweeps.log_of("square").exists()


def test_the_default_is_near_the_best_of_every_recorded_space():
    """Nothing is measured here: the figures are those that ship."""
    fractions = []
    for name in RECORDED:
        r = tuner_replay.Recorded(sweeps.task_of(name), sweeps.costs(name))
        assert r.has_default and len(r.space) >= 300, name
        fractions.append(r.best / r.default_s)
    assert min(fractions) >= 0.8, dict(zip(RECORDED, fractions, strict=True))
    assert math.exp(sum(map(math.log, fractions)) / len(fractions)) == pytest.approx(1.0, abs=0.15)
