"""Common architectures in plain PyTorch, from the papers, with a size that tests can choose."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class MLP(nn.Module):
    def __init__(self, sizes: tuple[int, ...] = (12, 32, 16, 5)) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for a, b in zip(sizes, sizes[1:], strict=False):
            layers += [nn.Linear(a, b), nn.ReLU()]
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class CNN(nn.Module):
    def __init__(self, width: int = 8, classes: int = 5) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1, bias=False), nn.BatchNorm2d(2 * width), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
        )  # fmt: skip
        self.head = nn.Linear(8 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).flatten(1))


class _BasicBlock(nn.Module):
    def __init__(self, inside: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inside, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.bn2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        self.down: nn.Module = nn.Identity()
        if stride != 1 or inside != out:
            self.down = nn.Sequential(nn.Conv2d(inside, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.down(x))


class ResNet(nn.Module):
    """ResNet-18 with ``width=64, blocks=(2, 2, 2, 2), classes=1000``."""

    def __init__(self, width: int = 64, blocks: tuple[int, ...] = (2, 2, 2, 2), classes: int = 1000) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width)
        stages: list[nn.Module] = []
        inside = width
        for i, n in enumerate(blocks):
            for j in range(n):
                out = width * 2**i
                stages.append(_BasicBlock(inside, out, 2 if i and not j else 1))
                inside = out
        self.stages, self.fc = nn.Sequential(*stages), nn.Linear(inside, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(self.stages(x), 1), 1))


class SqueezeExcite(nn.Module):
    def __init__(self, channels: int, squeezed: int, act: Callable[[Tensor], Tensor], gate: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(channels, squeezed, 1), nn.Conv2d(squeezed, channels, 1)
        self.act, self.gate = act, gate

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(self.up(self.act(self.down(x.mean((2, 3), keepdim=True)))))


class _InvertedResidual(nn.Module):
    def __init__(
        self,
        inside: int,
        expanded: int,
        out: int,
        kernel: int,
        stride: int,
        act: type[nn.Module],
        squeeze: nn.Module | None,
        eps: float,
    ) -> None:
        super().__init__()
        self.residual = stride == 1 and inside == out
        layers: list[nn.Module] = []
        if expanded != inside:
            layers += [nn.Conv2d(inside, expanded, 1, bias=False), nn.BatchNorm2d(expanded, eps), act()]
        depthwise = nn.Conv2d(expanded, expanded, kernel, stride, kernel // 2, groups=expanded, bias=False)
        layers += [depthwise, nn.BatchNorm2d(expanded, eps), act()]
        layers += [squeeze] if squeeze is not None else []
        layers += [nn.Conv2d(expanded, out, 1, bias=False), nn.BatchNorm2d(out, eps)]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layers(x)
        return x + y if self.residual else y


_V3_LARGE = (  # kernel, expanded, out, squeeze, hard swish, stride
    (3, 16, 16, False, False, 1), (3, 64, 24, False, False, 2), (3, 72, 24, False, False, 1), (5, 72, 40, True, False, 2),
    (5, 120, 40, True, False, 1), (5, 120, 40, True, False, 1), (3, 240, 80, False, True, 2), (3, 200, 80, False, True, 1),
    (3, 184, 80, False, True, 1), (3, 184, 80, False, True, 1), (3, 480, 112, True, True, 1), (3, 672, 112, True, True, 1),
    (5, 672, 160, True, True, 2), (5, 960, 160, True, True, 1), (5, 960, 160, True, True, 1),
)  # fmt: skip


class MobileNetV3(nn.Module):
    """MobileNet-v3-large with all ``blocks``."""

    def __init__(self, blocks: tuple[int, ...] = tuple(range(15)), head: int = 1280, classes: int = 1000) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16, 1e-3), nn.Hardswish()]
        inside = expanded = 16
        for i in blocks:
            kernel, expanded, out, squeeze, swish, stride = _V3_LARGE[i]
            se = SqueezeExcite(expanded, max(8, expanded // 4 // 8 * 8), F.relu, F.hardsigmoid) if squeeze else None
            layers.append(_InvertedResidual(inside, expanded, out, kernel, stride, nn.Hardswish if swish else nn.ReLU, se, 1e-3))
            inside = out
        layers += [nn.Conv2d(inside, expanded, 1, bias=False), nn.BatchNorm2d(expanded, 1e-3), nn.Hardswish()]
        self.features = nn.Sequential(*layers)
        self.head = nn.Sequential(nn.Linear(expanded, head), nn.Hardswish(), nn.Dropout(0.0), nn.Linear(head, classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).mean((2, 3)))


_B0 = (
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)


class EfficientNet(nn.Module):
    """EfficientNet-b0 with all ``stages``: (expansion, kernel, stride, channels, repeats)."""

    def __init__(self, stages: tuple[tuple[int, int, int, int, int], ...] = _B0, head: int = 1280, classes: int = 1000) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.SiLU()]
        inside = 32
        for expansion, kernel, stride, out, repeats in stages:
            for i in range(repeats):
                se = SqueezeExcite(inside * expansion, inside // 4, F.silu, torch.sigmoid)
                layers.append(_InvertedResidual(inside, inside * expansion, out, kernel, 1 if i else stride, nn.SiLU, se, 1e-5))
                inside = out
        self.features = nn.Sequential(*layers, nn.Conv2d(inside, head, 1, bias=False), nn.BatchNorm2d(head), nn.SiLU())
        self.classifier = nn.Linear(head, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(F.adaptive_avg_pool2d(self.features(x), 1).flatten(1))


class Encoder(nn.Module):
    """PyTorch's own transformer encoder over tokens, with a padding mask."""

    def __init__(self, vocabulary: int = 30, width: int = 16, heads: int = 2, layers: int = 2, classes: int = 5) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width, padding_idx=0)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, activation="gelu")
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        padding = tokens == 0
        h = self.encoder(self.embed(tokens), src_key_padding_mask=padding)
        kept = (~padding).unsqueeze(-1).to(h.dtype)
        return self.out((h * kept).sum(1) / kept.sum(1))


class _GPTBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln1, self.ln2, self.heads = nn.LayerNorm(width), nn.LayerNorm(width), heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.heads, c // self.heads).transpose(1, 2) for y in self.qkv(self.ln1(x)).split(c, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    """GPT-2 small with ``vocabulary=50257, width=768, heads=12, layers=12, context=1024``; weights of both ends tied."""

    def __init__(self, vocabulary: int = 40, width: int = 16, heads: int = 2, layers: int = 2, context: int = 16) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(_GPTBlock(width, heads) for _ in range(layers))
        self.ln_f, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln_f(x))


class LSTM(nn.Module):
    def __init__(
        self, vocabulary: int = 20, width: int = 12, layers: int = 2, classes: int = 5, bidirectional: bool = True
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True, bidirectional=bidirectional)
        self.out = nn.Linear(width * (1 + bidirectional), classes)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.lstm(self.embed(tokens))[0][:, -1])


class ViT(nn.Module):
    """ViT-b-16 with ``image=224, patch=16, width=768, heads=12, layers=12, classes=1000``."""

    def __init__(
        self, image: int = 16, patch: int = 4, width: int = 16, heads: int = 2, layers: int = 2, classes: int = 5
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.position = nn.Parameter(torch.randn(1, (image // patch) ** 2 + 1, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, F.gelu, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.position
        return self.head(self.encoder(x)[:, 0])


def _double(inside: int, out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inside, out, 3, padding=1),
        nn.GroupNorm(4, out),
        nn.ReLU(),
        nn.Conv2d(out, out, 3, padding=1),
        nn.GroupNorm(4, out),
        nn.ReLU(),
    )


class UNet(nn.Module):
    """A U-Net: ``learned`` up-sampling by transposed convolution at the first level, bilinear above."""

    def __init__(self, width: int = 8, depth: int = 2, classes: int = 3) -> None:
        super().__init__()
        widths = [width * 2**i for i in range(depth + 1)]
        self.down = nn.ModuleList(_double(a, b) for a, b in zip([3, *widths], widths, strict=False))
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(b, a, 2, 2)
            if i == 0
            else nn.Sequential(nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(b, a, 1))
            for i, (a, b) in enumerate(zip(widths, widths[1:], strict=False))
        )
        self.merge = nn.ModuleList(_double(2 * a, a) for a in widths[:-1])
        self.out = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for i, block in enumerate(self.down):
            x = block(F.max_pool2d(x, 2) if i else x)
            kept.append(x)
        for i in reversed(range(len(self.up))):
            x = self.merge[i](torch.cat([kept[i], self.up[i](x)], 1))
        return self.out(x)


def images(batch: int, size: int, channels: int = 3) -> Tensor:
    """Seeded images."""
    return torch.randn(batch, channels, size, size, generator=torch.Generator().manual_seed(2))


def tokens(batch: int, length: int, vocabulary: int) -> Tensor:
    """Seeded tokens, some of them the padding token 0 at the end."""
    t = torch.randint(1, vocabulary, (batch, length), generator=torch.Generator().manual_seed(3))
    t[0, -max(1, math.ceil(length / 4)) :] = 0
    return t
