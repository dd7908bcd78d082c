"""The page's kernel with a template of its own: values, gradients, what the builder and the tuner make of it."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import tilegrad as tg
from tilegrad.schedules import OwnTemplate
from tilegrad.tuner.api import tasks_in

PAGE = Path(__file__).parent.parent.parent / "docs" / "frontend.md"
X, Y = (np.random.default_rng(s).standard_normal((n, 5)).astype("float32") for s, n in ((0, 24), (1, 32)))


@pytest.fixture
def page(tmp_path, monkeypatch):
    """The page's module, from a file, as a user has it."""
    (code,) = re.findall(r"```python\n# distances.py\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "distances.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{PAGE.parent.parent}")
    yield importlib.import_module("distances")
    del sys.modules["distances"]


def closed(x, y):
    d = x[:, None].astype("float64") - y[None]
    return (d * d).sum(2), 2 * d.sum(1), -2 * d.sum(0)


def test_values_and_gradients(page):
    value, gx, gy = closed(X, Y)
    np.testing.assert_allclose(page.squared_distances(tg.tensor(X), tg.tensor(Y)).numpy(), value, rtol=1e-4, atol=1e-5)
    grads = tg.grad(lambda x, y: page.squared_distances(x, y).sum(), argnums=(0, 1))(tg.tensor(X), tg.tensor(Y))
    for ours, want in zip(grads, (gx, gy), strict=True):
        np.testing.assert_allclose(ours.numpy(), want, rtol=1e-4, atol=1e-4)


def test_its_template_takes_it_and_the_tuner_searches_its_space(page, tmp_path):
    compiled = tg.compile(lambda x, y: tg.exp(-page.squared_distances(x * 2.0, y)), [X, Y])
    (task,) = [t for t in tasks_in(compiled) if t.template.name == "distances/1"]
    assert task.workload.json() == {"op": "distances", "shapes": [[24, 5], [32, 5], [24, 32]], "dtypes": ["float32"] * 3}
    assert len(task.template.space(task.workload, task.target)) == 6
    log = tmp_path / "log.jsonl"
    report = tg.tune([task], trials=3, log=log)
    assert '"distances/1"' in log.read_text() and report is not None
    tuned = tg.compile(lambda x, y: tg.exp(-page.squared_distances(x * 2.0, y)), [X, Y], logs=[log])
    np.testing.assert_allclose(tuned(X, Y), np.exp(-closed(2 * X, Y)[0]), rtol=1e-3, atol=1e-6)


def test_a_template_that_other_processes_cannot_find_is_refused(page):
    class Local(page.Tiled):
        pass

    for template in (Local(), "distances/1"):
        with pytest.raises(tg.errors.UsageError, match="OwnTemplate"):
            tg.call_te(page.distances, tg.tensor(X), tg.tensor(Y), template=template)
    assert issubclass(page.Tiled, OwnTemplate)
