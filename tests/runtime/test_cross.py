"""Libraries for other machines: cross-compiled, exported, run under qemu, with the same losses as here."""

from __future__ import annotations

import subprocess

import numpy as np
import pytest

from tests.emulation import cross_compiler, emulator
from tilegrad import runtime
from tilegrad._base.errors import LibraryError
from tilegrad._base.target import Target
from tilegrad.runtime import elf, toolchain


@pytest.mark.parametrize("arch", ["aarch64", "riscv64"])
@pytest.mark.parametrize("form", ["shared", "static"])
def test_training_step_on_another_machine(kit, data, tmp_path, arch, form):
    target = Target.parse(f"{arch}-linux-gnu", threads=2)
    compiler, qemu = cross_compiler(target), emulator(arch)
    library = runtime.build(kit.regression, kit.regression_kernels, target, prefix="regress")
    runtime.export(library, tmp_path, {"w": data.w, "lr": np.array(data.lr, "f4")})
    assert elf.machine((tmp_path / "libregress.so").read_bytes()) == arch
    data.x.tofile(tmp_path / "x.bin")
    data.y.tofile(tmp_path / "y.bin")
    links = {"shared": ["-L.", "-lregress"], "static": ["libregress.a"]}[form]
    command = [*compiler, "-O1", "main.c", *links, "-lm", "-lpthread", "-o", "main"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    run = [*qemu, "-E", f"LD_LIBRARY_PATH={tmp_path}:/usr/{arch}-linux-gnu/lib", "./main", str(kit.steps), "x.bin", "y.bin"]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    losses = [float(line.split()[1]) for line in done.stdout.splitlines()]
    np.testing.assert_allclose(losses, kit.reference(data.x, data.y, data.w, data.lr, kit.steps)[0], rtol=1e-5)


def test_a_package_for_another_machine_is_refused_here(kit, data, tmp_path):
    target = Target.parse("aarch64-linux-gnu", threads=2)
    cross_compiler(target)
    library = runtime.build(kit.regression, kit.regression_kernels, target, prefix="regress")
    runtime.export(library, tmp_path, {"w": data.w})
    with pytest.raises(LibraryError, match="code for aarch64"):
        runtime.load(tmp_path)


def test_no_cross_compiler_names_the_package(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(LibraryError, match=r"apt install gcc-aarch64-linux-gnu.*tilegrad\[cc\]"):
        toolchain.find(Target.parse("aarch64-linux-gnu"))


@pytest.mark.long
@pytest.mark.parametrize("arch", ["x86_64", "aarch64", "riscv64"])
def test_ziglang_compiles_where_there_is_no_c_compiler(kit, data, tmp_path, monkeypatch, arch):
    pytest.importorskip("ziglang")
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("TILEGRAD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("CC", raising=False)
    target = Target.parse(f"{arch}-linux-gnu", threads=2)
    library = runtime.build(kit.regression, kit.regression_kernels, target, prefix="regress")
    assert "ziglang" in toolchain.find(target).command
    folder = runtime.export(library, tmp_path / "package", {"w": data.w, "lr": np.array(data.lr, "f4")})
    assert elf.machine((folder / "libregress.so").read_bytes()) == arch
    if target.is_native:
        loaded = runtime.load(folder)
        losses = [float(loaded.step(data.x, data.y)) for _ in range(kit.steps)]
        np.testing.assert_allclose(losses, kit.reference(data.x, data.y, data.w, data.lr, kit.steps)[0], rtol=1e-5)
