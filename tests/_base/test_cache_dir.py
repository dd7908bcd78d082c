"""The cache folder: compilers run in other folders, so its name must not depend on the current one."""

from pathlib import Path

import pytest

from tilegrad._base import settings


def test_a_relative_folder_becomes_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TILEGRAD_CACHE_DIR", "cache")
    assert settings.cache_dir() == tmp_path / "cache"
