"""checkpoint, custom_vjp and call_te: values, gradients, the program cache."""

import numpy as np
import pytest

import tilegrad as tg
from tests.frontend.many import virtual_machine
from tilegrad.frontend import evaluate

X = np.random.default_rng(0).standard_normal((3, 4))


@pytest.fixture
def vm():
    """Values by TVM's virtual machine: the recording is tested, not the kernels."""
    with virtual_machine():
        yield


def test_checkpoint_equals_the_plain_function():
    w = tg.tensor(np.ones((4, 4)) * 0.1, requires_grad=True)

    def f(x):
        h = tg.tanh(x @ w)
        return {"y": (h * h).sum(1), "h": h}

    def run(call):
        x = tg.tensor(X, requires_grad=True)
        out = call(x)
        w.grad = None
        (out["y"] * np.arange(3.0)).sum().backward()
        return [a.numpy() for a in (out["h"], x.grad, w.grad)]

    for ours, plain in zip(run(lambda x: tg.checkpoint(f, x)), run(f), strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-12)
    before = evaluate.compiles
    run(lambda x: tg.checkpoint(f, x))
    assert evaluate.compiles == before


def test_custom_vjp_replaces_the_gradient_to_any_order(vm):
    @tg.custom_vjp
    def clipped(x, scale):
        return x * scale

    @clipped.backward
    def _(inputs, outputs, cotangents):
        x, scale = inputs
        return tg.clip(cotangents[0] * scale, -1.0, 1.0) * x, None

    x, s = tg.tensor(X), tg.tensor(np.float64(3.0))
    gx, gs = tg.grad(lambda a, b: clipped(a, b).sum(), argnums=(0, 1))(x, s)
    np.testing.assert_allclose(gx.numpy(), X)  # min(3, 1) * x
    assert gs.item() == 0.0
    second = tg.grad(lambda a: tg.grad(lambda b: clipped(b, s).sum())(a).sum())(x)
    np.testing.assert_allclose(second.numpy(), np.ones_like(X))


def test_call_te(vm):
    def shifted(x, by):
        from tilegrad._base.tvm import te

        return te.compute(x.shape, lambda i, j: x[i, j] + by * (j % 2), name="shifted")

    def run():
        return tg.call_te(shifted, tg.tensor(X), by=2.5).numpy()

    np.testing.assert_allclose(run(), X + 2.5 * (np.arange(4) % 2))
    before = evaluate.compiles
    run()
    assert evaluate.compiles == before


def test_refusals():
    outside = tg.tensor(X, requires_grad=True)

    @tg.custom_vjp
    def f(x):
        return x * outside

    with pytest.raises(tg.errors.UsageError, match="no backward rule"):
        f(tg.tensor(X))
    f.backward(lambda i, o, c: c[0])
    with pytest.raises(tg.errors.UsageError, match="from outside the function"):
        f(tg.tensor(X))
    g = tg.custom_vjp(lambda x: x * 2)
    g.backward(lambda i, o, c: (c[0], c[0]))
    with pytest.raises(tg.errors.UsageError, match="2 gradients"):
        g(tg.tensor(X))
