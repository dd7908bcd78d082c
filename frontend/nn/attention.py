"""Multi-head attention and the transformer encoder, with PyTorch's names and defaults."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np

from tilegrad._base.errors import UsageError
from tilegrad.frontend import functions as F
from tilegrad.frontend import init
from tilegrad.frontend.apply import as_tensor
from tilegrad.frontend.arguments import check_all
from tilegrad.frontend.nn import functional as NF
from tilegrad.frontend.nn.layers import Linear, ModuleList
from tilegrad.frontend.nn.module import Module, Parameter
from tilegrad.frontend.nn.normalisation import Dropout, LayerNorm, dropout
from tilegrad.frontend.nn.scaled_dot_product import attention, attention_weights
from tilegrad.frontend.tensor import Tensor


class MultiheadAttention(Module):
    """Attention of several heads (Vaswani et al. 2017): query, key, value [length, batch, embedding], or batch first."""

    def __init__(
        self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True, batch_first: bool = False
    ) -> None:
        super().__init__()
        if embed_dim % num_heads:
            raise UsageError("MultiheadAttention, argument 'num_heads'", f"{num_heads} for {embed_dim}", "a divisor")
        self.embed_dim, self.num_heads, self.dropout, self.batch_first = embed_dim, num_heads, dropout, batch_first
        bound = math.sqrt(6 / (embed_dim + 3 * embed_dim))
        self.in_proj_weight = Parameter(init.generator().uniform(-bound, bound, (3 * embed_dim, embed_dim)).astype(np.float32))
        self.register_parameter("in_proj_bias", Parameter(np.zeros(3 * embed_dim, np.float32)) if bias else None)
        self.out_proj = Linear(embed_dim, embed_dim, bias)
        if bias:
            init.zeros_(self.out_proj.bias)

    def forward(
        self,
        query: Any,
        key: Any,
        value: Any,
        key_padding_mask: Any = None,
        need_weights: bool = True,
        attn_mask: Any = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """(result, weights or None). Boolean masks say, as PyTorch's do here, who may NOT be seen; float masks are added."""
        q, k, v = self._projected(query, key, value)
        causal, scale = is_causal and attn_mask is None, 1.0 / math.sqrt(q.shape[-1])
        masks = [] if attn_mask is None else [_per_head(as_tensor(attn_mask), q.shape)]
        if key_padding_mask is not None:
            m = as_tensor(key_padding_mask)
            masks.append(m.reshape(m.shape[0], 1, 1, m.shape[1]))
        added = [F.where(m, -math.inf, 0.0) if m.dtype == "bool" else m for m in masks]
        bias = added[0] + added[1] if len(added) > 1 else added[0] if added else None
        weights = None
        if need_weights or (self.dropout and self.training):
            weights = attention_weights(q, k, bias, causal, scale)
            out = dropout(weights, self.dropout, self.training) @ v  # [N, heads, L, d]
        else:
            out = attention(q, k, v, bias, causal, scale)
        out = out.permute(0, 2, 1, 3).flatten(2)
        out = self.out_proj(out if self.batch_first else out.permute(1, 0, 2))
        if weights is None or not need_weights:
            return out, None
        return out, weights.mean(1) if average_attn_weights else weights

    def _projected(self, query: Any, key: Any, value: Any) -> list[Tensor]:
        """Query, key and value as [N, heads, L, d]; one product where they are the same Tensor."""
        if query is key and key is value:
            parts = F.chunk(NF.linear(query, self.in_proj_weight, self.in_proj_bias), 3, -1)
        else:
            ws = F.chunk(self.in_proj_weight, 3, 0)
            bs = [None] * 3 if self.in_proj_bias is None else F.chunk(self.in_proj_bias, 3, 0)
            parts = [NF.linear(x, w, b) for x, w, b in zip((query, key, value), ws, bs, strict=True)]
        heads = []
        for p in parts:
            p = p if self.batch_first else p.permute(1, 0, 2)
            n, length, _ = p.shape
            heads.append(p.reshape(n, length, self.num_heads, -1).permute(0, 2, 1, 3))
        return heads


def _per_head(mask: Tensor, shape: tuple[int, ...]) -> Tensor:
    return mask.reshape(shape[0], shape[1], *mask.shape[1:]) if mask.ndim == 3 else mask


class TransformerEncoderLayer(Module):
    """Self-attention and a two-layer network, each with residual, dropout and layer normalisation."""

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Any = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.self_attn = MultiheadAttention(d_model, nhead, dropout, bias, batch_first)
        self.linear1, self.linear2 = Linear(d_model, dim_feedforward, bias), Linear(dim_feedforward, d_model, bias)
        self.norm1, self.norm2 = LayerNorm(d_model, layer_norm_eps, bias=bias), LayerNorm(d_model, layer_norm_eps, bias=bias)
        self.dropout, self.dropout1, self.dropout2 = Dropout(dropout), Dropout(dropout), Dropout(dropout)
        self.norm_first = norm_first
        self.activation = {"relu": NF.relu, "gelu": NF.gelu}[activation] if isinstance(activation, str) else activation

    def forward(self, src: Any, src_mask: Any = None, src_key_padding_mask: Any = None, is_causal: bool = False) -> Tensor:
        x = as_tensor(src)

        def attend(y: Tensor) -> Tensor:
            out, _ = self.self_attn(y, y, y, src_key_padding_mask, False, src_mask, is_causal=is_causal)
            return self.dropout1(out)

        def feed(y: Tensor) -> Tensor:
            return self.dropout2(self.linear2(self.dropout(self.activation(self.linear1(y)))))

        if self.norm_first:
            x = x + attend(self.norm1(x))
            return x + feed(self.norm2(x))
        x = self.norm1(x + attend(x))
        return self.norm2(x + feed(x))


class TransformerEncoder(Module):
    """A stack of copies of a layer."""

    def __init__(self, encoder_layer: Module, num_layers: int, norm: Module | None = None) -> None:
        super().__init__()
        self.layers = ModuleList(clone(encoder_layer) for _ in range(num_layers))
        self.norm = norm

    def forward(self, src: Any, mask: Any = None, src_key_padding_mask: Any = None, is_causal: bool = False) -> Tensor:
        x = src
        for layer in self.layers:
            x = layer(x, mask, src_key_padding_mask, is_causal)
        return x if self.norm is None else self.norm(x)


def clone(module: Module) -> Module:
    """A copy with parameters and buffers of its own."""
    new = copy.copy(module)
    new.__dict__ = dict(module.__dict__)
    new.__dict__["_parameters"] = {
        n: None if p is None else Parameter(p.numpy(), p.requires_grad) for n, p in module._parameters.items()
    }
    new.__dict__["_buffers"] = {n: b if b is None else as_tensor(b.numpy()) for n, b in module._buffers.items()}
    new.__dict__["_modules"] = {n: m if m is None else clone(m) for n, m in module._modules.items()}
    return new


check_all(globals(), [name for name, v in globals().items() if isinstance(v, type) and v.__module__ == __name__])
