"""The float64 reference: sums of products by NumPy agree with plain loops, and both with PyTorch and NumPy alone."""

import numpy as np
import pytest

from tests.schedules.convolutions import kinds, torch
from tests.schedules.kernels import tensor
from tilegrad._base.tvm import te, tirx
from tilegrad.schedules.stages import create
from tilegrad.schedules.te.attention import attention
from tilegrad.schedules.te.matmul import matmul
from tilegrad.tuner import reference
from tilegrad.tuner.check import inputs
from tilegrad.tuner.products import Product

NEVER = 2**62


def turned(x):
    return te.compute((x.shape[1], x.shape[0]), lambda i, j: x[j, i], name="transpose")


def with_bias_and_relu():
    """Two results: the sum before relu, and after; the bias is scaled first."""
    a, b, bias = tensor(17, 33), tensor(33, 21, name="w"), tensor(21, name="bias")
    scaled, c = te.compute((21,), lambda j: bias[j] * 3.0, name="scaled"), matmul(a, b)
    added = te.compute((17, 21), lambda i, j: c[i, j] + scaled[j], name="add")
    return [a, b, bias], [added, te.compute((17, 21), lambda i, j: tirx.max(added[i, j], 0.0), name="relu")]


def two_products():
    """The second reads the first's result, after a function and turned."""
    a, b = tensor(18, 24), tensor(24, 30, name="w")
    first = matmul(a, b)
    curved = te.compute((18, 30), lambda i, j: tirx.tanh(first[i, j]), name="tanh")
    return [a, b], [matmul(turned(curved), a)]


def rows_of(a, b):
    k = te.reduce_axis((0, a.shape[1]), "k")
    return te.compute((a.shape[0], b.shape[0]), lambda i, j: te.sum(a[i, k] * b[j, k], axis=k), name="rows")


def plain(*shapes, make, dtype="float32"):
    args = [tensor(*s, dtype=dtype, name=f"x{i}") for i, s in enumerate(shapes)]
    return args, [make(*args)]


CASES = {
    "nn": (lambda: plain((17, 33), (33, 21), make=matmul), 1),
    "nt": (lambda: plain((17, 33), (21, 33), make=rows_of), 1),
    "tn": (lambda: plain((33, 17), (33, 21), make=lambda a, b: matmul(turned(a), b)), 1),
    "batched": (lambda: plain((2, 3, 17, 33), (3, 33, 21), make=matmul), 1),
    "int8": (lambda: plain((17, 33), (33, 21), make=matmul, dtype="int8"), 1),
    "int32": (lambda: plain((17, 33), (33, 21), make=matmul, dtype="int32"), 1),
    "float16": (lambda: plain((17, 33), (33, 21), make=matmul, dtype="float16"), 1),
    "bfloat16": (lambda: plain((17, 33), (33, 21), make=matmul, dtype="bfloat16"), 1),
    "epilogue": (with_bias_and_relu, 1),
    "two": (two_products, 2),
    "vector": (lambda: plain((33,), (33, 21), make=matmul), 0),
    "softmax": (lambda: plain((17, 33), make=lambda x: te.compute((17, 33), lambda i, j: tirx.exp(x[i, j]), name="exp")), 0),
}
CONVOLUTIONS = {
    "padded": ((2, 12, 9, 8), (20, 12, 3, 3), 1, 1, 1, 1),
    "strided": ((2, 12, 10, 9), (20, 12, 3, 3), 2, 1, 1, 1),
    "overhanging": ((2, 12, 11, 7), (20, 12, 2, 2), (3, 2), 0, 1, 1),
    "dilated": ((2, 12, 12, 12), (20, 12, 3, 3), 1, (2, 1), 2, 1),
    "grouped": ((3, 24, 8, 8), (40, 12, 3, 3), 1, 1, 1, 2),
    "line": ((3, 12, 25), (20, 12, 5), 2, 2, 1, 1),
}


def both(func, outputs, seed=0):
    """The results with every product by NumPy, and by plain loops alone; the inputs; how many products there were."""
    wide = reference.in_float64(func)
    described = [(tuple(int(d) for d in p.shape), str(p.dtype)) for p in wide.params]
    given = inputs(described[:-outputs], seed)
    arrays = [*given, *(np.full(s, 7).astype(d) for s, d in described[-outputs:])]
    steps = reference._steps(wide, 0)
    fast, slow = (reference.runner(wide, least)(arrays)[-outputs:] for least in (0, NEVER))
    return fast, slow, given, sum(isinstance(s, Product) for s in steps)


@pytest.mark.parametrize("name", CASES)
def test_products_agree_with_plain_loops(name):
    make, count = CASES[name]
    args, outs = make()
    fast, slow, _, products = both(create([*args, *outs]), len(outs))
    assert products == count
    for x, y in zip(fast, slow, strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("kind", ["forward", "by_data", "by_weight"])
def test_convolutions_agree_with_plain_loops_and_torch(kind, name):
    args, out, expected = kinds(*CONVOLUTIONS[name])[kind]
    (fast,), (slow,), given, products = both(create([*args, out]), 1)
    assert products == 1
    np.testing.assert_allclose(fast, slow, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(fast, expected(*map(torch.from_numpy, given)).numpy(), rtol=1e-12, atol=1e-12)


def test_attention_is_two_products_and_plain_loops():
    shape = (2, 3, 40, 16)
    args = [tensor(*shape, name=n) for n in "qkv"]
    outs = attention(*args, scale=0.25)
    fast, slow, given, products = both(create([*args, *outs]), len(outs))
    assert products == 2
    for x, y in zip(fast, slow, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-12)
    expected = torch.nn.functional.scaled_dot_product_attention(*map(torch.from_numpy, given), scale=0.25)
    np.testing.assert_allclose(fast[0], expected.numpy(), rtol=1e-12, atol=1e-12)


def test_large_products_are_numpys_without_being_asked():
    wide = reference.in_float64(create([a := tensor(512, 512), b := tensor(512, 512, name="w"), matmul(a, b)]))
    assert [type(s) for s in reference._steps(wide, reference.WORTH)] == [Product]
    x = np.random.default_rng(0).uniform(-1, 1, (2, 512, 512))
    got = reference.runner(wide)([*x, np.zeros((512, 512))])[-1]
    np.testing.assert_allclose(got, x[0] @ x[1], rtol=1e-12, atol=1e-12)


def test_integers_that_float64_cannot_hold_are_summed_as_integers():
    func = create([a := tensor(16, 16, dtype="int64"), b := tensor(16, 16, dtype="int64", name="w"), matmul(a, b)])
    x = np.full((16, 16), 2**28 + 1)
    got = reference.runner(func, 0)([x, x, np.zeros_like(x)])[-1]
    assert (got == 16 * (2**28 + 1) ** 2).all()
