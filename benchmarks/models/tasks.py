"""What every framework trains: the batch, the optimizer and the sizes of each model. NumPy alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

Batch = tuple[np.ndarray, np.ndarray]
IGNORED = -100
"""A target that counts for nothing, PyTorch's ``ignore_index``."""


@dataclass(frozen=True)
class Task:
    """``draw`` makes the batch: inputs, then class numbers (int64). ``optimizer`` is a class of ``optim``, with its options."""

    about: str
    draw: Callable[[np.random.Generator], Batch]
    optimizer: str = "SGD"
    options: Mapping[str, Any] = field(default_factory=lambda: {"lr": 0.01})

    def batch(self) -> Batch:
        """The one batch of every step, the same in every process."""
        return self.draw(np.random.default_rng(0))


def _pictures(*shape: int) -> Callable[[np.random.Generator], Batch]:
    """Noise with ten classes."""
    return lambda rng: (rng.standard_normal(shape, dtype=np.float32), rng.integers(0, 10, shape[0]))


def _masked_words(rng: np.random.Generator) -> Batch:
    """8 x 128 tokens below 8,192; 15 in 100 are to be guessed."""
    words = rng.integers(0, 8192, (8, 128))
    hidden = rng.random(words.shape) < 0.15
    return np.where(hidden, 0, words), np.where(hidden, words, IGNORED).ravel()


def _next_words(rng: np.random.Generator) -> Batch:
    """8 x 128 tokens below 4,096 and the token after each."""
    words = rng.integers(0, 4096, (8, 129))
    return words[:, :-1].copy(), words[:, 1:].ravel()


TASKS: dict[str, Task] = {
    "mlp": Task("784-512-512-10, batch 128", _pictures(128, 784)),
    "cnn": Task("conv 32, conv 64 (3 x 3), one linear layer, 28 x 28, batch 64", _pictures(64, 1, 28, 28)),
    "lenet": Task(
        "conv 32, conv 64 (3 x 3), linear 128 and 10, 28 x 28, batch 64",
        _pictures(64, 1, 28, 28),
        options={"lr": 0.01, "momentum": 0.9},
    ),
    "resnet18": Task(
        "CIFAR form, batch norm, 32 x 32, batch 16",
        _pictures(16, 3, 32, 32),
        options={"lr": 0.01, "momentum": 0.9, "weight_decay": 5e-4},
    ),
    "bert_mini": Task("4 layers, 256 wide, 4 heads, 8 x 128 of 8,192 tokens", _masked_words, "AdamW", {"lr": 1e-4}),
    "gpt_nano": Task("6 layers, 192 wide, 6 heads, causal, 8 x 128 of 4,096 tokens", _next_words, "AdamW", {"lr": 3e-4}),
    "lstm": Task("64 -> 128, 50 steps, batch 32", _pictures(32, 50, 64), "Adam", {"lr": 1e-3}),
}


def save_weights(path: Path, weights: Mapping[str, np.ndarray]) -> None:
    """Write initial parameters and buffers by PyTorch's names."""
    save_file(dict(weights), path)


def load_weights(path: Path) -> dict[str, np.ndarray]:
    """The inverse of ``save_weights``."""
    return dict(load_file(path))
