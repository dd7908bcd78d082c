"""The two networks, written as a user would."""

from __future__ import annotations

from typing import Any

import tilegrad as tg
from tilegrad import nn


def build(name: str, seed: int = 0) -> Any:
    """``mlp`` (64-256-128-10) or ``cnn`` (two 3 x 3 convolutions, a pool, two linear layers), initialised from ``seed``."""
    tg.manual_seed(seed)
    if name == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))
    convolutions = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10))
