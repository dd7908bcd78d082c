"""Contractions without rows, columns or terms: no elements, or sums of nothing, with whatever was fused to them."""

from __future__ import annotations

import numpy as np
import pytest

import tilegrad as tg
from tests.schedules.kernels import Kernel, tensor
from tilegrad._base.tvm import te
from tilegrad.schedules.te.matmul import matmul


@pytest.mark.parametrize("m, n, k", [(0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 3, 0), (0, 0, 0)])
def test_products_without_elements_or_terms(m, n, k):
    a, b = tensor(m, k, name="a"), tensor(k, n, name="b")
    c = matmul(a, b)
    run = Kernel([a, b], te.compute(c.shape, lambda *i: c(*i) + 1.5, name="add"))
    assert run.template.name != "opaque/1"
    got = run(np.zeros((m, k), "float32"), np.zeros((k, n), "float32"))
    np.testing.assert_array_equal(got, np.full((m, n), 1.5, "float32"))


@pytest.mark.parametrize("m, n, k", [(0, 3, 4), (3, 0, 4), (3, 4, 0)])
def test_gradients_of_products_without_elements_or_terms(m, n, k):
    x = tg.tensor(np.ones((m, k), "float32"), requires_grad=True)
    y = tg.tensor(np.ones((k, n), "float32"), requires_grad=True)
    (x @ y + 1.0).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), np.full((m, k), float(n)))
    np.testing.assert_array_equal(y.grad.numpy(), np.full((k, n), float(m)))


@pytest.mark.parametrize("queries, keys", [(0, 9), (9, 0)])
def test_attention_without_queries_or_keys(queries, keys):
    q, k, v = (tg.tensor(np.ones((2, n, 4), "float32")) for n in (queries, keys, keys))
    got = tg.nn.functional.scaled_dot_product_attention(q, k, v)
    np.testing.assert_array_equal(got.numpy(), np.full((2, queries, 4), float(keys > 0)))
