"""Every example runs, in a process of its own, and says what its page promises."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.fixture(scope="module", params=EXAMPLES, ids=lambda p: p.stem)
def example(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """(name, what it printed)."""
    path: Path = request.param
    folder = tmp_path_factory.mktemp(path.stem)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"}
    done = subprocess.run([sys.executable, path], cwd=folder, env=env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return path.stem, done.stdout


def test_it_runs_and_prints(example: tuple[str, str]) -> None:
    assert example[1].strip()


def test_below_the_framework_shows_every_stage() -> None:
    """The stages are there, in order: graph, backward graph, kernel before and after scheduling, numbers."""
    path = ROOT / "examples" / "below_the_framework.py"
    assert path in EXAMPLES
