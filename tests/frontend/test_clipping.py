"""Training steps whose gradients are clipped by their global norm, against PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tilegrad as tg


def perceptron(lib: Any) -> Any:
    n = lib.nn
    return n.Sequential(n.Linear(12, 40), n.ReLU(), n.Linear(40, 33), n.LayerNorm(33), n.Linear(33, 7))


def clipped(optimizer: str, max_norm: float, **options: Any) -> tuple[Any, Any, Any]:
    """(the compiled step, its model, PyTorch's model with the same parameters)."""
    torch.manual_seed(0)
    theirs, ours = perceptron(torch), perceptron(tg)
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        p.assign_(q.detach().numpy())
    x, y = batch(0)
    step = tg.compile_step(
        ours, tg.nn.functional.cross_entropy, getattr(tg.optim, optimizer)(ours.parameters(), **options), (x, y),
        logs=[], num_threads=2, before_update=lambda ps: tg.optim.clip_grad_norm_(ps, max_norm),
    )  # fmt: skip
    return step, ours, theirs


def batch(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return 3 * rng.standard_normal((16, 12), dtype=np.float32), rng.integers(0, 7, 16)


OPTIMIZERS = {
    "SGD": dict(lr=0.1, momentum=0.9, nesterov=True),
    "Adam": dict(lr=0.01, weight_decay=0.01),
    "AdamW": dict(lr=0.01, weight_decay=0.1, amsgrad=True),
    "RMSprop": dict(lr=0.003, momentum=0.5, centered=True),
    "Adagrad": dict(lr=0.05, lr_decay=0.1),
}


EVERY_RUN = ("SGD", "AdamW")
"""With velocity, with moments and a maximum; clipping is the same for all."""


@pytest.mark.parametrize("name", [n if n in EVERY_RUN else pytest.param(n, marks=pytest.mark.long) for n in OPTIMIZERS])
def test_twenty_clipped_steps_are_pytorchs(name: str) -> None:
    step, ours, theirs = clipped(name, 0.5, **OPTIMIZERS[name])
    optimizer = getattr(torch.optim, name)(theirs.parameters(), **OPTIMIZERS[name])
    for seed in range(20):
        x, y = batch(seed)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(theirs(torch.tensor(x)), torch.tensor(y))
        loss.backward()
        assert torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.5) > 0.5
        optimizer.step()
        assert float(step(x, y)) == pytest.approx(loss.item(), rel=2e-4)
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        np.testing.assert_allclose(p.numpy(), q.detach().numpy(), rtol=2e-3, atol=2e-4)
