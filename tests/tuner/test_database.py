"""The session's memory: what is recalled, hinted and learned from, and what is not."""

import dataclasses

import pytest

from tests.fakes import TARGET, task
from tilegrad._base.errors import TuningError
from tilegrad._base.target import Target
from tilegrad.tuner.database import LogDatabase, record_target
from tilegrad.tuning_logs import Record, Verdict, read, write


def trial(config, cost=1.0, run="old", m=128, target=TARGET, status="ok"):
    w = {"op": "matmul", "m": m}
    costs = (cost,) if status == "ok" else None
    return Record("fake/1", w, record_target(target, w), config, status, costs, run=run)


def test_only_features_that_the_code_uses_are_recorded():
    target = Target("x86_64", ("sse4.2", "avx", "avx2", "fma", "bmi", "f16c", "avx512bf16"), 4, "zen")
    assert record_target(target, {"dtypes": ["f32"]})["features"] == ["avx", "avx2", "fma"]
    assert record_target(target, {"dtypes": ["bf16"]})["features"] == ["avx", "avx2", "fma", "f16c", "avx512bf16"]


def test_recall_is_of_this_task_on_this_kind_of_machine(tmp_path):
    log = tmp_path / "log.jsonl"
    other = dataclasses.replace(TARGET, threads=8)
    lines = [trial({"a": 1}), trial({"a": 2}, status="crash"), trial({"a": 3}, m=64), trial({"a": 4}, target=other)]
    write(log, lines)
    database = LogDatabase(log)
    assert {k: r.status for k, r in database.recall(task()).items()} == {'{"a":1}': "ok", '{"a":2}': "crash"}
    assert database.verdict(task()) is None
    database.append(Verdict("fake/1", {"op": "matmul", "m": 128}, TARGET.record(), {"a": 1}, 1.0, 2.0, 2, "trials"))
    assert database.verdict(task()).done == "trials" and len(read(log).lines) == 5


def test_hints_come_from_other_runs_and_near_shapes_not_from_this_run(tmp_path):
    log = tmp_path / "log.jsonl"
    write(log, [trial({"a": 9}, 0.1, run="mine"), trial({"a": 2}, 0.5), trial({"a": 1}, 0.9), trial({"a": 5}, m=64)])
    assert LogDatabase(log, run="mine").hints(task()) == [{"a": 2}, {"a": 5}]
    assert LogDatabase(log, run="another").hints(task())[0] == {"a": 9}


def test_related_are_successful_trials_of_other_workloads(tmp_path):
    log, warm = tmp_path / "log.jsonl", tmp_path / "warm.jsonl"
    foreign = Target("aarch64", ("neon",), 2)
    write(log, [trial({"a": 1}), trial({"a": 2}, m=64), trial({"a": 3}, m=64, status="crash"), trial({"a": 4}, m=64, run="mine")])
    write(warm, [trial({"a": 5}, m=32), trial({"a": 6}, m=32, target=foreign)])
    found = LogDatabase(log, [warm], run="mine").related(task())
    assert sorted(r.config["a"] for r in found) == [2, 5]


def test_a_missing_warm_start_is_an_error(tmp_path):
    with pytest.raises(TuningError, match="missing.jsonl"):
        LogDatabase(tmp_path / "log.jsonl", [tmp_path / "missing.jsonl"])
