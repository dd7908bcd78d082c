"""The line format: round trip, the golden file of version 1, tolerance of what cannot be read."""

import json
from pathlib import Path

import pytest

from tilegrad.tuning_logs import Record, Records, Verdict, parse, read

GOLDEN = Path(__file__).with_name("golden_v1.jsonl")


def test_golden_v1_loads_for_ever():
    contents = read(GOLDEN)
    assert contents.skipped == 0
    trial, crash, extra, verdict = contents.lines
    assert isinstance(trial, Record) and trial.cost_s == 0.00071 and trial.config == {"mr": 6, "nr": 16}
    assert trial.workload["layout"] == "NT" and trial.target["features"] == ["avx2", "fma"] and trial.run == "a1b2"
    assert isinstance(crash, Record) and crash.status == "crash" and crash.costs_s is None and crash.error == "signal 4"
    assert isinstance(extra, Record) and extra.status == "ok"
    assert isinstance(verdict, Verdict) and verdict.done == "trials" and verdict.default_s == 0.00091


@pytest.mark.parametrize("line", GOLDEN.read_text().splitlines())
def test_round_trip_keeps_every_field(line):
    first = parse(line)
    assert first is not None and parse(first.line()) == first
    expected = json.loads(line)
    expected.pop("key_of_the_future", None)
    assert json.loads(first.line()) == expected


TRIAL = json.loads(GOLDEN.read_text().splitlines()[0])


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "null",
        "[1, 2]",
        '"text"',
        json.dumps(TRIAL | {"v": 2}),
        json.dumps({k: v for k, v in TRIAL.items() if k != "config"}),
        json.dumps(TRIAL | {"config": 3}),
        json.dumps(TRIAL | {"status": "exploded"}),
        json.dumps(TRIAL | {"costs_s": None}),
        json.dumps(TRIAL | {"costs_s": []}),
        json.dumps(TRIAL | {"costs_s": [float("nan")]}),
        json.dumps(TRIAL | {"costs_s": [-1.0]}),
        json.dumps(TRIAL | {"target": {"arch": "x86_64"}}),
        json.dumps(TRIAL)[:-20],
        json.dumps(TRIAL | {"seed": float("inf")}),
        json.dumps(TRIAL | {"costs_s": [10**400]}),
        json.dumps(TRIAL | {"target": TRIAL["target"] | {"features": [["avx2"]]}}),
        json.dumps(TRIAL | {"workload": TRIAL["workload"] | {"n": 10**400}}),
        json.dumps(TRIAL | {"config": {"split": [1, 10**400]}}),
        json.dumps(
            {k: v for k, v in TRIAL.items() if k != "status"} | {"done": None, "cost_s": 1, "default_s": 1, "trials": 1e999}
        ),
        "[" * 100_000,
        '{"v":1,"workload":' + "[" * 100_000,
    ],
)
def test_unreadable_or_newer_lines_are_none(text):
    assert parse(text) is None


def test_skipped_lines_are_counted_and_the_rest_is_used(tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_bytes(b'{"v":99,"new":"thing"}\n\xff\xfe garbage\n\n' + GOLDEN.read_bytes() + b'{"v":1,"torn')
    records = Records.load([log])
    assert len(records.lines) == 4 and records.skipped == 3
    assert "3 log lines skipped" in records.summary()
