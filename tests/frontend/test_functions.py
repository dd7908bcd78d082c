"""Array functions against PyTorch: values, dtypes and gradients."""

import numpy as np
import pytest

import tilegrad as tg
from tests.frontend.many import Case, Chunks, check, virtual_machine

torch = pytest.importorskip("torch")
F, TF = tg.nn.functional, torch.nn.functional
rng = np.random.default_rng(0)


def normal(*shape):
    return rng.standard_normal(shape).astype("float32")


def positive(*shape):
    return (rng.random(shape) + 0.5).astype("float32")


def inside(*shape):
    return (rng.random(shape) * 1.6 - 0.8).astype("float32")


A, B, P = normal(3, 4), normal(3, 4), positive(3, 4)
ROW, INTS, MASK = normal(4), rng.integers(-3, 9, (3, 4)), rng.random((3, 4)) > 0.5
X3 = normal(2, 3, 4)

UNARY = {n: A for n in "exp sigmoid tanh relu abs sin cos asinh erf square sign floor ceil round trunc".split()}
UNARY |= {"log": P, "sqrt": P, "rsqrt": P, "tan": inside(3, 4), "asin": inside(3, 4), "acos": inside(3, 4), "atan": A}
UNARY |= {"atanh": inside(3, 4), "acosh": P + 1}

SEEN = np.arange(35).reshape(5, 7) % 3 > 0
SEEN[2] = False

CASES = [Case(n, getattr(tg, n), getattr(torch, n), [x]) for n, x in UNARY.items()]
CASES += [
    Case("add", lambda a, b: a + b, lambda a, b: a + b, [A, ROW]),
    Case("subtract", lambda a, b: 1.5 - a - b, lambda a, b: 1.5 - a - b, [A, ROW]),
    Case("multiply", lambda a, b: a * b * 3, lambda a, b: a * b * 3, [X3, normal(3, 1)]),
    Case("divide", lambda a, b: a / b + 2 / b, lambda a, b: a / b + 2 / b, [A, P]),
    Case("power", lambda a, b: a**b + a**3 + 2.0**b, lambda a, b: a**b + a**3 + 2.0**b, [P, B]),
    Case("maximum ties", tg.maximum, torch.maximum, [np.float32([1, 2, 3]), np.float32([1, 3, 2])]),
    Case("minimum ties", tg.minimum, torch.minimum, [np.float32([1, 2, 3]), np.float32([1, 3, 2])]),
    Case("atan2", tg.atan2, torch.atan2, [A, B]),
    Case("remainder", lambda a, b: a % b, lambda a, b: a % b, [A, P]),
    Case("floor_divide", lambda a, b: a // b, lambda a, b: a // b, [A, P], grad=False),
    Case(
        "integers", lambda a: (a // 2, a % 3, a * 2 - 1, a / 2), lambda a: (a // 2, a % 3, a * 2 - 1, a / 2), [INTS], grad=False
    ),
    Case(
        "comparisons",
        lambda a, b: (a < b, a <= b, a == b, a != b, a > 0, a >= b),
        lambda a, b: (a < b, a <= b, a == b, a != b, a > 0, a >= b),
        [A, B],
        grad=False,
    ),
    Case("logic", lambda a, b: (a & b, a | b, ~a, a ^ b), lambda a, b: (a & b, a | b, ~a, a ^ b), [MASK, ~MASK], grad=False),
    Case("where", lambda a, b: tg.where(a > 0, a, b), lambda a, b: torch.where(a > 0, a, b), [A, ROW]),
    Case("clip", lambda a: a.clip(-0.5, 0.5), lambda a: a.clip(-0.5, 0.5), [A]),
    Case("relu at 0", tg.relu, torch.relu, [np.float32([-1, 0, 1])]),
    Case("abs at 0", tg.abs, torch.abs, [np.float32([-1, 0, 1])]),
    Case("mixed dtypes", lambda a, i: a * i + i, lambda a, i: a * i + i, [A, INTS]),
    Case("double", lambda a: a.double() * 2, lambda a: a.double() * 2, [A]),
    Case(
        "sum",
        lambda a: (a.sum(), a.sum(1), a.sum((0, 2), keepdims=True)),
        lambda a: (a.sum(), a.sum(1), a.sum((0, 2), keepdim=True)),
        [X3],
    ),
    Case("mean", lambda a: (a.mean(), a.mean(-1)), lambda a: (a.mean(), a.mean(-1)), [X3]),
    Case("max", lambda a: a.max(1), lambda a: a.amax(1), [np.float32([[1, 2, 2], [3, 0, 1]])]),
    Case("min", lambda a: a.min((0, 1)), lambda a: a.amin((0, 1)), [A]),
    Case("prod", lambda a: a.prod(1), lambda a: a.prod(1), [P]),
    Case(
        "var", lambda a: (a.var(), a.std(1), a.var(0, correction=0)), lambda a: (a.var(), a.std(1), a.var(0, correction=0)), [A]
    ),
    Case("norm", lambda a: a.norm(1), lambda a: a.norm(dim=1), [A]),
    Case("logsumexp", lambda a: tg.logsumexp(a * 100, 1), lambda a: torch.logsumexp(a * 100, 1), [A]),
    Case("integer sums", lambda a: (a.sum(), a.sum(0), a.max(1)), lambda a: (a.sum(), a.sum(0), a.amax(1)), [INTS], grad=False),
    Case("all any", lambda a: (a.all(), a.any(1)), lambda a: (a.all(), a.any(1)), [MASK], grad=False),
    Case(
        "argmax",
        lambda a: (a.argmax(), a.argmax(1), a.argmin(0)),
        lambda a: (a.argmax(), a.argmax(1), a.argmin(0)),
        [A],
        grad=False,
    ),
    Case("cumsum", lambda a: a.cumsum(1), lambda a: a.cumsum(1), [A]),
    Case("softmax", lambda a: (a.softmax(1), a.log_softmax(0)), lambda a: (a.softmax(1), a.log_softmax(0)), [A]),
    Case("matmul", lambda a, b: a @ b, lambda a, b: a @ b, [A, normal(4, 5)]),
    Case("matmul batched", lambda a, b: a @ b, lambda a, b: a @ b, [normal(2, 3, 4), normal(4, 5)]),
    Case("matmul vectors", lambda a, b, c: (a @ b, b @ b, c @ b), lambda a, b, c: (a @ b, b @ b, c @ b), [A, ROW, X3]),
    Case("reshape", lambda a: a.reshape(4, -1) * ROW[:3], lambda a: a.reshape(4, -1) * torch.tensor(ROW[:3]), [A]),
    Case("transpose", lambda a: (a.T @ a, a.transpose(0, 1)), lambda a: (a.T @ a, a.transpose(0, 1)), [A]),
    Case("permute", lambda a: a.permute(2, 0, 1), lambda a: a.permute(2, 0, 1), [X3]),
    Case("broadcast", lambda a: a.broadcast_to(2, 3, 4), lambda a: a.broadcast_to(2, 3, 4), [A]),
    Case(
        "concat",
        lambda a, b: (tg.concat([a, b], 1), tg.stack([a, b], 1)),
        lambda a, b: (torch.cat([a, b], 1), torch.stack([a, b], 1)),
        [A, B],
    ),
    Case("split", lambda a: a.split(3, 1), lambda a: a.split(3, 1), [A]),
    Case("chunk", lambda a: a.chunk(2, 0), lambda a: a.chunk(2, 0), [A]),
    Case("flip", lambda a: a.flip((0, 1)), lambda a: a.flip((0, 1)), [A]),
    Case("roll", lambda a: tg.roll(a, 3, 1), lambda a: torch.roll(a, 3, 1), [A]),
    Case("tile", lambda a: a.tile(2, 3), lambda a: a.tile(2, 3), [A]),
    Case("repeat", lambda a: a.repeat_interleave(2, 1), lambda a: a.repeat_interleave(2, 1), [A]),
    Case("tril", lambda a: (a.tril(-1), a.triu(1)), lambda a: (a.tril(-1), a.triu(1)), [A]),
    Case(
        "gather",
        lambda a: a.gather(1, [[0, -1], [1, 1], [2, 0]]),
        lambda a: a.gather(1, torch.tensor([[0, 3], [1, 1], [2, 0]])),
        [A],
    ),
    Case("pad", lambda a: tg.pad(a, [(0, 1), (2, 0)], 1.5), lambda a: TF.pad(a, (2, 0, 0, 1), value=1.5), [A]),
    Case("index row", lambda a: a[-1], lambda a: a[-1], [A]),
    Case(
        "slices", lambda a: (a[1:, ::2], a[..., None, 1], a[:, -3:-1]), lambda a: (a[1:, ::2], a[..., None, 1], a[:, -3:-1]), [A]
    ),
    Case("index array", lambda a: a[[2, 0, 2, -1]], lambda a: a[[2, 0, 2, -1]], [A]),
    Case("index arrays", lambda a: a[[0, 1], :, [1, -1]], lambda a: a[[0, 1], :, [1, -1]], [X3]),
    Case("mask", lambda a: a[MASK], lambda a: a[torch.tensor(MASK)], [A]),
    Case("used twice", lambda a: a * a + a.exp() * a.sum(), lambda a: a * a + a.exp() * a.sum(), [A]),
    Case("detach", lambda a: a * a.detach(), lambda a: a * a.detach(), [A]),
]

LOSSES = [
    Case("cross_entropy", F.cross_entropy, TF.cross_entropy, [normal(5, 4), rng.integers(0, 4, 5)]),
    Case(
        "cross_entropy options",
        lambda x, t: F.cross_entropy(x, t, weight=P[0], ignore_index=1, label_smoothing=0.1),
        lambda x, t: TF.cross_entropy(x, t, weight=torch.tensor(P[0]), ignore_index=1, label_smoothing=0.1),
        [normal(5, 4), np.array([0, 1, 2, 3, 1])],
    ),
    Case(
        "cross_entropy images",
        lambda x, t: F.cross_entropy(x, t, reduction="none"),
        lambda x, t: TF.cross_entropy(x, t, reduction="none"),
        [normal(2, 4, 3), rng.integers(0, 4, (2, 3))],
    ),
    Case("cross_entropy soft", F.cross_entropy, TF.cross_entropy, [normal(3, 4), np.abs(A)]),
    Case("mse_loss", F.mse_loss, TF.mse_loss, [A, B]),
    Case("l1_loss", lambda a, b: F.l1_loss(a, b, reduction="sum"), lambda a, b: TF.l1_loss(a, b, reduction="sum"), [A, B]),
    Case("smooth_l1_loss", F.smooth_l1_loss, TF.smooth_l1_loss, [A, B]),
    Case("huber_loss", lambda a, b: F.huber_loss(a, b, delta=0.7), lambda a, b: TF.huber_loss(a, b, delta=0.7), [A, B]),
    Case(
        "binary_cross_entropy",
        F.binary_cross_entropy,
        TF.binary_cross_entropy,
        [inside(3, 4) * 0.5 + 0.5, MASK.astype("float32")],
    ),
    Case(
        "bce with logits",
        F.binary_cross_entropy_with_logits,
        TF.binary_cross_entropy_with_logits,
        [A * 3, MASK.astype("float32")],
    ),
    Case(
        "kl_div", lambda q, p: F.kl_div(q, p, reduction="batchmean"), lambda q, p: TF.kl_div(q, p, reduction="batchmean"), [A, P]
    ),
    Case("gelu", lambda a: (F.gelu(a), F.gelu(a, "tanh")), lambda a: (TF.gelu(a), TF.gelu(a, approximate="tanh")), [A]),
    Case(
        "activations",
        lambda a: (F.silu(a), F.leaky_relu(a, 0.2), F.softplus(a), F.elu(a), F.selu(a), F.mish(a), F.relu6(a)),
        lambda a: (TF.silu(a), TF.leaky_relu(a, 0.2), TF.softplus(a), TF.elu(a), TF.selu(a), TF.mish(a), TF.relu6(a)),
        [A * 2],
    ),
    Case(
        "hard activations",
        lambda a: (F.hardsigmoid(a), F.hardswish(a), F.hardtanh(a), F.logsigmoid(a), F.glu(a)),
        lambda a: (TF.hardsigmoid(a), TF.hardswish(a), TF.hardtanh(a), TF.logsigmoid(a), TF.glu(a)),
        [A * 4],
    ),
    Case(
        "attention",
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        lambda q, k, v: TF.scaled_dot_product_attention(q, k, v, is_causal=True),
        [normal(2, 5, 4), normal(2, 5, 4), normal(2, 5, 4)],
    ),
    Case(
        "attention with a boolean mask and grouped queries",
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=SEEN, enable_gqa=True, scale=0.4),
        lambda q, k, v: TF.scaled_dot_product_attention(q, k, v, attn_mask=torch.tensor(SEEN), enable_gqa=True, scale=0.4),
        [normal(2, 4, 5, 3), normal(2, 2, 7, 3), normal(2, 2, 7, 6)],
    ),
    Case(
        "attention with a mask that is added",
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m),
        lambda q, k, v, m: TF.scaled_dot_product_attention(q, k, v, m),
        [normal(2, 2, 5, 3), normal(2, 2, 7, 3), normal(2, 2, 7, 6), normal(1, 5, 7)],
    ),
    Case("normalize", F.normalize, TF.normalize, [A]),
]


@pytest.fixture(scope="module")
def recorded():
    with virtual_machine():
        yield Chunks(CASES + LOSSES, torch)


@pytest.fixture(scope="module")
def compiled():
    return Chunks(CASES + LOSSES, torch)


NAMES = [c.name for c in CASES + LOSSES]


@pytest.mark.parametrize("name", NAMES)
def test_recorded(recorded, name):
    check(recorded[name])


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_compiled(compiled, name):
    check(compiled[name])


@pytest.mark.parametrize(("shape", "axis"), [((1, 1, 50257), 2), ((197, 770), 0), ((3, 50001), 1)])
def test_sums_that_two_threads_cannot_share_evenly(shape, axis):
    x = np.random.default_rng(0).random(shape, dtype=np.float32)
    got = tg.compile(lambda x: x.sum(axis=axis), [x], num_threads=2)(x)
    np.testing.assert_allclose(got, x.sum(axis, dtype=np.float64), rtol=1e-5)


def test_an_operation_on_shared_memory_reads_it_as_it_was_then():
    array = np.float32([1.0, 2.0])
    x = tg.from_numpy(array)
    w = tg.tensor([3.0, 4.0], requires_grad=True)
    opt = tg.optim.SGD([w], lr=1.0)
    y, alias = x * 2, x.detach() + 1
    (w * x).sum().backward()
    opt.step()  # pending
    array[:] = 100.0
    assert x.tolist() == [100.0, 100.0] and (x + 1).tolist() == [101.0, 101.0]
    assert y.tolist() == [2.0, 4.0] and alias.tolist() == [2.0, 3.0] and w.tolist() == [2.0, 2.0]
    x.assign_([5.0, 6.0])
    assert array.tolist() == [5.0, 6.0]
    z = x * 2
    array[:] = 0.0
    assert z.tolist() == [10.0, 12.0]
