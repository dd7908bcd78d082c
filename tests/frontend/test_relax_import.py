"""from_relax: anybody's Relax function, with kernels, symbolic extents and several results."""

import numpy as np
import pytest

import tilegrad as tg
from tilegrad._base.tvm import relax, te, tvm


def affine():
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((3, 4), "float32"))
    w = relax.Var("w.weight", relax.TensorType((4, 2), "float32"))
    with bb.function("main", [x, w]):
        with bb.dataflow():
            y = bb.emit(relax.op.matmul(x, w))
            parts = bb.emit(relax.op.split(y, 2, axis=1))
            out = bb.emit_output(relax.Tuple([bb.emit(relax.TupleGetItem(parts, 0)), bb.emit(relax.op.nn.relu(y))]))
        bb.emit_func_output(out)
    return bb.get()


def test_values_and_gradients():
    rng = np.random.default_rng(0)
    W, X = rng.standard_normal((4, 2)).astype("float32"), rng.standard_normal((3, 4)).astype("float32")
    model = tg.from_relax(affine(), {"w.weight": W})
    assert [n for n, _ in model.named_parameters()] == ["w.weight"]
    first, positive = model(X)
    (first.sum() + positive.sum()).backward()
    y = X @ W
    expected = X.T @ ((y > 0) + np.float32([[1, 0]]))
    np.testing.assert_allclose(first.numpy(), y[:, :1], rtol=1e-5)
    np.testing.assert_allclose(positive.numpy(), np.maximum(y, 0), rtol=1e-5, atol=1e-6)
    (p,) = model.parameters()
    np.testing.assert_allclose(p.grad.numpy(), expected, rtol=1e-5, atol=1e-6)


def tripled(rows):
    """x + 3 x[0], summed over the rows, with a kernel of the user's own."""
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((rows, 2), "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            y = bb.emit_te(lambda a: te.compute((2,), lambda j: a[0, j] * 3.0, name="triple"), x)
            out = bb.emit_output(bb.emit(relax.op.sum(relax.op.add(x, y), 0)))
        bb.emit_func_output(out)
    return bb.get()


def test_kernels_and_symbolic_extents():
    a = np.arange(6.0, dtype="float32").reshape(3, 2)
    np.testing.assert_allclose(tg.from_relax(tripled(3))(a).numpy(), (a + 3 * a[0]).sum(0))
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((tvm.tirx.Var("n", "int64"), 2), "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            out = bb.emit_output(relax.op.sum(x, 0))
        bb.emit_func_output(out)
    model = tg.from_relax(bb.get())
    for rows in (1, 3):
        np.testing.assert_allclose(model(a[:rows]).numpy(), a[:rows].sum(0))
    with pytest.raises(tg.errors.UsageError, match="input 'x'"):
        model(np.zeros((3, 3), "float32"))
    with pytest.raises(tg.errors.ModelImportError, match="symbolic extents"):
        tg.from_relax(tripled(tvm.tirx.Var("n", "int64")))(a).numpy()


def test_refusals():
    with pytest.raises(tg.errors.UsageError, match="IRModule"):
        tg.from_relax(42)
    with pytest.raises(tg.errors.UsageError, match="unknown"):
        tg.from_relax(affine(), {"v": np.zeros(3)})
    with pytest.raises(tg.errors.UsageError, match="1 inputs|2 inputs"):
        tg.from_relax(affine())(np.zeros((3, 4), "float32"))
