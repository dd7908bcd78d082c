"""What ships: workloads that gain something, at a level's target. No timings."""

from __future__ import annotations

import pytest

from benchmarks import shipped_log
from tilegrad.tuning_logs import Record, Verdict

TARGET = {"arch": "x86_64", "features": ["avx2"], "threads": 2}


def tuned(m: int, cost_s: float, default_s: float | None) -> list[Record | Verdict]:
    """A trial and the verdict of one workload."""
    about = ("t/1", {"op": "o", "m": m}, TARGET, {"c": 1})
    return [Record(*about, "ok", (cost_s,)), Verdict(*about, cost_s, default_s, 1, "trials")]


def test_only_what_gains_ships() -> None:
    gains, ties, failed, short = tuned(1, 1.0, 1.04), tuned(2, 1.0, 1.02), tuned(3, 1.0, None), tuned(4, 5e-7, 1e-6)
    unfinished = [Record("t/1", {"op": "o", "m": 5}, TARGET, {"c": 1}, "ok", (1.0,))]
    assert shipped_log.worth([*ties, *gains, *failed, *short, *unfinished], 1.03) == gains


@pytest.mark.parametrize("level", shipped_log.LEVELS)
def test_a_level_is_this_machine_without_what_others_lack(level: str) -> None:
    target = shipped_log.target_of(level)
    assert target.threads == shipped_log.THREADS and ("avx512f" in target.features) <= (level == "avx512")
    assert shipped_log.log_of(level).name == f"x86_64_{level}.jsonl"
