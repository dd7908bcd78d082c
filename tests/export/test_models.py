"""Training steps of real models as packages: C, Python and PyTorch see the same losses; checkpoints go both ways."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import tilegrad as tg
from tilegrad._base.errors import LibraryError
from tilegrad._base.target import Target
from tilegrad.relax_ext.driver import plain_recipe
from tilegrad.runtime import toolchain

torch = pytest.importorskip("torch")

STEPS = 20


def mlp(t):
    """784-32-10 with ReLU; ``t`` is tilegrad's or PyTorch's module namespace."""
    return t.Sequential(t.Linear(49, 32), t.ReLU(), t.Linear(32, 10))


def cnn(t):
    """Two convolutions, pooling, a linear layer on 1 x 12 x 12 images."""
    return t.Sequential(
        t.Conv2d(1, 4, 3, padding=1), t.ReLU(), t.MaxPool2d(2), t.Conv2d(4, 6, 3), t.ReLU(), t.Flatten(), t.Linear(6 * 4 * 4, 10)
    )  # fmt: skip


MODELS = {"mlp": (mlp, (16, 49), "SGD", {"lr": 0.1, "momentum": 0.9}), "cnn": (cnn, (8, 1, 12, 12), "Adam", {"lr": 0.003})}


def make(name, target="native"):
    """The model's training step, a batch, and PyTorch's losses from the same parameters."""
    build, shape, optimizer, options = MODELS[name]
    rng = np.random.default_rng(5)
    x, y = rng.standard_normal(shape).astype("f4"), rng.integers(0, 10, shape[0])
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


@pytest.fixture(scope="module", params=MODELS)
def exported(request, tmp_path_factory):
    made = make(request.param)
    folder = made.step.export(tmp_path_factory.mktemp(request.param), prefix=request.param)
    return SimpleNamespace(**vars(made), folder=folder)


def test_c_python_and_pytorch_agree(exported, tmp_path):
    folder = Path(shutil.copytree(exported.folder, tmp_path / "p"))
    in_c = run_c(folder, exported)
    loaded = tg.load(exported.folder)
    in_python = np.array([loaded.step(exported.x, exported.y) for _ in range(STEPS)], "f4")
    as_built = np.array([float(exported.step(exported.x, exported.y)) for _ in range(STEPS)], "f4")
    assert np.array_equal(in_c, in_python) and np.array_equal(in_python, as_built)
    np.testing.assert_allclose(in_python, exported.losses, rtol=1e-5)
    # the checkpoint that C saved continues in Python, bit for bit
    continued = tg.load(exported.folder)
    continued.restore(folder / "checkpoint.safetensors")
    assert continued.step(exported.x, exported.y) == loaded.step(exported.x, exported.y)
    # and what Python saved continues in C
    loaded.save(folder / "parameters.safetensors")
    assert np.array_equal(run_c(folder, exported)[:1], np.asarray(loaded.step(exported.x, exported.y)).reshape(1))


def test_plain_c_source(tmp_path):
    """One C file, compiled by the C compiler without and with threads, warning-free."""
    made = make("mlp")
    plain = plain_recipe(made.step.graphs)
    folder = made.step.export(tmp_path, prefix="mlp", plain=plain)
    np.testing.assert_allclose(run_c(folder, made, ("cc", "-std=c11"), source="mlp.c"), made.losses, rtol=1e-5)
    alone = run_c(folder, made, ("cc", "-std=c11", "-DTG_NO_THREADS"), source="mlp.c")
    np.testing.assert_allclose(alone, made.losses, rtol=1e-5)


def test_the_same_losses_on_aarch64(tmp_path):
    qemu = (
        shutil.which("qemu-aarch64")
        or shutil.which("qemu-aarch64-static")
        or pytest.skip("platform: no qemu-aarch64: apt install qemu-user")
    )
    target = Target.parse("aarch64-linux-gnu", threads=2)
    try:
        compiler = toolchain.find(target).command
    except LibraryError as e:
        pytest.skip(f"platform: {e}")
    made = make("mlp", target)
    folder = made.step.export(tmp_path, prefix="mlp")
    losses = run_c(folder, made, compiler, [qemu, "-L", "/usr/aarch64-linux-gnu"])
    np.testing.assert_allclose(losses, made.losses, rtol=1e-5)
