"""Recomputation as users meet it: a transformer's memory, its gradients, and dropout's mask."""

from __future__ import annotations

import numpy as np
import pytest

import tilegrad as tg
from tilegrad import nn
from tilegrad.frontend.gradients import to_arrays
from tilegrad.relax_ext.report import memory

LAYERS, BATCH, LENGTH, WIDTH, HEADS = 6, 2, 64, 32, 4


class Encoder(nn.Module):
    """Six layers, each computed again for the backward pass or not."""

    def __init__(self, recompute: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.recompute = recompute
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout, "gelu", batch_first=True) for _ in range(LAYERS)
        )

    def forward(self, x: tg.Tensor) -> tg.Tensor:
        for layer in self.layers:
            x = tg.checkpoint(layer, x) if self.recompute else layer(x)
        return x


def trained(recompute: bool) -> tuple[tg.TrainStep, list[np.ndarray]]:
    """(the step, parameters after one step of gradient descent)."""
    tg.manual_seed(0)
    model = Encoder(recompute)
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((BATCH, LENGTH, WIDTH)).astype("float32") for _ in range(2))
    step = tg.compile_step(model, nn.functional.mse_loss, tg.optim.SGD(model.parameters(), lr=1.0), [x, y])
    step(x, y)
    return step, [p.numpy().copy() for p in model.parameters()]


def test_six_layers_in_sixty_percent_of_the_memory_with_the_same_gradients() -> None:
    (plain, want), (less, got) = trained(False), trained(True)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    before, after = memory(plain.programs["step"]), memory(less.programs["step"])
    assert after.arena_bytes <= 0.6 * before.arena_bytes, (before, after)
    assert after.lower_bound <= 0.6 * before.lower_bound, (before, after)


def test_dropout_drops_the_same_elements_again() -> None:
    """If the recomputed mask were another one, the gradient would not be the forward pass's slope."""
    x = np.linspace(1.0, 2.0, 64)

    def gradient(recompute: bool) -> list[np.ndarray]:
        tg.manual_seed(5)
        drop = nn.Dropout(0.5)

        def f(v: tg.Tensor) -> tg.Tensor:
            return tg.exp(drop(v * v)) * v

        def total(v: tg.Tensor) -> tuple[tg.Tensor, tg.Tensor]:
            y = tg.checkpoint(f, v) if recompute else f(v)
            return y.sum(), y

        (_, y), g = tg.value_and_grad(total, has_aux=True)(tg.tensor(x))
        return to_arrays([y, g])

    y, g = gradient(True)
    kept = ~np.isclose(y, x)  # a dropped element is e^0 v
    assert 10 < kept.sum() < 54
    np.testing.assert_allclose(y, np.where(kept, np.exp(2 * x * x), 1.0) * x, rtol=1e-12)
    np.testing.assert_allclose(g, np.where(kept, (1 + 4 * x * x) * np.exp(2 * x * x), 1.0), rtol=1e-12)
    for a, b in zip((y, g), gradient(False), strict=True):
        np.testing.assert_array_equal(np.isclose(a, b, rtol=1e-12), True)


@pytest.mark.parametrize("depth", [2, 3])
def test_checkpoints_nest(depth: int) -> None:
    w = np.random.default_rng(1).standard_normal((4, 4)) * 0.3
    x = np.random.default_rng(2).standard_normal((3, 4))

    def nested(v: tg.Tensor, m: tg.Tensor, level: int, wrap: bool) -> tg.Tensor:
        if level == 0:
            return tg.tanh(v @ m)
        inner = lambda u: tg.tanh(nested(u, m, level - 1, wrap) @ m)  # noqa: E731
        return tg.checkpoint(inner, v) if wrap else inner(v)

    def gradients(wrap: bool) -> list[np.ndarray]:
        f = lambda v, m: (nested(v, m, depth, wrap) ** 2).sum()  # noqa: E731
        return to_arrays(list(tg.grad(f, argnums=(0, 1))(tg.tensor(x), tg.tensor(w))))

    for a, b in zip(gradients(True), gradients(False), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
