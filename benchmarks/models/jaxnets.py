"""The models as JAX functions of parameters by PyTorch's names. Weights are transposed where they are used, as PyTorch does."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.models.tasks import IGNORED, TASKS, load_weights

Array = Any
Params = dict[str, Any]


def _linear(p: Params, name: str, x: Array) -> Array:
    y = x @ p[f"{name}.weight"].T
    return y + p[f"{name}.bias"] if f"{name}.bias" in p else y


def _conv(p: Params, name: str, x: Array, stride: int = 1) -> Array:
    w = p[f"{name}.weight"]
    pad = w.shape[-1] // 2
    y = lax.conv_general_dilated(x, w, (stride, stride), [(pad, pad)] * 2, dimension_numbers=("NCHW", "OIHW", "NCHW"))
    return y + p[f"{name}.bias"].reshape(-1, 1, 1) if f"{name}.bias" in p else y


def _pool(x: Array) -> Array:
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")


def _layer_norm(p: Params, name: str, x: Array) -> Array:
    d = x - x.mean(-1, keepdims=True)
    return d * lax.rsqrt((d * d).mean(-1, keepdims=True) + 1e-5) * p[f"{name}.weight"] + p[f"{name}.bias"]


def _batch_norm(p: Params, name: str, x: Array, seen: Params) -> Array:
    """Normalised by the batch's statistics; the running ones go to ``seen``."""
    mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3))
    n = x.size // x.shape[1]
    seen[f"{name}.running_mean"] = 0.9 * p[f"{name}.running_mean"] + 0.1 * mean
    seen[f"{name}.running_var"] = 0.9 * p[f"{name}.running_var"] + 0.1 * var * (n / (n - 1))
    mean, scale, bias = (v.reshape(-1, 1, 1) for v in (mean, lax.rsqrt(var + 1e-5) * p[f"{name}.weight"], p[f"{name}.bias"]))
    return (x - mean) * scale + bias


def mlp(p: Params, x: Array, seen: Params) -> Array:
    """Three linear layers."""
    for name in ("0", "2"):
        x = jax.nn.relu(_linear(p, name, x))
    return _linear(p, "4", x)


def _convolutions(p: Params, x: Array) -> Array:
    for name in ("0", "3"):
        x = _pool(jax.nn.relu(_conv(p, name, x)))
    return x.reshape(x.shape[0], -1)


def cnn(p: Params, x: Array, seen: Params) -> Array:
    """Two convolutions and a linear layer."""
    return _linear(p, "7", _convolutions(p, x))


def lenet(p: Params, x: Array, seen: Params) -> Array:
    """Two convolutions and two linear layers."""
    return _linear(p, "9", jax.nn.relu(_linear(p, "7", _convolutions(p, x))))


def _residual(p: Params, name: str, x: Array, seen: Params) -> Array:
    shortcut = f"{name}.shortcut.0"
    stride = 2 if f"{shortcut}.weight" in p else 1  # in this network every change of width halves the picture
    y = jax.nn.relu(_batch_norm(p, f"{name}.bn1", _conv(p, f"{name}.conv1", x, stride), seen))
    y = _batch_norm(p, f"{name}.bn2", _conv(p, f"{name}.conv2", y), seen)
    x = _batch_norm(p, f"{name}.shortcut.1", _conv(p, shortcut, x, stride), seen) if stride == 2 else x
    return jax.nn.relu(y + x)


def resnet18(p: Params, x: Array, seen: Params) -> Array:
    """Stem, eight blocks, mean, linear."""
    x = jax.nn.relu(_batch_norm(p, "1", _conv(p, "0", x), seen))
    for i in range(3, 11):
        x = _residual(p, str(i), x, seen)
    return _linear(p, "13", x.mean((2, 3)))


def _heads(x: Array, heads: int) -> Array:
    """[N, L, 3 width] to three of [N, heads, L, width / heads]."""
    n, length, width = x.shape
    return x.reshape(n, length, 3, heads, width // 3 // heads).transpose(2, 0, 3, 1, 4)


def _attention(parts: Array, causal: bool) -> Array:
    q, k, v = parts
    scores = q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5
    if causal:
        scores = jnp.where(jnp.tri(scores.shape[-1], dtype=bool), scores, -jnp.inf)
    seen = (jax.nn.softmax(scores) @ v).transpose(0, 2, 1, 3)
    return seen.reshape(*seen.shape[:2], -1)


def bert_mini(p: Params, x: Array, seen: Params) -> Array:
    """A post-norm encoder and a masked language model's head."""
    x = _layer_norm(p, "norm", p["words.weight"][x] + p["places.weight"])
    for i in range(4):
        name = f"encoder.layers.{i}"
        inner = x @ p[f"{name}.self_attn.in_proj_weight"].T + p[f"{name}.self_attn.in_proj_bias"]
        x = _layer_norm(p, f"{name}.norm1", x + _linear(p, f"{name}.self_attn.out_proj", _attention(_heads(inner, 4), False)))
        inner = jax.nn.gelu(_linear(p, f"{name}.linear1", x), approximate=False)
        x = _layer_norm(p, f"{name}.norm2", x + _linear(p, f"{name}.linear2", inner))
    return _linear(p, "head", x).reshape(-1, 8192)


def gpt_nano(p: Params, x: Array, seen: Params) -> Array:
    """A pre-norm decoder whose head is the embedding."""
    x = p["words.weight"][x] + p["places.weight"]
    for i in range(6):
        name = f"blocks.{i}"
        inner = _attention(_heads(_linear(p, f"{name}.qkv", _layer_norm(p, f"{name}.norm1", x)), 6), True)
        x = x + _linear(p, f"{name}.out", inner)
        inner = jax.nn.gelu(_linear(p, f"{name}.up", _layer_norm(p, f"{name}.norm2", x)), approximate=True)
        x = x + _linear(p, f"{name}.down", inner)
    return (_layer_norm(p, "norm", x) @ p["words.weight"].T).reshape(-1, 4096)


def lstm(p: Params, x: Array, seen: Params) -> Array:
    """A recurrent layer by ``scan``; its last output is classified."""
    bias = p["layer.bias_ih_l0"] + p["layer.bias_hh_l0"]
    shares = x.swapaxes(0, 1) @ p["layer.weight_ih_l0"].T + bias

    def cell(state: tuple[Array, Array], share: Array) -> tuple[tuple[Array, Array], None]:
        h, c = state
        i, f, n, o = jnp.split(share + h @ p["layer.weight_hh_l0"].T, 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(n)
        return (jax.nn.sigmoid(o) * jnp.tanh(c), c), None

    start = jnp.zeros((x.shape[0], 128))
    (h, _), _ = lax.scan(cell, (start, start), shares)
    return _linear(p, "head", h)


NETS: dict[str, Callable[[Params, Array, Params], Array]] = {
    f.__name__: f for f in (mlp, cnn, lenet, resnet18, bert_mini, gpt_nano, lstm)
}


def _sgd(p: Array, g: Array, s: Params, t: Array, lr: float, momentum: float = 0.0, weight_decay: float = 0.0) -> Any:
    m = momentum * s["m"] + g + weight_decay * p
    return p - lr * m, {"m": m, "v": s["v"]}


def _adam(p: Array, g: Array, s: Params, t: Array, lr: float, weight_decay: float = 0.0) -> Any:
    m, v = 0.9 * s["m"] + 0.1 * g, 0.999 * s["v"] + 0.001 * g * g
    step = m / (1 - 0.9**t) / (jnp.sqrt(v / (1 - 0.999**t)) + 1e-8)
    return p * (1 - lr * weight_decay) - lr * step, {"m": m, "v": v}


UPDATES: dict[str, Callable[..., Any]] = {"SGD": _sgd, "Adam": _adam, "AdamW": partial(_adam, weight_decay=0.01)}


def training(model: str, weights: Path) -> Callable[[], float]:
    """A jitted step with donated state, from the given initial weights."""
    task, net = TASKS[model], NETS[model]
    initial = {name: jnp.asarray(value) for name, value in load_weights(weights).items() if not name.endswith("tracked")}
    if model == "gpt_nano":
        del initial["head.weight"]  # the embedding's
    x, y = map(jnp.asarray, task.batch())
    update = partial(UPDATES[task.optimizer], **task.options)
    buffers = {n for n in initial if "running" in n}

    def loss_of(p: Params, rest: Params) -> tuple[Array, Params]:
        seen: Params = {}
        logp = jax.nn.log_softmax(net(p | rest, x, seen))
        kept = y != IGNORED
        picked = jnp.take_along_axis(logp, jnp.where(kept, y, 0)[:, None], 1)[:, 0]
        return -jnp.sum(picked * kept) / kept.sum(), seen

    @partial(jax.jit, donate_argnums=(0, 1, 2))
    def advance(p: Params, rest: Params, slots: Params, t: Array) -> Any:
        (loss, seen), grads = jax.value_and_grad(loss_of, has_aux=True)(p, rest)
        new = {n: update(p[n], grads[n], slots[n], t) for n in p}
        return {n: v for n, (v, _) in new.items()}, seen, {n: s for n, (_, s) in new.items()}, loss

    params = {n: v for n, v in initial.items() if n not in buffers}
    state = [params, {n: initial[n] for n in buffers}, {n: {"m": 0 * v, "v": 0 * v} for n, v in params.items()}]
    count = [0]

    def step() -> float:
        count[0] += 1
        *state[:], loss = advance(*state, jnp.float32(count[0]))
        return float(loss)

    return step
