"""Whole models: loss and every gradient against PyTorch, through the project's own libraries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilegrad._base.tvm import relax
from tilegrad.relax_ext.driver import compile_graphs
from tilegrad.relax_ext.gradient import grad
from tilegrad.relax_ext.graph import Graph, GraphBuilder

torch = pytest.importorskip("torch")
R, NN, TF = relax.op, relax.op.nn, torch.nn.functional


class Model:
    """Parameters by name, and the loss of both worlds as functions of them and of the data."""

    def __init__(self, params: dict[str, tuple[int, ...]], data: dict[str, np.ndarray]) -> None:
        rng = np.random.default_rng(0)
        self.params = {k: (rng.standard_normal(s) * 0.4 + (k.startswith("gamma"))).astype("float32") for k, s in params.items()}
        self.data = data

    def ours(self, b: GraphBuilder, v: dict[str, relax.Var]) -> relax.Expr:
        """The loss in Relax."""
        raise NotImplementedError

    def theirs(self, v: dict[str, Any]) -> Any:
        """The loss in PyTorch."""
        raise NotImplementedError

    def graph(self) -> Graph:
        """Loss and gradients."""
        b = GraphBuilder()
        v = {k: b.input(k, a.shape, str(a.dtype)) for k, a in {**self.data, **self.params}.items()}
        loss = b.emit(self.ours(b, v))
        b.output("loss", loss)
        for name, g in zip(self.params, grad(b, loss, [v[k] for k in self.params]), strict=True):
            b.output(f"d_{name}", g)
        return b.finish()


def cross_entropy(b: GraphBuilder, logits: relax.Expr, y: relax.Var) -> relax.Expr:
    """Mean over the batch."""
    return NN.nll_loss(b.emit(NN.log_softmax(logits)), y, reduction="mean")


class Cnn(Model):
    """Convolution, batch norm in training, relu, overlapping max pool, strided convolution, average pool, linear."""

    def __init__(self) -> None:
        rng = np.random.default_rng(1)
        super().__init__(
            {"w1": (6, 3, 3, 3), "gamma": (6,), "beta": (6,), "w2": (8, 3, 3, 3), "w3": (5, 8), "b3": (5,)},
            {"x": rng.standard_normal((4, 3, 12, 12)).astype("float32"), "y": np.array([0, 4, 2, 2])},
        )

    def ours(self, b: GraphBuilder, v: dict[str, relax.Var]) -> relax.Expr:
        h = NN.conv2d(v["x"], v["w1"], padding=1)
        mean, var = relax.const(np.zeros(6), "float32"), relax.const(np.ones(6), "float32")
        h = relax.TupleGetItem(b.emit(NN.batch_norm(h, v["gamma"], v["beta"], mean, var, 1, 1e-5, training=True)), 0)
        h = NN.max_pool2d(NN.relu(h), (3, 3), (2, 2), (1, 1))
        h = NN.conv2d(h, v["w2"], strides=(2, 2), padding=1, groups=2)
        h = R.mean(NN.silu(h), [2, 3])
        return cross_entropy(b, R.add(R.matmul(h, R.permute_dims(v["w3"])), v["b3"]), v["y"])

    def theirs(self, v: dict[str, Any]) -> Any:
        h = TF.conv2d(v["x"], v["w1"], padding=1)
        h = TF.batch_norm(h, torch.zeros(6), torch.ones(6), v["gamma"], v["beta"], True)
        h = TF.max_pool2d(torch.relu(h), 3, 2, 1)
        h = TF.silu(TF.conv2d(h, v["w2"], stride=2, padding=1, groups=2)).mean((2, 3))
        return TF.cross_entropy(TF.linear(h, v["w3"], v["b3"]), v["y"])


class Transformer(Model):
    """Embedding, causal attention, layer norm, gelu, residuals, tied output weights."""

    def __init__(self) -> None:
        shapes = {
            "e": (11, 8),
            "wq": (8, 8),
            "wk": (8, 8),
            "wv": (8, 8),
            "gamma": (8,),
            "beta": (8,),
            "w1": (16, 8),
            "w2": (8, 16),
        }
        rng = np.random.default_rng(2)
        super().__init__(shapes, {"x": rng.integers(0, 11, (2, 6)), "y": rng.integers(0, 11, (12,))})

    def ours(self, b: GraphBuilder, v: dict[str, relax.Var]) -> relax.Expr:
        def linear(x: relax.Expr, w: str) -> relax.Expr:
            return R.matmul(x, R.permute_dims(v[w]))

        h = b.emit(R.take(v["e"], v["x"], 0, "wrap"))
        q, k, u = (R.reshape(linear(h, w), (2, 6, 2, 4)) for w in ("wq", "wk", "wv"))
        h = b.emit(R.add(h, R.reshape(NN.attention(q, k, u, causal_mask="TopLeft"), (2, 6, 8))))
        n = NN.layer_norm(h, v["gamma"], v["beta"], [-1], 1e-5)
        h = R.add(h, linear(NN.gelu(linear(n, "w1")), "w2"))
        return cross_entropy(b, R.reshape(linear(h, "e"), (12, 11)), v["y"])

    def theirs(self, v: dict[str, Any]) -> Any:
        h = TF.embedding(v["x"], v["e"])
        q, k, u = (TF.linear(h, v[w]).reshape(2, 6, 2, 4).transpose(1, 2) for w in ("wq", "wk", "wv"))
        h = h + TF.scaled_dot_product_attention(q, k, u, is_causal=True).transpose(1, 2).reshape(2, 6, 8)
        n = TF.layer_norm(h, (8,), v["gamma"], v["beta"])
        h = h + TF.linear(TF.gelu(TF.linear(n, v["w1"])), v["w2"])
        return TF.cross_entropy(TF.linear(h, v["e"]).reshape(12, 11), v["y"])


class Recurrent(Model):
    """Four steps of a long short-term memory cell, and a smooth L1 loss."""

    def __init__(self) -> None:
        rng = np.random.default_rng(3)
        data = {"x": rng.standard_normal((4, 3, 5)).astype("float32"), "y": rng.standard_normal((3, 6)).astype("float32")}
        super().__init__({"wi": (24, 5), "wh": (24, 6), "b": (24,)}, data)

    def ours(self, b: GraphBuilder, v: dict[str, relax.Var]) -> relax.Expr:
        h = c = relax.const(np.zeros((3, 6)), "float32")
        for t in range(4):
            x = R.reshape(R.strided_slice(v["x"], [0], [t], [t + 1]), (3, 5))
            z = R.add(R.add(R.matmul(x, R.permute_dims(v["wi"])), R.matmul(h, R.permute_dims(v["wh"]))), v["b"])
            gates = b.emit(R.split(z, 4, 1))
            i, f, g, o = (relax.TupleGetItem(gates, k) for k in range(4))
            c = b.emit(R.add(R.multiply(R.sigmoid(f), c), R.multiply(R.sigmoid(i), R.tanh(g))))
            h = b.emit(R.multiply(R.sigmoid(o), R.tanh(c)))
        d = b.emit(R.abs(R.subtract(h, v["y"])))
        half, one = relax.const(0.5, "float32"), relax.const(1.0, "float32")
        return R.mean(R.where(R.less(d, one), R.multiply(half, R.multiply(d, d)), R.subtract(d, half)))

    def theirs(self, v: dict[str, Any]) -> Any:
        h = c = torch.zeros(3, 6)
        for t in range(4):
            i, f, g, o = (TF.linear(v["x"][t], v["wi"], v["b"]) + TF.linear(h, v["wh"])).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        return TF.smooth_l1_loss(h, v["y"])


MODELS: dict[str, Callable[[], Model]] = {"cnn": Cnn, "transformer": Transformer, "recurrent": Recurrent}


@pytest.mark.parametrize("name", ["cnn", *(pytest.param(m, marks=pytest.mark.long) for m in ("transformer", "recurrent"))])
def test_loss_and_gradients_equal_pytorchs(name: str) -> None:
    model = MODELS[name]()
    found = compile_graphs({"step": model.graph()}, logs=[]).context(2).run("step", {**model.data, **model.params})
    tensors = {k: torch.tensor(a) for k, a in model.data.items()} | {
        k: torch.tensor(a, requires_grad=True) for k, a in model.params.items()
    }
    loss = model.theirs(tensors)
    loss.backward()
    np.testing.assert_allclose(found["loss"], loss.item(), rtol=1e-5)
    for k in model.params:
        expected = tensors[k].grad.numpy()
        np.testing.assert_allclose(found[f"d_{k}"], expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max(), err_msg=k)
