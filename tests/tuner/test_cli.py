"""The commands: their output, exit codes and refusals. Run in this process with typer's runner."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tilegrad.tuner.cli import app

GOLDEN = Path(__file__).parents[1] / "tuning_logs" / "golden_v1.jsonl"
SCRIPT = Path(__file__).with_name("tunable.py")


def run(*args):
    result = CliRunner().invoke(app, [str(a) for a in args])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_log_show_and_best():
    shown = run("log", "show", GOLDEN).stdout.splitlines()
    assert len(shown) == 4 and "crash" in shown[1] and "finished (trials): 710.00 us" in shown[3]
    (best,) = run("log", "best", GOLDEN).stdout.splitlines()
    assert "m=128 n=512 k=784 layout=NT" in best and '{"mr": 6, "nr": 16} 710.00 us 1.28x of default' in best
    (row,) = [json.loads(x) for x in run("log", "best", "--json", GOLDEN).stdout.splitlines()]
    assert row["config"] == {"mr": 6, "nr": 16} and row["cost_s"] == 0.00071


def test_log_merge_prune_stats_plot(tmp_path):
    both, small, svg = tmp_path / "both.jsonl", tmp_path / "small.jsonl", tmp_path / "plot.svg"
    assert run("log", "merge", GOLDEN, GOLDEN, "-o", both).stdout == f"4 lines in {both}\n"
    assert run("log", "prune", both, "-o", small).stdout == f"2 of 4 lines in {small}\n"
    stats = json.loads(run("log", "stats", "--json", both).stdout)
    assert (stats["trials"], stats["finished"], stats["by_status"]) == (3, 1, {"ok": 2, "crash": 1})
    run("log", "plot", both, "-o", svg)
    assert svg.read_text().count("<path") == 1


def test_an_empty_log_says_what_to_do(tmp_path):
    from tilegrad._base.errors import TuningError

    empty = tmp_path / "empty.jsonl"
    empty.touch()
    with pytest.raises(TuningError, match="no readable line.*Write one with"):
        run("log", "best", empty)


@pytest.mark.parametrize(
    "args",
    [
        ("log", "best", "missing.jsonl"),
        ("log", "plot", GOLDEN, "-o", "plot.png"),
        ("tune", "m.py:x", "--trials", "0"),
        ("tune", "m.py:x", "--effort", "heroic"),
        ("tune", "m.py:x", "--plot", "plot.png"),
        ("tune", "m.py:x", "--warm-start", "missing.jsonl"),
    ],
)
def test_wrong_usage_is_exit_code_2(args):
    assert run(*args).exit_code == 2


def test_tasks_then_tune_then_tasks(tmp_path):
    log = tmp_path / "log.jsonl"
    model = f"{SCRIPT}:small"
    before = run("tasks", model).stdout
    assert "elementwise" in before and "1 kernels: 0 tuned" in before and "tilegrad tune" in before
    tuned = run("tune", model, "-o", log, "--trials", "3", "--json", "--jobs", "1", "--plot", tmp_path / "p.svg")
    assert tuned.exit_code == 0
    events = [json.loads(x) for x in tuned.stdout.splitlines()]
    kinds = [e["event"] for e in events[:-1] if e["event"] != "notice"]  # the machine may drift
    assert kinds == ["start", *["trial"] * 3, "task", "end"]
    assert events[-1]["report"]["trials"] == 3 and (tmp_path / "p.svg").exists()
    after = run("tasks", model, "--log", log).stdout
    assert "1 kernels: 1 tuned, 0 shipped, 0 nearest, 0 default" in after
    rows = [json.loads(x) for x in run("tasks", model, "--log", log, "--json").stdout.splitlines()]
    assert rows[0]["source"] == "tuned" and rows[0]["workload"]["op"] == "elementwise"


def test_nothing_to_tune_is_exit_code_3(tmp_path):
    file = tmp_path / "none.py"
    file.write_text("from types import SimpleNamespace\nfrom tilegrad._base.target import Target\n")
    file.write_text(file.read_text() + "x = SimpleNamespace(programs={}, target=Target.native(), graphs={})\n")
    assert run("tune", f"{file}:x", "-o", tmp_path / "log.jsonl").exit_code == 3


def test_every_trial_failing_is_exit_code_3(tmp_path, monkeypatch):
    from tests.fakes import FakeBuilder, FakeRunner
    from tilegrad.tuner import api

    builder = FakeBuilder(lambda task, config: "compile_error")
    monkeypatch.setattr(api, "_tools", lambda *a: (builder, FakeRunner(builder)))
    result = run("tune", f"{SCRIPT}:small", "-o", tmp_path / "log.jsonl", "--effort", "quick")
    assert result.exit_code == 3 and "the first: compile_error: scripted" in result.stderr
