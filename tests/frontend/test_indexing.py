"""Indexing and item assignment against NumPy: random keys of every kind, all of one draw in one library."""

from __future__ import annotations

import numpy as np
import pytest

import tilegrad as tg

SHAPE = (4, 5, 6)


def random_key(rng):
    """Up to three entries of any kind with None and ... between them; index arrays share a shape."""
    axes = int(rng.integers(0, len(SHAPE) + 1))
    shape = [(2,), (3, 1), ()][rng.integers(3)]
    key, axis = [], 0
    for _ in range(axes):
        n = SHAPE[axis]
        kind = rng.integers(6)
        if kind == 0:
            key.append(int(rng.integers(-n, n)))
        elif kind == 1:
            start, stop = (None if rng.random() < 0.3 else int(v) for v in rng.integers(-n - 2, n + 3, 2))
            key.append(slice(start, stop, [None, 1, 2, -1, -2][rng.integers(5)]))
        elif kind == 2:
            key.append(rng.integers(-n, n, shape))
        elif kind == 3:
            key.append(rng.integers(-n, n, 2).tolist() if shape == (2,) else slice(None))
        elif kind == 4:
            mask = np.zeros(n, bool)
            mask[rng.choice(n, 2, replace=False)] = True
            key.append(mask if shape != (3, 1) else slice(None))
        else:
            key += [None, slice(None)]
        axis += 1
    if rng.random() < 0.3:
        key.insert(int(rng.integers(len(key) + 1)), Ellipsis)
    return tuple(key)


def usable(a, key):
    """Whether NumPy takes the key and it selects something."""
    try:
        return a[key].size > 0
    except IndexError:
        return False


@pytest.mark.parametrize("seed", range(3))
def test_reading(seed):
    rng = np.random.default_rng(seed)
    a = rng.standard_normal(SHAPE).astype("float32")
    keys = [k for k in (random_key(rng) for _ in range(60)) if usable(a, k)][:30]
    got = tg.compile(lambda x: [x[k] for k in keys], [a])(a)
    for k, value in zip(keys, got, strict=True):
        np.testing.assert_array_equal(value, a[k], err_msg=repr(k))


@pytest.mark.parametrize("seed", range(2))
def test_writing_and_gradients(seed):
    """Keys without repeated elements, where the order of writing would matter."""
    rng = np.random.default_rng(100 + seed)
    a = rng.standard_normal(SHAPE).astype("float32")
    places = np.arange(a.size).reshape(SHAPE)
    keys = [k for k in (random_key(rng) for _ in range(90)) if usable(a, k)]
    keys = [k for k in keys if np.unique(places[k]).size == places[k].size][:15]

    def written(x):
        results = []
        for k in keys:
            y = x + 0.0
            y[k] = -1.0
            results += [y, tg.grad(lambda v, k=k: (v[k] * 3.0).sum())(x)]
        return results

    got = tg.compile(written, [a])(a)
    for k, value, gradient in zip(keys, got[::2], got[1::2], strict=True):
        want, slope = a.copy(), np.zeros_like(a)
        want[k], slope[k] = -1.0, 3.0
        np.testing.assert_array_equal(value, want, err_msg=repr(k))
        np.testing.assert_array_equal(gradient, slope, err_msg=repr(k))
