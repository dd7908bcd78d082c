"""The data: 1,797 real handwritten digits of 8 x 8 pixels, split 80/20 by class, and the order of the batches."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tilegrad._base.errors import UsageError

BATCH = 64


@dataclass(frozen=True)
class Split:
    """Images float32[n, 1, 8, 8] in 0..1, labels int64[n]."""

    images: np.ndarray
    labels: np.ndarray


def load() -> tuple[Split, Split]:
    """(training, test): 1,437 and 360 images, the same every time. Raises UsageError without scikit-learn."""
    try:
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split
    except ImportError as e:
        raise UsageError("tilegrad demo", "no scikit-learn", hint="pip install 'tilegrad[demo]'") from e
    digits = load_digits()
    images = (digits.images / 16).astype(np.float32)[:, None]
    labels = digits.target.astype(np.int64)
    train_x, test_x, train_y, test_y = train_test_split(images, labels, test_size=0.2, random_state=0, stratify=labels)
    return Split(np.ascontiguousarray(train_x), train_y), Split(np.ascontiguousarray(test_x), test_y)


def batches(data: Split, epochs: int, seed: int = 0) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Shuffled whole batches; the few images left over in an epoch get their turn in another.

    Half of the images are moved by up to one pixel, which is worth a percent of accuracy on so few.
    """
    rng = np.random.default_rng(seed)
    for _ in range(epochs):
        order = rng.permutation(len(data.labels))
        for start in range(0, len(order) - BATCH + 1, BATCH):
            chosen = order[start : start + BATCH]
            yield _moved(data.images[chosen], rng), data.labels[chosen]


def some_batches(data: Split, count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """The first ``count`` batches of another shuffle."""
    return list(itertools.islice(batches(data, 1 + count // steps_per_epoch(data), seed=1), count))


def _moved(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    n, _, height, width = images.shape
    padded = np.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1)))
    shift = np.where(rng.random((n, 1)) < 0.5, rng.integers(0, 3, (n, 2)), 1)
    rows, columns = shift[:, :1] + np.arange(height), shift[:, 1:] + np.arange(width)
    return np.ascontiguousarray(
        padded[np.arange(n)[:, None, None], :, rows[:, :, None], columns[:, None, :]].transpose(0, 3, 1, 2)
    )


def learning_rate(initial: float, done: float) -> float:
    """Falls linearly to zero as ``done`` goes from 0 to 1. A hyperparameter is an input: changing it compiles nothing."""
    return initial * (1 - done)


def steps_per_epoch(data: Split) -> int:
    """Whole batches in one pass over the data."""
    return len(data.labels) // BATCH
