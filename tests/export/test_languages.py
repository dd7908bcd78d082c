"""examples/c, examples/cpp and examples/rust build without warnings and learn."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    folder = tmp_path_factory.mktemp("spirals")
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, EXAMPLES / "export_step.py", str(folder)], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def run(command, folder, **env):
    done = subprocess.run([str(c) for c in command], cwd=folder, env={**os.environ, **env}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def losses(text):
    return [float(v) for v in re.findall(r"loss (\S+?),?\s", text + "\n")]


def test_c(package):
    strict = ["-O2", "-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic"]
    run(["cc", *strict, "-I.", EXAMPLES / "c/train.c", "-L.", "-lspirals", "-Wl,-rpath,.", "-lm", "-o", "train"], package)
    out = run(["./train"], package)
    assert "240 of 240 right" in out and losses(out)[-1] < 0.05 < losses(out)[0]
    assert (package / "trained.safetensors").exists()


def test_cpp(package):
    strict = ["-O2", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-pedantic"]
    run(
        ["c++", *strict, "-I.", EXAMPLES / "cpp/train.cpp", "-L.", "-lspirals", "-Wl,-rpath,.", "-pthread", "-o", "both"], package
    )
    slow, fast = losses(run(["./both"], package))
    assert fast < slow < 0.5


def test_rust(package, tmp_path):
    cargo = shutil.which("cargo") or pytest.skip("platform: no cargo")
    if subprocess.run([cargo, "--version"], capture_output=True).returncode:
        pytest.skip("platform: a cargo without a toolchain")
    shutil.copytree(EXAMPLES / "rust", tmp_path / "rust", ignore=shutil.ignore_patterns("target"))
    command = [cargo, "run", "--release", "--offline", "--quiet", "--", package / "parameters.safetensors"]
    out = run(command, tmp_path / "rust", PACKAGE=str(package), RUSTFLAGS="-D warnings")
    assert losses(out)[-1] < 0.05 < losses(out)[0]


def test_cmake(package, tmp_path):
    cmake = shutil.which("cmake") or pytest.skip("platform: no cmake")
    folder = Path(shutil.copytree(package, tmp_path / "p"))
    run([cmake, "-S", ".", "-B", "build"], folder)
    run([cmake, "--build", "build"], folder)
    assert "loss" in run(["build/main", "2"], folder)
