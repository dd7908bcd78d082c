"""The demo's parts: the data is real, balanced and always the same; curves draw what they are given."""

from __future__ import annotations

import numpy as np
import pytest

from tilegrad.demo import curves, digits

pytest.importorskip("sklearn")


def test_the_split_is_stratified_disjoint_and_fixed() -> None:
    train, test = digits.load()
    assert (train.images.shape, test.images.shape) == ((1437, 1, 8, 8), (360, 1, 8, 8))
    assert train.images.dtype == np.float32 and train.images.min() == 0 and train.images.max() == 1
    shares = [np.bincount(d.labels, minlength=10) / len(d.labels) for d in (train, test)]
    np.testing.assert_allclose(*shares, atol=0.003)
    again = digits.load()[1]
    np.testing.assert_array_equal(test.images, again.images)


def test_batches_are_seeded_and_cover_an_epoch() -> None:
    train, _ = digits.load()
    first, second = (list(digits.batches(train, 2)) for _ in range(2))
    assert len(first) == 2 * digits.steps_per_epoch(train) == 44
    for (x, y), (x2, y2) in zip(first, second, strict=True):
        assert x.shape == (64, 1, 8, 8) and x.flags.c_contiguous and x.dtype == np.float32
        np.testing.assert_array_equal(x, x2)
        np.testing.assert_array_equal(y, y2)
    other, _ = next(digits.batches(train, 1, seed=1))
    assert not np.array_equal(other, first[0][0])


def test_images_move_by_at_most_a_pixel(rng: np.random.Generator) -> None:
    images = rng.random((200, 1, 8, 8), dtype=np.float32) + 1
    moved = digits._moved(images, rng)
    where = []
    for before, after in zip(images[:, 0], moved[:, 0], strict=True):
        padded = np.pad(before, 1)
        found = [(a, b) for a in range(3) for b in range(3) if np.array_equal(padded[a : a + 8, b : b + 8], after)]
        assert len(found) == 1
        where += found
    assert 0.3 < where.count((1, 1)) / 200 < 0.8
    assert len(set(where)) == 9


def test_the_learning_rate_falls_to_zero() -> None:
    assert [digits.learning_rate(0.2, d) for d in (0, 0.5, 1)] == [0.2, 0.1, 0.0]


def test_curves_share_one_logarithmic_scale() -> None:
    lines = curves.draw({"a": [1.0, 0.1, 0.01], "long": [0.1, 0.1, 0.1]})
    assert lines == ["a     █▅▁  1.0000 -> 0.01000", "long  ▅▅▅  0.1000 -> 0.10000"]


def test_an_epochs_loss_is_its_mean() -> None:
    assert curves.per_epoch([1.0, 3.0, 5.0, 7.0, 9.0], 2) == [2.0, 6.0]
