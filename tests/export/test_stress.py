"""Exported training steps under stress, in C: many threads, forks, sanitizers, two models in one program, long runs."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import tilegrad as tg
from tests.export.models import STEPS, STRICT

C = Path(__file__).parent / "c"
SANITIZERS = ("address,undefined", "thread")


def in_python(made):
    """The losses of the package, trained in Python by two threads."""
    loaded = tg.load(made.folder, num_threads=2)
    return np.array([loaded.step(made.x, made.y) for _ in range(STEPS)], "f4")


def hard(made, folder, mode, *flags, library=None):
    """Build hard.c with the package's own files, run one mode, return the losses."""
    folder = Path(shutil.copytree(made.folder, folder))
    if library is not None:
        (folder / f"lib{made.name}.a").write_bytes(library)
    made.x.tofile(folder / "x.bin")
    made.y.tofile(folder / "y.bin")
    names = {"float32": "float", "int64": "int64_t"}
    defined = {"MODEL": made.name, "HEADER": f'"{made.name}.h"', "X": names[str(made.x.dtype)], "Y": names[str(made.y.dtype)]}
    command = ["cc", "-O1", "-std=gnu11", *STRICT, *flags, *(f"-D{k}={v}" for k, v in defined.items()), "-I.", str(C / "hard.c")]
    built = subprocess.run(
        [*command, f"lib{made.name}.a", "-lm", "-lpthread", "-o", "hard"], cwd=folder, capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr
    done = subprocess.run(["./hard", mode, "x.bin", "y.bin"], cwd=folder, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0 and not done.stderr, f"exit {done.returncode}: {done.stderr}"
    return np.array(done.stdout.split(), "f4")


@pytest.mark.parametrize("mode", ["threads", "fork"])
def test_many_contexts(exported, tmp_path, mode):
    """8 threads with 8 contexts each; parent and child go on after a fork: everywhere Python's losses."""
    assert np.array_equal(hard(exported, tmp_path / "p", mode), in_python(exported))


@pytest.mark.parametrize("name", ["mlp", "cnn", pytest.param("transformer", marks=pytest.mark.long)])
def test_10000_steps_take_no_more_memory_than_100(package, tmp_path, name):
    made = package(name)
    assert np.array_equal(hard(made, tmp_path / "p", "memory"), in_python(made))


@pytest.mark.parametrize("sanitizer", SANITIZERS)
@pytest.mark.parametrize(
    "name", ["mlp", pytest.param("cnn", marks=pytest.mark.long), pytest.param("transformer", marks=pytest.mark.long)]
)
def test_sanitizers(package, tmp_path, name, sanitizer):
    """The runtime, the tables and the program instrumented; any report ends the program."""
    made = package(name)
    flags = (f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", "-g")
    recipe = made.step.library.recipe().with_prefix(name)
    library = dataclasses.replace(recipe, cflags=flags).static_library()
    modes = ("threads",) if sanitizer == "thread" else ("threads", "fork")
    for mode in modes:
        assert np.array_equal(hard(made, tmp_path / mode, mode, *flags, library=library), in_python(made))


@pytest.mark.parametrize("kind", ["shared", "static"])
def test_two_models_in_one_program(package, tmp_path, kind):
    made = [package("mlp"), package("cnn")]
    for m in made:
        shutil.copytree(m.folder, tmp_path, dirs_exist_ok=True)
        shutil.copy(m.folder / "parameters.safetensors", tmp_path / f"{m.name}.safetensors")
        m.x.tofile(tmp_path / f"{m.name}_x")
        m.y.tofile(tmp_path / f"{m.name}_y")
    links = ["-L.", "-lmlp", "-lcnn", "-Wl,-rpath,."] if kind == "shared" else ["libmlp.a", "libcnn.a"]
    command = ["cc", "-O1", "-std=c11", *STRICT, "-I.", str(C / "two.c"), *links, "-lm", "-lpthread", "-o", "two"]
    built = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    files = [f"{m.name}_{end}" for m in made for end in "xy"]
    done = subprocess.run(["./two", *files], cwd=tmp_path, capture_output=True, text=True, check=True)
    losses = np.array([line.split() for line in done.stdout.splitlines()], "f4")
    for column, m in enumerate(made):
        assert np.array_equal(losses[:, column], in_python(m))
