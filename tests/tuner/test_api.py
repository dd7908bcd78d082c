"""tune with the real builder and runner on small kernels; its arguments; its logs in a fresh process."""

import dataclasses
import json

import numpy as np
import pytest

from tests.fakes import FakeBuilder, FakeRunner, FakeTemplate, table, task
from tests.tuner import tunable
from tilegrad import runtime, schedules, tuner
from tilegrad._base.errors import TargetError, TuningError, UsageError
from tilegrad._base.target import Target
from tilegrad.tuner.api import Interrupted, run_id
from tilegrad.tuner.builder import LocalBuilder
from tilegrad.tuner.runner import LocalRunner
from tilegrad.tuning_logs import Records, read


def test_tune_end_to_end_then_look_up_and_run(tmp_path):
    log = tmp_path / "log.jsonl"
    events = []
    report = tuner.tune(tunable.small, trials=6, log=log, progress=events.append, jobs=1)
    assert report.trials == 6 and report.errors == 0 and report.log == str(log)
    (result,) = report.tasks
    assert result.row.best_s <= result.row.default_s < 1e-2
    (found,) = tuner.tasks_of(tunable.small.programs, tunable.small.target)
    hit = Records.load(log).choose(found.template, found.workload, found.target)
    assert hit.source == "tuned" and hit.config == result.config
    library = runtime.build(
        {"run": tunable.small.programs["p4096"]},
        {"chain4096": schedules.schedule(found.func, found.target, hit.config)},
        found.target,
    )
    x = np.arange(4096, dtype=np.float32)
    with library.context() as context:
        assert np.array_equal(context.run("run", {"x0": x})["x1"], 2 * x + 1)
    lines = log.read_text().splitlines()
    assert len(lines) == 7 and json.loads(lines[-1])["done"] == "trials"
    again = tuner.tune(tunable.small, trials=6, log=log, jobs=1)
    assert log.read_text().splitlines() == lines and again.tasks[0].config == result.config


def test_two_tasks_and_the_table(tmp_path):
    report = tuner.tune(tunable.model(1000, 1023), trials=4, log=tmp_path / "log.jsonl", jobs=1)
    text = str(report)
    assert len(report.tasks) == 2 and "saves" in text and "elementwise" in text and "2 tasks, 4 trials, 0 errors" in text
    svg = report.plot(tmp_path / "plot.svg").read_text()
    assert svg.startswith("<svg") and svg.count("<path") == 2
    with pytest.raises(UsageError, match="ends in .svg"):
        report.plot(tmp_path / "plot.png")


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"trials": 0}, UsageError, "argument 'trials': got 0, expected a positive whole number"),
        ({"budget_s": -1}, UsageError, "argument 'budget_s'"),
        ({"effort": "heroic"}, UsageError, "one of quick, normal, full"),
        ({"warm_start": "missing.jsonl"}, TuningError, "missing.jsonl"),
        ({"log": "/proc/log.jsonl"}, TuningError, "Choose another log"),
    ],
)
def test_bad_arguments_are_refused_before_anything_starts(arguments, error, text, tmp_path):
    builder = FakeBuilder()
    with pytest.raises(error, match=text):
        tuner.tune([task()], **{"log": tmp_path / "l.jsonl", "builder": builder, "runner": FakeRunner(builder), **arguments})
    assert builder.built == []


def test_what_cannot_be_tuned_is_refused():
    with pytest.raises(UsageError, match="got int, expected something with programs and a target"):
        tuner.tune(3)


def test_another_machines_target_is_refused(tmp_path):
    foreign = dataclasses.replace(task(), target=Target.parse("cortex-a72"))
    with pytest.raises(TargetError, match="--rpc HOST:PORT"):
        tuner.tune([foreign], log=tmp_path / "log.jsonl")


def test_no_tunable_kernel_is_an_empty_report(tmp_path):
    assert tuner.tune([], log=tmp_path / "log.jsonl").tasks == ()


def fake_tune(tmp_path, script, stop_after=None, **more):
    builder = FakeBuilder(script)
    runner = FakeRunner(builder, stop_after=stop_after)
    template = FakeTemplate({"a": tuple(range(1, 20)), "b": (0, 1, 2)})
    tasks = [task(template=template), task("conv", template=template)]
    return tuner.tune(tasks, **{"log": tmp_path / "log.jsonl", "builder": builder, "runner": runner, **more}), builder


def test_interruption_raises_with_the_report_and_the_same_call_goes_on(tmp_path):
    script = table({'{"a":4,"b":1}': 0.5, '{"a":2,"b":1}': "crash"})
    with pytest.raises(Interrupted) as caught:
        fake_tune(tmp_path, script, stop_after=9, trials=30)
    assert caught.value.report.trials == 9 and isinstance(caught.value, KeyboardInterrupt)
    report, builder = fake_tune(tmp_path, script, trials=30)
    records = [r for r in read(tmp_path / "log.jsonl").lines if hasattr(r, "status")]
    keys = [(r.workload_key, json.dumps(r.config)) for r in records]
    assert len(keys) == len(set(keys)) == 30 == report.trials
    whole, _ = fake_tune(tmp_path, script, trials=30, log=tmp_path / "other.jsonl")
    others = [(r.workload_key, json.dumps(r.config)) for r in read(tmp_path / "other.jsonl").lines if hasattr(r, "status")]
    assert sorted(others) == sorted(keys), "interrupted or not, the same trials"


def test_without_xgboost_a_notice_and_descent(tmp_path, monkeypatch):
    from tilegrad.tuner import model

    monkeypatch.setattr(model, "xgboost", lambda: None)
    report, _ = fake_tune(tmp_path, table({'{"a":4,"b":1}': 0.5}), trials=20)
    assert "coordinate descent" in report.notices[0] and report.trials == 20


def test_warm_start_is_tried_first_and_not_written(tmp_path):
    script = table({'{"a":17,"b":2}': 0.5})
    fake_tune(tmp_path, script, effort="full", log=tmp_path / "old.jsonl")
    before = (tmp_path / "old.jsonl").read_bytes()
    report, _ = fake_tune(tmp_path, script, trials=4, seed=7, warm_start=tmp_path / "old.jsonl", log=tmp_path / "new.jsonl")
    assert (tmp_path / "old.jsonl").read_bytes() == before
    configs = [r.config for r in read(tmp_path / "new.jsonl").lines if hasattr(r, "status")]
    assert {"a": 17, "b": 2} in configs[:2]


def test_the_run_id_is_the_commands(tmp_path):
    a, b = task(), task("conv")
    assert run_id([a, b], 0) == run_id([b, a], 0) != run_id([a, b], 1) != run_id([a], 0)


def test_the_builder_reports_bad_configs_and_survives(tmp_path):
    (found,) = tuner.tasks_of(tunable.small.programs, tunable.small.target)
    builder = LocalBuilder(jobs=1, timeout_s=20)
    try:
        good, bad = builder.build(found, [{"vector": 1, "tile": 16, "parallel": 0}, {"nonsense": 1}])
        assert good.status == "ok" and bad.status in ("invalid_config", "compile_error") and "nonsense" not in str(good)
        builder._workers[0].process.kill()
        (again,) = builder.build(found, [{"vector": 2, "tile": 16, "parallel": 0}])
        assert again.status == "ok"
        runner = LocalRunner(builder.reference)
        (outcome,) = runner.measure(found, [again.path], None, None)
        runner.close()
        assert outcome.status == "ok"
    finally:
        builder.close()
    assert not builder.folder.exists()


def test_a_compilation_that_takes_too_long(monkeypatch):
    (found,) = tuner.tasks_of(tunable.small.programs, tunable.small.target)
    builder = LocalBuilder(jobs=1, timeout_s=1e-6)
    try:
        builder.reference(found)  # the worker has started
        builder._workers[0].built = 2
        (late,) = builder.build(found, [{"vector": 4, "tile": 16, "parallel": 1}])
        assert (late.path, late.status) == (None, "compile_timeout")
    finally:
        builder.close()


def test_folders_of_killed_sessions_are_removed(tmp_path, monkeypatch):
    import os
    import tempfile

    from tilegrad.tuner.builder import PREFIX, remove_orphans

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    orphan, mine, other = (tmp_path / n for n in (f"{PREFIX}999999999-x", f"{PREFIX}{os.getpid()}-x", f"{PREFIX}notes-x"))
    for folder in (orphan, mine, other):
        folder.mkdir()
    remove_orphans()
    assert sorted(tmp_path.iterdir()) == sorted([mine, other])
