"""Training steps of real models as packages: C, Python and PyTorch see the same losses; checkpoints go both ways."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import tilegrad as tg
from tests.emulation import cross_compiler, emulator
from tests.export.models import MODELS, STEPS, make, run_c
from tilegrad._base.target import Target


def test_c_python_and_pytorch_agree(exported, tmp_path):
    folder = Path(shutil.copytree(exported.folder, tmp_path / "p"))
    in_c = run_c(folder, exported)
    loaded = tg.load(exported.folder)
    in_python = np.array([loaded.step(exported.x, exported.y) for _ in range(STEPS)], "f4")
    as_built = np.array([float(exported.step(exported.x, exported.y)) for _ in range(STEPS)], "f4")
    assert np.array_equal(in_c, in_python) and np.array_equal(in_python, as_built)
    np.testing.assert_allclose(in_python, exported.losses, rtol=1e-5)
    for got, expected in (
        (loaded.evaluate(exported.x, exported.y), exported.step.evaluate(exported.x, exported.y)),
        ((loaded.predict(exported.x),), (exported.step.predict(exported.x),)),
    ):
        assert all(np.array_equal(a, b) for a, b in zip(got, expected, strict=True))
    # the checkpoint that C saved continues in Python, bit for bit
    continued = tg.load(exported.folder)
    continued.restore(folder / "checkpoint.safetensors")
    assert continued.step(exported.x, exported.y) == loaded.step(exported.x, exported.y)
    # and what Python saved continues in C
    loaded.save(folder / "parameters.safetensors")
    assert np.array_equal(run_c(folder, exported)[:1], np.asarray(loaded.step(exported.x, exported.y)).reshape(1))


@pytest.mark.parametrize("name", MODELS)
def test_plain_c_source(package, tmp_path, name):
    """One C file, compiled by the C compiler with and without threads, warning-free."""
    made = package(name)
    folder = made.step.export(tmp_path, prefix=name, c_source=True)
    shutil.copy(made.folder / "parameters.safetensors", folder)  # the step may have been trained since
    for flags in ((), ("-DTG_NO_THREADS",)):
        losses = run_c(folder, made, ("cc", "-std=c11", *flags), source=f"{name}.c")
        np.testing.assert_allclose(losses, made.losses, rtol=1e-5)


@pytest.mark.parametrize("name", ["mlp", *(pytest.param(n, marks=pytest.mark.long) for n in MODELS if n != "mlp")])
def test_the_same_losses_on_aarch64(tmp_path, name):
    target = Target.parse("aarch64-linux-gnu", threads=2)
    compiler, qemu = cross_compiler(target), emulator("aarch64")
    made = make(name, target)
    folder = made.step.export(tmp_path, prefix=name)
    np.testing.assert_allclose(run_c(folder, made, compiler, qemu), made.losses, rtol=1e-5)
