"""Training steps in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn import functional as F

from benchmarks.models.nets import NETS
from benchmarks.models.tasks import TASKS, load_weights


def training(model: str, weights: Path, threads: int, backend: str | None, dtype: str = "float32") -> Callable[[], float]:
    """A step from the given initial weights, by the fused optimizer; ``backend`` is torch.compile's, None for eager. ``dtype`` is
    that of weights and floating-point inputs."""
    torch.set_num_threads(threads)
    task, net, kind = TASKS[model], NETS[model](torch.nn), getattr(torch, dtype)
    net.load_state_dict({name: torch.from_numpy(value) for name, value in load_weights(weights).items()})
    net = net.to(kind)
    optimizer = getattr(torch.optim, task.optimizer)(net.parameters(), fused=True, **task.options)
    x, y = map(torch.from_numpy, task.batch())
    x = x.to(kind) if x.is_floating_point() else x

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(net(x), y)

    loss_of = torch.compile(loss_of, backend=backend) if backend else loss_of

    def step() -> float:
        optimizer.zero_grad()
        loss = loss_of(x, y)
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return step
