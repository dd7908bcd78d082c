"""The models in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.models.tasks import TASKS, load_weights


def mlp() -> nn.Module:
    """Three linear layers."""
    return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))


def _convolutions() -> list[nn.Module]:
    first = [nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return [*first, nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]


def cnn() -> nn.Module:
    """Two convolutions and a linear layer."""
    return nn.Sequential(*_convolutions(), nn.Linear(64 * 7 * 7, 10))


def lenet() -> nn.Module:
    """Two convolutions and two linear layers."""
    return nn.Sequential(*_convolutions(), nn.Linear(64 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, 10))


class Residual(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The block on [N, C, H, W]."""
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


def resnet18() -> nn.Module:
    """He et al. 2015, the form for 32 x 32 pictures: no pooling before the first block."""
    stem = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    sizes = [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]
    blocks = [Residual(*size) for a, b, stride in sizes for size in ((a, b, stride), (b, b, 1))]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


class BertMini(nn.Module):
    """A post-norm encoder and a masked language model's head."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(8192, 256), nn.Embedding(128, 256)
        self.norm = nn.LayerNorm(256)
        layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 4)
        self.head = nn.Linear(256, 8192)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """[N, L] tokens to [N L, vocabulary]."""
        x = self.norm(self.words(words) + self.places.weight)
        return self.head(self.encoder(x)).flatten(0, 1)


class CausalBlock(nn.Module):
    """Attention and a two-layer network, each after a norm and beside a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The block on [N, L, width]."""
        n, length, width = x.shape
        parts = self.qkv(self.norm1(x)).reshape(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        x = x + self.out(seen.permute(0, 2, 1, 3).reshape(n, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GptNano(nn.Module):
    """A pre-norm decoder whose head is the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(4096, 192), nn.Embedding(128, 192)
        self.blocks = nn.Sequential(*(CausalBlock(192, 6) for _ in range(6)))
        self.norm = nn.LayerNorm(192)
        self.head = nn.Linear(192, 4096, bias=False)
        self.head.weight = self.words.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """[N, L] tokens to [N L, vocabulary]."""
        x = self.blocks(self.words(words) + self.places.weight)
        return self.head(self.norm(x)).flatten(0, 1)


class Lstm(nn.Module):
    """A recurrent layer; its last output is classified."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(64, 128, batch_first=True)
        self.head = nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, L, 64] to [N, 10]."""
        out, _ = self.layer(x)
        return self.head(out[:, -1])


NETS: dict[str, Callable[[], nn.Module]] = {
    "mlp": mlp, "cnn": cnn, "lenet": lenet, "resnet18": resnet18, "bert_mini": BertMini, "gpt_nano": GptNano, "lstm": Lstm,
}  # fmt: skip


def training(model: str, weights: Path, threads: int, backend: str | None) -> Callable[[], float]:
    """A step from the given initial weights, by the fused optimizer; ``backend`` is torch.compile's, None for eager."""
    torch.set_num_threads(threads)
    task, net = TASKS[model], NETS[model]()
    net.load_state_dict({name: torch.from_numpy(value) for name, value in load_weights(weights).items()})
    optimizer = getattr(torch.optim, task.optimizer)(net.parameters(), fused=True, **task.options)
    x, y = map(torch.from_numpy, task.batch())

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(net(x), y)

    loss_of = torch.compile(loss_of, backend=backend) if backend else loss_of

    def step() -> float:
        optimizer.zero_grad()
        loss = loss_of(x, y)
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return step
