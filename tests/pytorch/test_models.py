"""Architectures people bring: one training step equal to PyTorch's (loss, output, all gradients, all buffers)."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

# PyTorch warns about its own internals.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")

from tests.pytorch import models as m  # noqa: E402
from tests.pytorch.training import assert_equal_steps  # noqa: E402

SMALL = {
    "mlp": (lambda: m.MLP(), lambda: torch.randn(6, 12), 5),
    "cnn": (lambda: m.CNN(), lambda: m.images(4, 8), 5),
    "resnet": (lambda: m.ResNet(8, (1, 1), 5), lambda: m.images(2, 32), 5),
    "mobilenet_v3": (lambda: m.MobileNetV3((0, 1, 3), 16, 5), lambda: m.images(2, 32), 5),
    "efficientnet": (lambda: m.EfficientNet(((1, 3, 1, 16, 1), (6, 3, 2, 24, 2)), 32, 5), lambda: m.images(2, 32), 5),
    "encoder": (lambda: m.Encoder(), lambda: m.tokens(3, 7, 30), 5),
    "lstm": (lambda: m.LSTM(layers=1), lambda: m.tokens(3, 4, 20), 5),
    "vit": (lambda: m.ViT(), lambda: m.images(2, 16), 5),
}


def seeded(make, inputs, classes):
    torch.manual_seed(0)
    model, x = make(), inputs()
    return model, x, torch.randint(0, classes, (x.shape[0],))


# The rest of the small ones take a minute together: in make test-long.
QUICK = ("mlp", "cnn")


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.long) for n in SMALL])
def test_training_step_equals_pytorch(name):
    assert_equal_steps(*seeded(*SMALL[name]))


@pytest.mark.long
def test_gpt_blocks_with_tied_weights_and_causal_attention():
    torch.manual_seed(0)
    tokens = m.tokens(2, 8, 40)
    assert_equal_steps(m.GPT(), tokens, tokens.roll(-1, 1))


@pytest.mark.long
def test_unet_with_group_norm_and_both_kinds_of_upsampling():
    torch.manual_seed(0)
    x = m.images(2, 16)
    assert_equal_steps(m.UNet(), x, torch.randint(0, 3, (2, 16, 16)))


FULL = {
    "resnet18": (lambda: m.ResNet(), lambda: m.images(4, 224), 1000),
    "mobilenet_v3": (lambda: m.MobileNetV3(), lambda: m.images(4, 224), 1000),
    "efficientnet_b0": (lambda: m.EfficientNet(), lambda: m.images(2, 224), 1000),
    "vit_b_16": (lambda: m.ViT(224, 16, 768, 12, 12, 1000), lambda: m.images(1, 224), 1000),
}
KINKED = ("resnet18", "mobilenet_v3")
"""In float32 an input of a ReLU near its kink falls on the other side now and then, and batch norm spreads the difference:
their gradients are compared in float64."""


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", FULL)
def test_full_size_training_step_equals_pytorch(name):
    assert_equal_steps(*seeded(*FULL[name]), of_gradients=0.3 if name in KINKED else 1e-3)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", KINKED)
def test_full_size_training_step_equals_pytorch_in_float64(name):
    assert_equal_steps(*seeded(*FULL[name]), dtype=torch.float64, tolerance=1e-7)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_gpt2_small_training_step_equals_pytorch():
    torch.manual_seed(0)
    tokens = m.tokens(1, 64, 50257)
    assert_equal_steps(m.GPT(50257, 768, 12, 12, 64), tokens, tokens.roll(-1, 1))


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_full_size_unet_training_step_equals_pytorch():
    torch.manual_seed(0)
    assert_equal_steps(m.UNet(32, 4), m.images(1, 128), torch.randint(0, 3, (1, 128, 128)))
