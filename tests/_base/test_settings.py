"""Environment variables: read at call time, validated."""

import os
from pathlib import Path

import pytest

from tilegrad._base import settings
from tilegrad._base.errors import UsageError


def test_folders_follow_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILEGRAD_CACHE_DIR", str(tmp_path / "c"))
    monkeypatch.setenv("TILEGRAD_LOG", str(tmp_path / "log.jsonl"))
    assert settings.cache_dir() == tmp_path / "c"
    assert settings.user_log() == tmp_path / "log.jsonl"
    monkeypatch.delenv("TILEGRAD_CACHE_DIR")
    monkeypatch.delenv("TILEGRAD_LOG")
    assert "tilegrad" in settings.cache_dir().parts
    assert settings.user_log().parts[-2:] == ("tilegrad", "tuning.jsonl")


def test_threads_argument_beats_environment_beats_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TILEGRAD_NUM_THREADS", raising=False)
    assert settings.num_threads() == settings.usable_cores()
    monkeypatch.setenv("TILEGRAD_NUM_THREADS", "3")
    assert settings.num_threads() == 3
    assert settings.num_threads(5) == 5


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="platform: no affinity masks here")
def test_usable_cores_is_the_affinity_mask() -> None:
    mask = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(mask)})
        assert settings.usable_cores() == 1
    finally:
        os.sched_setaffinity(0, mask)


@pytest.mark.parametrize("bad", ["0", "-2", "two", "1.5"])
def test_nonsense_threads_are_a_usage_error(monkeypatch: pytest.MonkeyPatch, bad: str) -> None:
    monkeypatch.setenv("TILEGRAD_NUM_THREADS", bad)
    with pytest.raises(UsageError, match=r"num_threads: got .*, expected a whole number of at least 1"):
        settings.num_threads()


def test_zero_threads_requested_is_an_error() -> None:
    with pytest.raises(UsageError, match="at least 1"):
        settings.num_threads(0)
