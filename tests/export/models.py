"""Training steps of real models with PyTorch's losses from the same parameters, and C programs of exported packages."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace

import numpy as np
import pytest

import tilegrad as tg

torch = pytest.importorskip("torch")

STEPS = 20
STRICT = ("-Wall", "-Wextra", "-Werror", "-pedantic")


def mlp(t):
    """784-32-10 with ReLU; ``t`` is tilegrad's or PyTorch's module namespace."""
    return t.Sequential(t.Linear(49, 32), t.ReLU(), t.Linear(32, 10))


def cnn(t):
    """Two convolutions, pooling, a linear layer on 1 x 12 x 12 images."""
    return t.Sequential(
        t.Conv2d(1, 4, 3, padding=1), t.ReLU(), t.MaxPool2d(2), t.Conv2d(4, 6, 3), t.ReLU(), t.Flatten(), t.Linear(6 * 4 * 4, 10)
    )  # fmt: skip


def transformer(t):
    """One encoder layer on sequences of 6 tokens, a class for every token."""
    layer = t.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    return t.Sequential(t.Embedding(11, 16), layer, t.Linear(16, 10), t.Flatten(0, 1))


MODELS = {
    "mlp": (mlp, (16, 49), 16, "SGD", {"lr": 0.1, "momentum": 0.9}),
    "cnn": (cnn, (8, 1, 12, 12), 8, "Adam", {"lr": 0.003}),
    "transformer": (transformer, (4, 6), 24, "AdamW", {"lr": 0.003}),
}
"""The model, shape of its input, number of classes to find, optimizer."""


def make(name, target="native"):
    """The model's training step, a batch, and PyTorch's losses from the same parameters."""
    build, shape, targets, optimizer, options = MODELS[name]
    rng = np.random.default_rng(5)
    x = rng.integers(0, 11, shape) if build is transformer else rng.standard_normal(shape).astype("f4")
    y = rng.integers(0, 10, targets)
    theirs = build(torch.nn)
    with torch.no_grad():
        for i, p in enumerate(theirs.parameters()):
            p.copy_(torch.from_numpy(np.random.default_rng(i).uniform(-0.2, 0.2, tuple(p.shape)).astype("f4")))
    ours = build(tg.nn)
    ours.load_state_dict({n: p.detach().numpy() for n, p in theirs.state_dict().items()})
    step = tg.compile_step(
        ours, tg.nn.functional.cross_entropy, getattr(tg.optim, optimizer)(ours.parameters(), **options), (x, y), target=target
    )
    opt = getattr(torch.optim, optimizer)(theirs.parameters(), **options)
    losses = []
    for _ in range(STEPS):
        opt.zero_grad()
        loss = torch.nn.functional.cross_entropy(theirs(torch.from_numpy(x)), torch.from_numpy(y))
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return SimpleNamespace(step=step, x=x, y=y, losses=losses)


def run_c(folder, made, compiler=("cc",), emulator=(), source=None):
    """Build main.c with the package's own files and return the losses it prints. ``source`` stands for the static library."""
    made.x.tofile(folder / "x.bin")
    made.y.tofile(folder / "y.bin")
    name = next(folder.glob("*.h")).stem
    command = [
        *compiler,
        "-O1",
        "-Wall",
        "-Wextra",
        "-Werror",
        "main.c",
        source or f"lib{name}.a",
        "-lm",
        "-lpthread",
        "-o",
        "main",
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    done = subprocess.run(
        [*emulator, "./main", str(STEPS), "x.bin", "y.bin"], cwd=folder, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    return np.array([line.split()[1] for line in done.stdout.splitlines()], "f4")
