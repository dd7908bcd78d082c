"""Training steps in tilegrad."""

from __future__ import annotations

from typing import Any

from benchmarks.models.nets import NETS
from benchmarks.models.tasks import TASKS
from tilegrad import nn, optim
from tilegrad.frontend import init

F = nn.functional


def net_of(model: str) -> nn.Module:
    """The model with its initial weights."""
    net: nn.Module = NETS[model](nn)
    if model == "gpt_nano":  # the head is the embedding, whose own initial values are too large for it
        init.normal_(net.words.weight, std=0.02)  # type: ignore[attr-defined]
    return net


def compiled_step(model: str, net: nn.Module, logs: list[str] | None, threads: int, target: Any = "native") -> Any:
    """The whole step of ``net``."""
    import tilegrad as tg

    task = TASKS[model]
    optimizer = getattr(optim, task.optimizer)(net.parameters(), **task.options)
    return tg.compile_step(net, F.cross_entropy, optimizer, task.batch(), target=target, logs=logs, num_threads=threads)
