"""Arrays without elements: every function of arrays, on shapes with an axis of length zero in each place, against PyTorch:
values and gradients. What PyTorch refuses there must be refused by us, with an error of ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilegrad as tg
from tests.frontend.many import Case, check, run
from tilegrad._base.errors import TilegradError

torch = pytest.importorskip("torch")
F, TF = tg.nn.functional, torch.nn.functional

SHAPES = [(0, 3), (3, 0), (0, 0)]
WITHOUT_GRADIENT = {"floor_divide"}

pytestmark = pytest.mark.filterwarnings("ignore:.*degrees of freedom is <= 0:UserWarning")
Pair = tuple[Callable[..., Any], Callable[..., Any]]

SAME_NAME = (
    "exp log sqrt rsqrt tanh sigmoid sin cos tan sinh cosh asin acos atan asinh acosh atanh erf relu abs negative sign square "
    "floor ceil round trunc isnan isinf isfinite"
)
BINARY = (
    "add subtract multiply divide floor_divide remainder maximum minimum atan2 equal not_equal less less_equal greater "
    "greater_equal logical_and logical_or logical_xor power"
)
THEIRS = {"equal": torch.eq, "power": torch.pow}


def of_one() -> dict[str, Pair]:
    """Functions of one array of rank 2."""
    pairs: dict[str, Pair] = {n: (getattr(tg, n), getattr(torch, n)) for n in SAME_NAME.split()}
    for n in BINARY.split():
        ours, theirs = getattr(tg, n), THEIRS.get(n, getattr(torch, n, None))
        pairs[n] = (lambda x, f=ours: f(x, x), lambda x, f=theirs: f(x, x))
    pairs["add with an axis of one"] = (lambda x: x + tg.ones((2, 1, 1)), lambda x: x + torch.ones(2, 1, 1))
    for n in "sum mean prod var std norm logsumexp max min".split():
        theirs = {"max": torch.amax, "min": torch.amin}.get(n, getattr(torch, n))
        for axis in (0, 1):
            for keep in (False, True):
                pairs[f"{n} along {axis}, {keep}"] = (
                    lambda x, n=n, a=axis, k=keep: getattr(tg, n)(x, axis=a, keepdims=k),
                    lambda x, f=theirs, a=axis, k=keep: f(x, dim=a, keepdim=k),
                )
    for n in "sum mean prod var std norm".split():
        pairs[f"{n} of all"] = (getattr(tg, n), getattr(torch, n))
    for n in "all any argmax argmin".split():
        for axis in (0, 1):
            pairs[f"{n} along {axis}"] = (
                lambda x, n=n, a=axis: getattr(tg, n)(x, axis=a),
                lambda x, n=n, a=axis: getattr(torch, n)(x, dim=a),
            )
    pairs["all of all"] = (tg.all, torch.all)
    pairs["any of all"] = (tg.any, torch.any)
    for axis in (0, 1):
        for n in "cumsum cumprod softmax log_softmax".split():
            pairs[f"{n} along {axis}"] = (
                lambda x, n=n, a=axis: getattr(tg, n)(x, axis=a),
                lambda x, n=n, a=axis: getattr(torch, n)(x, dim=a),
            )
        pairs[f"concat along {axis}"] = (lambda x, a=axis: tg.concat([x, x], a), lambda x, a=axis: torch.cat([x, x], a))
        pairs[f"stack along {axis}"] = (lambda x, a=axis: tg.stack([x, x], a), lambda x, a=axis: torch.stack([x, x], a))
        pairs[f"roll along {axis}"] = (lambda x, a=axis: tg.roll(x, 1, a), lambda x, a=axis: torch.roll(x, 1, a))
        pairs[f"repeat along {axis}"] = (lambda x, a=axis: tg.repeat(x, 2, a), lambda x, a=axis: x.repeat_interleave(2, a))
        pairs[f"split along {axis}"] = (lambda x, a=axis: tg.split(x, 2, a), lambda x, a=axis: x.split(2, a))
        pairs[f"chunk along {axis}"] = (lambda x, a=axis: tg.chunk(x, 2, a), lambda x, a=axis: x.chunk(2, a))
        pairs[f"unbind along {axis}"] = (lambda x, a=axis: tg.unbind(x, a), lambda x, a=axis: x.unbind(a))
        pairs[f"flip along {axis}"] = (lambda x, a=axis: tg.flip(x, a), lambda x, a=axis: x.flip(a))
        pairs[f"take nothing along {axis}"] = (
            lambda x, a=axis: tg.take(x, np.zeros(0, "int64"), a),
            lambda x, a=axis: x.index_select(a, torch.zeros(0, dtype=torch.int64)),
        )
        pairs[f"gather nothing along {axis}"] = (
            lambda x, a=axis: tg.gather(x, a, np.zeros((0, 0), "int64")),
            lambda x, a=axis: x.gather(a, torch.zeros((0, 0), dtype=torch.int64)),
        )
        pairs[f"l2 normalised along {axis}"] = (lambda x, a=axis: F.normalize(x, a), lambda x, a=axis: TF.normalize(x, dim=a))
    pairs |= {
        "to int64": (lambda x: x.astype("int64"), lambda x: x.long()),
        "to float64": (lambda x: x.astype("float64"), lambda x: x.double()),
        "broadcast_to": (lambda x: tg.broadcast_to(x, (2, *x.shape)), lambda x: x.broadcast_to(2, *x.shape)),
        "clip": (lambda x: tg.clip(x, -1, 1), lambda x: torch.clip(x, -1, 1)),
        "expand_dims": (lambda x: tg.expand_dims(x, 1), lambda x: x.unsqueeze(1)),
        "flatten": (tg.flatten, torch.flatten),
        "reshape": (lambda x: tg.reshape(x, (0, 5)), lambda x: x.reshape(0, 5)),
        "reshape and sum": (lambda x: tg.reshape(x, (4, 0)).sum(1), lambda x: x.reshape(4, 0).sum(1)),
        "squeeze": (tg.squeeze, torch.squeeze),
        "matmul": (lambda x: x @ x.T, lambda x: x @ x.T),
        "matmul the other way": (lambda x: x.T @ x, lambda x: x.T @ x),
        "matmul of batches": (lambda x: tg.stack([x, x]) @ x.T, lambda x: torch.stack([x, x]) @ x.T),
        "outer": (lambda x: tg.outer(x.reshape(-1), tg.ones(2)), lambda x: torch.outer(x.reshape(-1), torch.ones(2))),
        "meshgrid": (
            lambda x: tg.meshgrid(x.reshape(-1), tg.ones(2)),
            lambda x: torch.meshgrid(x.reshape(-1), torch.ones(2), indexing="ij"),
        ),
        "pad": (lambda x: tg.pad(x, [(1, 0), (0, 2)], 1.5), lambda x: TF.pad(x, (0, 2, 1, 0), value=1.5)),
        "permute": (lambda x: tg.permute(x, (1, 0)), lambda x: x.permute(1, 0)),
        "tile": (lambda x: tg.tile(x, (2, 3)), lambda x: x.tile(2, 3)),
        "tile to nothing": (lambda x: tg.tile(x, (0, 3)), lambda x: x.tile(0, 3)),
        "transpose": (tg.transpose, lambda x: x.transpose(-2, -1)),
        "tril": (tg.tril, torch.tril),
        "triu": (tg.triu, torch.triu),
        "where": (lambda x: tg.where(x > 0, x, 1.0), lambda x: torch.where(x > 0, x, 1.0)),
        "one_hot": (
            lambda x: tg.one_hot(x.reshape(-1).astype("int64"), 4),
            lambda x: TF.one_hot(x.reshape(-1).long(), 4),
        ),
        "slices": (lambda x: (x[::2], x[:, 1:], x[::-1], x[..., None]), lambda x: (x[::2], x[:, 1:], x.flip(0), x[..., None])),
        "an empty list as index": (lambda x: x[:, []], lambda x: x[:, torch.zeros(0, dtype=torch.int64)]),
        "a mask": (lambda x: x[np.zeros(x.shape, bool)], lambda x: x[torch.zeros(x.shape, dtype=torch.bool)]),
        "silu": (tg.silu, TF.silu),
        "gelu": (F.gelu, TF.gelu),
        "elu": (F.elu, TF.elu),
        "selu": (F.selu, TF.selu),
        "mish": (F.mish, TF.mish),
        "softplus": (F.softplus, TF.softplus),
        "leaky_relu": (F.leaky_relu, TF.leaky_relu),
        "hardtanh": (F.hardtanh, TF.hardtanh),
        "hardswish": (F.hardswish, TF.hardswish),
        "logsigmoid": (F.logsigmoid, TF.logsigmoid),
        "linear": (
            lambda x: F.linear(x, tg.ones((4, x.shape[1])), tg.ones(4)),
            lambda x: TF.linear(x, torch.ones(4, x.shape[1]), torch.ones(4)),
        ),
        "linear to nothing": (
            lambda x: F.linear(x, tg.ones((0, x.shape[1]))),
            lambda x: TF.linear(x, torch.ones(0, x.shape[1])),
        ),
        "layer_norm": (lambda x: layer_norm_ours(x), lambda x: TF.layer_norm(x, x.shape[1:])),
        "mse_loss": (lambda x: F.mse_loss(x, tg.zeros_like(x)), lambda x: TF.mse_loss(x, torch.zeros_like(x))),
        "mse_loss, summed": (
            lambda x: F.mse_loss(x, tg.zeros_like(x), reduction="sum"),
            lambda x: TF.mse_loss(x, torch.zeros_like(x), reduction="sum"),
        ),
        "l1_loss": (lambda x: F.l1_loss(x, tg.zeros_like(x)), lambda x: TF.l1_loss(x, torch.zeros_like(x))),
        "smooth_l1_loss": (
            lambda x: F.smooth_l1_loss(x, tg.zeros_like(x)),
            lambda x: TF.smooth_l1_loss(x, torch.zeros_like(x)),
        ),
        "cross_entropy of no rows": (
            lambda x: F.cross_entropy(x, tg.zeros(x.shape[:1], dtype="int64"), reduction="sum"),
            lambda x: TF.cross_entropy(x, torch.zeros(x.shape[:1], dtype=torch.int64), reduction="sum"),
        ),
        "attention": (
            lambda x: F.scaled_dot_product_attention(*(x.reshape(1, *x.shape),) * 3),
            lambda x: TF.scaled_dot_product_attention(*(x.reshape(1, *x.shape),) * 3),
        ),
    }
    return pairs


def layer_norm_ours(x: Any) -> Any:
    return tg.nn.LayerNorm(x.shape[1], elementwise_affine=False)(x)


PAIRS = of_one()

IMAGES: dict[str, tuple[Pair, tuple[int, ...]]] = {
    "conv1d of no images": ((lambda x: F.conv1d(x, tg.ones((2, 3, 3))), lambda x: TF.conv1d(x, torch.ones(2, 3, 3))), (0, 3, 5)),
    "conv2d of no images": (
        (lambda x: F.conv2d(x, tg.ones((2, 3, 3, 3)), tg.ones(2)), lambda x: TF.conv2d(x, torch.ones(2, 3, 3, 3), torch.ones(2))),
        (0, 3, 5, 5),
    ),
    "max_pool2d of no images": ((lambda x: F.max_pool2d(x, 2), lambda x: TF.max_pool2d(x, 2)), (0, 3, 4, 4)),
    "avg_pool2d of no images": ((lambda x: F.avg_pool2d(x, 2), lambda x: TF.avg_pool2d(x, 2)), (0, 3, 4, 4)),
    "adaptive_avg_pool2d of no images": (
        (lambda x: F.adaptive_avg_pool2d(x, 2), lambda x: TF.adaptive_avg_pool2d(x, 2)),
        (0, 3, 4, 4),
    ),
    "scaled_dot_product_attention without keys": (
        (
            lambda x: F.scaled_dot_product_attention(tg.ones((2, 3, 4)), x, x),
            lambda x: TF.scaled_dot_product_attention(torch.ones(2, 3, 4), x, x),
        ),
        (2, 0, 4),
    ),
    "a part of nothing, flattened, beside something": (
        (
            lambda x: tg.concat([x[1:1].reshape(0), x.reshape(-1)]) * 2,
            lambda x: torch.cat([x[1:1].reshape(0), x.reshape(-1)]) * 2,
        ),
        (2, 3),
    ),
    "scatter of nothing": (
        (lambda x: put_nothing(x), lambda x: x * 1.0),
        (2, 3),
    ),
}


def put_nothing(x: Any) -> Any:
    y = x * 1.0
    y[[]] = tg.zeros((0, 3))
    return y


def compare(pairs: dict[str, Pair], shape: tuple[int, ...]) -> None:
    """Each of the pairs on ones of the shape, in one program; an error of theirs must be one of ours."""
    x = np.ones(shape, "float32")
    cases = []
    for name, (ours, theirs) in pairs.items():
        try:
            result = theirs(torch.tensor(x, requires_grad=True))
        except (RuntimeError, IndexError):
            with pytest.raises(TilegradError):
                print(name, ours(tg.tensor(x)))
            continue
        if isinstance(result, tuple) and not result:
            assert ours(tg.tensor(x)) == []
            continue
        first = result[0] if isinstance(result, (tuple, list)) else result
        cases.append(Case(name, ours, theirs, [x], grad=bool(first.requires_grad) and name not in WITHOUT_GRADIENT))
    run(cases, torch)
    for case in cases:
        try:
            check(case)
        except AssertionError as e:
            raise AssertionError(f"{case.name}: {case.results} instead of {case.expected}") from e


@pytest.mark.parametrize("start", range(0, len(PAIRS), 40))
@pytest.mark.parametrize("shape", [*SHAPES[:2], pytest.param(SHAPES[2], marks=pytest.mark.long)], ids=str)
def test_like_pytorch(shape: tuple[int, ...], start: int) -> None:
    compare(dict(list(PAIRS.items())[start : start + 40]), shape)


@pytest.mark.parametrize("name", IMAGES)
def test_images(name: str) -> None:
    compare({name: IMAGES[name][0]}, IMAGES[name][1])
