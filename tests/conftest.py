"""What every test gets: a cache and a log of its own, fixed seeds; and, under CI, no silent skips."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

PLATFORM = "platform:"
"""A skip whose reason starts with this is allowed under CI: the machine cannot do what the test needs."""


def pytest_configure(config: pytest.Config) -> None:
    """A person's cache and tuning log neither help nor hurt a test, and stay as they are."""
    folder = Path(tempfile.mkdtemp(prefix="tilegrad-tests-"))
    config.stash[_FOLDER] = folder
    os.environ["TILEGRAD_CACHE_DIR"] = str(folder / "cache")
    os.environ["TILEGRAD_LOG"] = str(folder / "tuning.jsonl")


_FOLDER = pytest.StashKey[Path]()


def pytest_unconfigure(config: pytest.Config) -> None:
    import shutil

    shutil.rmtree(config.stash[_FOLDER], ignore_errors=True)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    np.random.seed(0)


@pytest.fixture
def rng() -> np.random.Generator:
    """A generator with a fixed seed."""
    return np.random.default_rng(0)


def _forbid_skip(report: Any) -> None:
    """Under CI a skip is a failure unless its reason is the platform: a comparison that did not run proves nothing."""
    if os.environ.get("CI", "") in ("", "0", "false") or not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
    if PLATFORM not in reason:
        report.outcome = "failed"
        report.longrepr = f"{reason}\nCI allows no skip, except with a reason that starts with {PLATFORM!r}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[Any]:
    report = yield
    _forbid_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[Any]:
    report = yield
    _forbid_skip(report)
    return report
