"""What a person and a program see while tuning."""

import io
import json

from tilegrad.tuner.events import Event, Row
from tilegrad.tuner.progress import JsonLines, Lines, LiveTable, listener

ROW = Row(0, "matmul m8", 3, 5, 1, 2e-3, 2e-3, 1e-3, 52.19, 22.37, 0.5, None)
EVENTS = [
    Event("start", rows=(Row(0, "matmul m8", 3),)),
    Event("notice", text="xgboost is not installed"),
    Event("trial", ROW, status="ok", elapsed_s=1.5, eta_s=7.0),
    Event("trial", ROW, status="crash", elapsed_s=1.6),
    Event("task", Row(0, "matmul m8", 3, 5, 1, 2e-3, 2e-3, 1e-3, 52.19, 22.37, 0.5, "trials")),
    Event("end", rows=(ROW,)),
]


def shown(make):
    stream = io.StringIO()
    show = make(stream)
    for event in EVENTS:
        show(event)
    return stream.getvalue()


def test_row_arithmetic():
    assert ROW.of_default == 2.0 and ROW.saved_ms == 3.0
    assert Row(0, "x", 1).of_default is None and Row(0, "x", 1).saved_ms == 0


def test_plain_lines_when_piped():
    lines = shown(Lines).splitlines()
    assert lines[0] == "1 tasks" and lines[1] == "xgboost is not installed"
    assert lines[2] == (
        "[Task 1/1] matmul m8: 22.4/52.2 GFLOP/s, 200 % of default, 50 % of roofline, 5 trials, 1 errors, saves 3.000 ms"
        " | 2 s, 7 s left"
    )
    assert lines[3].startswith("[Task 1/1] matmul m8 finished (trials)") and len(lines) == 4, "no line without news"
    assert isinstance(listener("auto", io.StringIO()), Lines)


def test_json_lines():
    events = [json.loads(x) for x in shown(JsonLines).splitlines()]
    assert [e["event"] for e in events] == [e.kind for e in EVENTS]
    assert events[2]["task"]["saved_ms"] == 3.0 and events[2]["eta_s"] == 7.0 and events[3]["status"] == "crash"


def test_live_table(monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    text = shown(LiveTable)
    for part in ("matmul m8", "22.4/52.2", "200 %", "50 %", "1.000 ms", "saves 3.000 ms per run"):
        assert part in text
