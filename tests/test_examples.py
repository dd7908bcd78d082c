"""Every example runs, in a process of its own, and says what its page promises."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
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
    name, text = example
    assert text.strip()
    if name in CHECKS:
        CHECKS[name](text)


def below_the_framework(text: str) -> None:
    """Every stage is there, in order, and the numbers are NumPy's."""
    stages = [
        "R.matmul(x, W",
        "the program",
        "@T.prim_func",
        "T.grid(",
        "scheduled by contraction/",
        "T.parallel(",
        "the numbers",
    ]
    at = [text.index(s) for s in stages]
    assert at == sorted(at)
    assert "permute_dims" in text and "new.W->W" in text, "no backward graph with its update"

    rng = np.random.default_rng(0)
    x, labels = rng.standard_normal((128, 784), dtype=np.float32), rng.integers(0, 16, 128)
    w = np.float32(0.01) * rng.standard_normal((784, 16), dtype=np.float32)
    y = x.astype(np.float64) @ w
    log_p = y - np.log(np.exp(y).sum(1, keepdims=True))
    loss = float(re.findall(r"loss of the two lines +([\d.]+)", text)[0])
    steps = [float(v) for v in re.findall(r"five whole steps ([\d., ]+)", text)[0].split(", ")]
    assert loss == steps[0] == pytest.approx(-log_p[np.arange(128), labels].mean(), abs=2e-6)
    assert steps == sorted(steps, reverse=True)
    assert re.search(r"\d+ outputs agree", text)


CHECKS = {"below_the_framework": below_the_framework}


def test_every_example_with_a_check_is_there() -> None:
    assert set(CHECKS) <= {p.stem for p in EXAMPLES}
