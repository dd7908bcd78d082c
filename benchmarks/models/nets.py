"""The models, written once for any framework with PyTorch's layers: ``nn`` is ``torch.nn`` or ``tilegrad.nn``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def mlp(nn: Any) -> Any:
    """Three linear layers."""
    return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))


def _convolutions(nn: Any) -> list[Any]:
    first = [nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return [*first, nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]


def cnn(nn: Any) -> Any:
    """Two convolutions and a linear layer."""
    return nn.Sequential(*_convolutions(nn), nn.Linear(64 * 7 * 7, 10))


def lenet(nn: Any) -> Any:
    """Two convolutions and two linear layers."""
    return nn.Sequential(*_convolutions(nn), nn.Linear(64 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, 10))


def _residual(nn: Any, inputs: int, outputs: int, stride: int) -> Any:
    """A block of ResNet."""

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

        def forward(self, x: Any) -> Any:
            """The block on [N, C, H, W]."""
            y = nn.functional.relu(self.bn1(self.conv1(x)))
            return nn.functional.relu(self.bn2(self.conv2(y)) + self.shortcut(x))

    return Residual(inputs, outputs, stride)


def resnet18(nn: Any) -> Any:
    """He et al. 2015, the form for 32 x 32 pictures: no pooling before the first block."""
    stem = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    sizes = [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]
    blocks = [_residual(nn, *size) for a, b, stride in sizes for size in ((a, b, stride), (b, b, 1))]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def bert_mini(nn: Any) -> Any:
    """An encoder like BERT's."""

    class BertMini(nn.Module):
        """A post-norm encoder and a masked language model's head."""

        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(8192, 256), nn.Embedding(128, 256)
            self.norm = nn.LayerNorm(256)
            layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, activation="gelu", batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 4)
            self.head = nn.Linear(256, 8192)

        def forward(self, words: Any) -> Any:
            """[N, L] tokens to [N L, vocabulary]."""
            x = self.norm(self.words(words) + self.places.weight)
            return self.head(self.encoder(x)).flatten(0, 1)

    return BertMini()


def _causal_block(nn: Any, width: int, heads: int) -> Any:
    """A block of GPT."""

    class CausalBlock(nn.Module):
        """Attention and a two-layer network, each after a norm and beside a shortcut."""

        def __init__(self, width: int, heads: int) -> None:
            super().__init__()
            self.heads = heads
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            """The block on [N, L, width]."""
            n, length, width = x.shape
            parts = self.qkv(self.norm1(x)).reshape(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            seen = nn.functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
            x = x + self.out(seen.permute(0, 2, 1, 3).reshape(n, length, width))
            return x + self.down(nn.functional.gelu(self.up(self.norm2(x)), approximate="tanh"))

    return CausalBlock(width, heads)


def gpt_nano(nn: Any) -> Any:
    """A decoder like GPT-2's."""

    class GptNano(nn.Module):
        """A pre-norm decoder whose head is the embedding."""

        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(4096, 192), nn.Embedding(128, 192)
            self.blocks = nn.Sequential(*(_causal_block(nn, 192, 6) for _ in range(6)))
            self.norm = nn.LayerNorm(192)
            self.head = nn.Linear(192, 4096, bias=False)
            self.head.weight = self.words.weight

        def forward(self, words: Any) -> Any:
            """[N, L] tokens to [N L, vocabulary]."""
            x = self.blocks(self.words(words) + self.places.weight)
            return self.head(self.norm(x)).flatten(0, 1)

    return GptNano()


def lstm(nn: Any) -> Any:
    """A classifier of sequences."""

    class Lstm(nn.Module):
        """A recurrent layer; its last output is classified."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.LSTM(64, 128, batch_first=True)
            self.head = nn.Linear(128, 10)

        def forward(self, x: Any) -> Any:
            """[N, L, 64] to [N, 10]."""
            out, _ = self.layer(x)
            return self.head(out[:, -1])

    return Lstm()


NETS: dict[str, Callable[[Any], Any]] = {
    "mlp": mlp, "cnn": cnn, "lenet": lenet, "resnet18": resnet18, "bert_mini": bert_mini, "gpt_nano": gpt_nano, "lstm": lstm,
}  # fmt: skip
