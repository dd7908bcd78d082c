"""Significance and confidence of measured times, against closed forms."""

import numpy as np
import pytest

from tilegrad.tuner import stats


def test_spread_is_the_standard_deviation_of_normal_samples():
    x = np.random.default_rng(0).normal(1.0, 0.05, 4001)
    assert stats.spread(x.tolist()) == pytest.approx(0.05, rel=0.05)


def test_one_outlier_does_not_move_the_spread():
    assert stats.spread([1.0, 1.0, 1.0, 1.0, 9.0]) == stats.LEAST_SPREAD


def test_standard_error_of_the_median():
    rng = np.random.default_rng(0)
    medians = np.median(rng.normal(1.0, 0.05, (3000, 25)), axis=1)
    predicted = np.mean([stats.standard_error(rng.normal(1.0, 0.05, 25).tolist()) for _ in range(300)])
    assert predicted == pytest.approx(medians.std(), rel=0.1)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([1.0] * 3, [1.1] * 3, True),
        ([1.1] * 3, [1.0] * 3, False),
        ([1.0] * 3, [1.001] * 3, False),
        ([0.8, 1.0, 1.2], [0.9, 1.1, 1.3], False),
        ([1.0], [1.2], True),
    ],
)
def test_faster(a, b, expected):
    assert stats.faster(a, b) is expected


def test_a_margin_can_be_asked_for():
    assert stats.faster([1.0] * 9, [1.05] * 9) and not stats.faster([1.0] * 9, [1.05] * 9, margin=0.1)


def test_false_alarms_are_rare():
    """Of equal distributions about 2.5 % look faster by chance; small samples are allowed 8 %."""
    rng = np.random.default_rng(1)
    hits = sum(stats.faster(rng.normal(1, 0.02, 9).tolist(), rng.normal(1, 0.02, 9).tolist()) for _ in range(500))
    assert hits / 500 < 0.08


def test_settled():
    assert not stats.settled([1.0, 1.0], 0.02)
    assert stats.settled([1.0, 1.0, 1.0], 0.02)
    assert not stats.settled([0.8, 1.0, 1.2], 0.02)
