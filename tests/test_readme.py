"""The code blocks of the README and of the pages run as they stand; the README's numbers equal NumPy's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.M | re.S)


def run(page: Path) -> dict[str, Any]:
    """Execute a page's Python blocks in order, in one namespace; a traceback names the page."""
    names: dict[str, Any] = {}
    for code in blocks(page):
        exec(compile(code, str(page), "exec"), names)  # the pages of this very repository
    return names


def numpys_loss(x: np.ndarray, labels: np.ndarray, w: np.ndarray, lr: float, steps: int) -> float:
    """Softmax regression by gradient descent in float64: the loss of the last step, before its update."""
    onehot = np.eye(w.shape[1])[labels]
    loss = np.nan
    for _ in range(steps):
        y = x @ w
        p = np.exp(y - y.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        loss = float(-np.log((p * onehot).sum(1)).mean())
        w = w - lr * x.T @ (p - onehot) / len(x)
    return loss


def test_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    names = run(ROOT / "README.md")
    expected = numpys_loss(names["x"].numpy().astype(np.float64), names["labels"].numpy(), np.zeros((20, 5)), 0.5, 20)
    assert names["loss"].item() == pytest.approx(expected, rel=1e-5)
    assert float(capsys.readouterr().out) == names["loss"].item()


def test_the_readmes_example_has_fifteen_lines() -> None:
    (code,) = blocks(ROOT / "README.md")
    assert len(code.strip().splitlines()) <= 15


def test_getting_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    run(ROOT / "docs" / "getting-started.md")
    losses = [float(line) for line in capsys.readouterr().out.splitlines() if re.fullmatch(r"[\d.]+", line)]
    assert len(losses) == 5
    assert losses == sorted(losses, reverse=True)


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")), *sorted(ROOT.glob("*/README.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert link.startswith("https://") or (page.parent / link).exists(), link
