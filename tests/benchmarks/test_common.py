"""The harness: processes of their own, a missing peer is named, ratios mean what they say. No timings are asserted."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.common import Arena, Contestant, Missing, Result, take_turn

HERE = "tests.benchmarks.test_common"


def noted(path: str, fail: str = "") -> Callable[[], None]:
    """A contestant that writes down where and how it ran."""
    if fail == "missing":
        raise Missing("peer is not installed")
    if fail == "import":
        import no_such_package  # type: ignore[import-not-found] # noqa: F401
    if fail == "crash":
        os._exit(7)
    facts = {k: os.environ.get(k) for k in ("OMP_NUM_THREADS", "OPENBLAS_CORETYPE", "OWN")} | {"pid": os.getpid()}
    Path(path).write_text(json.dumps(facts))
    print("a contestant may print")
    return lambda: time.sleep(0.001)


def test_race(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Generic")
    a, b = tmp_path / "a", tmp_path / "b"
    contestants = [
        Contestant("a", f"{HERE}:noted", {"path": str(a)}, {"OWN": "1"}),
        Contestant("b", f"{HERE}:noted", {"path": str(b)}),
        Contestant("c", f"{HERE}:noted", {"path": "", "fail": "missing"}),
        Contestant("d", f"{HERE}:noted", {"path": "", "fail": "import"}),
    ]
    with Arena(contestants, threads=3) as arena:
        result = arena.race(rounds=2, turn_s=0.01)
    assert {n: len(s) for n, s in result.seconds.items()} == {"a": 2, "b": 2}
    assert all(s >= 0.001 for s in (*result.seconds["a"], *result.seconds["b"]))
    assert result.peak_mb["a"] > 1
    assert arena.missing == {"c": "peer is not installed", "d": "No module named 'no_such_package'"}
    facts_a, facts_b = json.loads(a.read_text()), json.loads(b.read_text())
    assert len({facts_a["pid"], facts_b["pid"], os.getpid()}) == 3
    assert (facts_a["OMP_NUM_THREADS"], facts_a["OPENBLAS_CORETYPE"], facts_a["OWN"], facts_b["OWN"]) == ("3", None, "1", None)


def sleeper() -> Callable[..., Callable[[], None]]:
    """A contestant that serves many units."""
    return lambda seconds: lambda: time.sleep(seconds)


def test_many_units_from_one_process() -> None:
    with Arena([Contestant("a", f"{HERE}:sleeper", many=True)], threads=1) as arena:
        fast, slow = (arena.race(rounds=1, turn_s=0.01, unit={"seconds": s}).seconds["a"][0] for s in (0.001, 0.02))
    assert 0.001 <= fast < slow and slow >= 0.02


def test_a_contestant_that_dies_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="'x' ended with status 7"):
        Arena([Contestant("x", f"{HERE}:noted", {"path": "", "fail": "crash"})], threads=1)


def test_a_ratio_above_one_means_faster() -> None:
    result = Result({"ours": [1.0, 2.0, 1.0], "peer": [2.0, 8.0, 1.5], "slow": [9.0, 9.0, 9.0]}, {})
    assert result.ratio("ours", "peer") == 2.0  # of 2, 4, 1.5
    assert result.ms["ours"] == 1000.0
    assert result.best(["peer", "slow", "absent"]) == "peer"
    assert result.best(["absent"]) is None
    assert result.spread("ours") == 1.0


def test_a_turn_counts_calls_rightly() -> None:
    calls: list[float] = []
    seconds = take_turn(lambda: calls.append(time.sleep(0.002) or 0.0), 0.02)  # type: ignore[func-returns-value]
    assert len(calls) >= 4
    assert seconds >= 0.002
