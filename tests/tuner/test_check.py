"""Inputs and tolerances: right results pass in every order of summation, wrong ones do not."""

import numpy as np
import pytest

from tilegrad.tuner.check import difference, inputs, widen


def test_inputs_are_seeded_and_of_the_asked_kind():
    described = [((3, 4), "float32"), ((), "float32"), ((5,), "int64"), ((2, 2), "bool"), ((6,), "bfloat16"), ((4,), "float16")]
    first, again = inputs(described), inputs(described)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert [x.dtype.name for x in first] == ["float32", "float32", "int64", "bool", "uint16", "float16"]
    assert [x.shape for x in first] == [s for s, _ in described]
    assert 0.1 <= float(first[1]) < 1 and set(first[2].tolist()) <= {0, 1}
    assert first[0].min() < 0 <= 0.1 <= inputs(described, positive=True)[0].min()


def test_indices_stay_inside_an_axis_of_one():
    assert not inputs([((1, 4), "float32"), ((50,), "int32")])[1].any()


def test_bfloat16_is_widened_from_its_bits():
    assert widen(np.array([0x3F80, 0xC000], np.uint16), "bfloat16").tolist() == [1.0, -2.0]


@pytest.mark.parametrize("k", [10, 1000, 100_000])
def test_any_order_of_summation_passes(k, rng):
    x = rng.uniform(-1, 1, (8, k)).astype(np.float32)
    exact = x.astype(np.float64).sum(1)
    assert difference(x.sum(1), exact, "float32") is None
    assert difference(np.add.accumulate(x, axis=1)[:, -1], exact, "float32") is None


def test_one_wrong_element_in_many_is_found(rng):
    exact = rng.normal(size=100_000)
    got = exact.astype(np.float32)
    assert difference(got, exact, "float32") is None
    got[777] += 0.01
    assert "1 of 100000 elements differ" in difference(got, exact, "float32")


@pytest.mark.parametrize(
    ("got", "expected", "same"),
    [
        ([1, np.nan], [1, np.nan], True),
        ([1, 2], [1, np.nan], False),
        ([np.nan, 1], [1, np.nan], False),
        ([np.inf, 1], [np.inf, 1], True),
        ([np.inf, 1], [-np.inf, 1], False),
        ([np.inf, 1], [2, 1], False),
        ([0, 0], [0, 0], True),
    ],
)
def test_values_that_are_no_numbers(got, expected, same):
    assert (difference(np.array(got, np.float32), np.array(expected, np.float64), "float32") is None) is same


def test_discrete_results_may_differ_rarely():
    x = np.zeros(10_000, bool)
    y = x.copy()
    y[3] = True
    assert difference(x, y, "bool") is None
    y[:100] = True
    assert difference(x, y, "bool") == "1.0% of the elements differ"
