"""What exporting and loading refuse: damaged packages and checkpoints, what does not fit, wrong calls."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from tilegrad import runtime
from tilegrad._base.errors import DTypeError, LibraryError, ShapeError, UsageError
from tilegrad.runtime import contents, package, safetensors
from tilegrad.runtime.families import Family


@pytest.fixture
def copy(exported, tmp_path):
    """A package of one's own to damage."""
    return Path(shutil.copytree(exported, tmp_path / "copy"))


def _edit(manifest_path, change):
    manifest = json.loads(manifest_path.read_text())
    change(manifest)
    del manifest["checksum"]
    manifest_path.write_bytes(contents.manifest_text(manifest))


def _flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGE = {
    "no folder": (lambda p: shutil.rmtree(p), "No such file"),
    "no manifest": (lambda p: (p / "manifest.json").unlink(), "manifest.json.*No such file"),
    "cut manifest": (lambda p: (p / "manifest.json").write_text("{"), "damaged JSON"),
    "other JSON": (lambda p: (p / "manifest.json").write_text("[]"), "another kind"),
    "changed manifest": (
        lambda p: (p / "manifest.json").write_text((p / "manifest.json").read_text().replace('"w"', '"v"')),
        "wrong checksum",
    ),
    "other version": (lambda p: _edit(p / "manifest.json", lambda m: m.update(abi=99)), "ABI version 99"),
    "other machine": (lambda p: _edit(p / "manifest.json", lambda m: m["target"].update(arch="sparc")), "code for sparc"),
    "missing feature": (
        lambda p: _edit(p / "manifest.json", lambda m: m["target"]["features"].append("avx9000")),
        "needs avx9000",
    ),
    "flipped library": (lambda p: _flip(p / "libregress.so"), "libregress.so.*wrong checksum"),
    "cut library": (
        lambda p: (p / "libregress.so").write_bytes((p / "libregress.so").read_bytes()[:9000]),
        "libregress.so.*wrong checksum",
    ),
    "deep JSON": (lambda p: (p / "manifest.json").write_text("[" * 200000), "damaged JSON"),
    **{
        f"no {key}": (lambda p, key=key: _edit(p / "manifest.json", lambda m: m.pop(key)), f"no proper '{key}'")
        for key in ("prefix", "files", "target", "states", "entries", "families")
    },
    "a list of files": (lambda p: _edit(p / "manifest.json", lambda m: m.update(files=[])), "lists no library"),
    "no checksum": (
        lambda p: _edit(p / "manifest.json", lambda m: m["files"]["libregress.so"].pop("sha256")),
        "no proper 'sha256'",
    ),
    "no library": (lambda p: (p / "libregress.so").unlink(), "libregress.so.*No such file"),
    "flipped parameters": (lambda p: _flip(p / "parameters.safetensors"), "parameters.safetensors.*wrong checksum"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_packages_are_refused_before_loading(copy, name, monkeypatch):
    damage, message = DAMAGE[name]
    damage(copy)
    monkeypatch.setattr(runtime.library.ctypes, "CDLL", lambda *a: pytest.fail("the library was loaded"))
    with pytest.raises(LibraryError, match=message):
        runtime.load(copy)


@pytest.mark.parametrize("name", ["manifest.json", "parameters.safetensors", "libregress.so"])
def test_any_changed_byte_is_refused(copy, name, monkeypatch):
    """Bits flipped and ends cut off, all over the file."""
    monkeypatch.setattr(runtime.library.ctypes, "CDLL", lambda *a: pytest.fail("the library was loaded"))
    monkeypatch.setattr(runtime.deploy.Library, "context", lambda *a: pytest.fail("a context was made"))
    path = copy / name
    whole = path.read_bytes()
    places = sorted({*range(0, len(whole), len(whole) // 40 + 1), len(whole) - 1})
    for data in [*(whole[:at] for at in places), *(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :] for at in places)]:
        path.write_bytes(data)
        with pytest.raises(LibraryError, match=str(copy)):
            runtime.load(copy)


def test_library_for_another_machine_is_refused(copy, monkeypatch):
    data = bytearray((copy / "libregress.so").read_bytes())
    data[18:20] = (183).to_bytes(2, "little")  # aarch64
    (copy / "libregress.so").write_bytes(data)
    _edit(copy / "manifest.json", lambda m: m["files"].update({"libregress.so": package._described(bytes(data))}))
    with pytest.raises(LibraryError, match="a file for aarch64.*x86_64"):
        runtime.load(copy)


def test_states_must_fit(regression, data, tmp_path):
    for states, error, message in (
        ({}, UsageError, "no 'w'"),
        ({"w": data.w, "v": data.w}, UsageError, "unknown 'v'"),
        ({"w": data.w[:3]}, ShapeError, r"state 'w'.*\(3,\).*\(5,\)"),
        ({"w": data.w.astype("f8")}, DTypeError, "state 'w'.*float64"),
    ):
        with pytest.raises(error, match=message):
            runtime.export(regression, tmp_path, states)
    (tmp_path / "file").write_text("")
    with pytest.raises(LibraryError, match="export to"):
        runtime.export(regression, tmp_path / "file", {"w": data.w})
    for folder in (None, 3, b"folder", "a\0b"):
        with pytest.raises(UsageError, match="export, argument 'directory'"):
            runtime.export(regression, folder, {"w": data.w})
    for prefix in ("1a", "a-b", "", "\u00fcn\u00ef", "class", "int", "x" * 65, 3):
        with pytest.raises(UsageError, match="prefix.*at most 64"):
            runtime.export(regression, tmp_path, {"w": data.w}, prefix=prefix)
    for prefix in ("string", "errno", "c"):
        with pytest.raises(UsageError, match=f"prefix: got '{prefix}'.*{prefix}.h and lib{prefix}.so would hide"):
            runtime.export(regression, tmp_path, {"w": data.w}, prefix=prefix)


@pytest.mark.parametrize("write", ["save", "export"])
def test_a_full_disk_leaves_what_was_there(regression, exported, copy, data, monkeypatch, write):
    """The file system fails when the new file is put in its place."""
    loaded = runtime.load(exported)
    before = {p.name: p.read_bytes() for p in copy.iterdir() if p.is_file()}

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(LibraryError, match="No space left"):
        if write == "save":
            loaded.save(copy / "parameters.safetensors")
        else:
            runtime.export(regression, copy, {"w": data.w})
    assert {p.name: p.read_bytes() for p in copy.iterdir() if p.is_file()} == before


def test_checkpoints_that_do_not_fit(exported, data, tmp_path):
    loaded = runtime.load(exported)
    before = loaded.state("w").copy()
    path = tmp_path / "c.safetensors"
    for arrays, error in (
        ({"lr": np.zeros((), "f4")}, UsageError),
        ({"w": np.ones(4, "f4")}, ShapeError),
        ({"w": np.ones(5)}, DTypeError),
    ):
        safetensors.save(path, arrays)
        with pytest.raises(error):
            loaded.restore(path)
    deep = b"[" * 200000
    for text in (
        len(deep).to_bytes(8, "little") + deep,
        b"",
        b"12345678",
        (100).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
    ):
        path.write_bytes(text)
        with pytest.raises(LibraryError, match="damaged"):
            loaded.restore(path)
    with pytest.raises(LibraryError, match="No such file"):
        loaded.restore(tmp_path / "nothing")
    assert np.array_equal(loaded.state("w"), before)


def test_families_must_fit(kit):
    """Entries of a family differ in the first axis alone; those for any batch have outputs with rows."""

    def build(any_batch, **sizes):
        families = {"both": Family({int(n[1:]): e for n, e in sizes.items()}, any_batch)}
        return runtime.build(kit.regression, kit.regression_kernels, kit.target, prefix="regress", families=families)

    for make, message in (
        (lambda: build(False, n32="step", n16="evaluate"), "'both'.*ports that differ for batches 16 or 32"),
        (lambda: build(True, n32="step", n16="evaluate"), "ports that differ for batches 1 to 32"),
        (lambda: build(False, n7="evaluate"), "first axis"),
    ):
        with pytest.raises(UsageError, match=message):
            make()
    with pytest.raises(UsageError, match="'step'.*the name of an entry"):
        families = {"step": Family({32: "evaluate"})}
        runtime.build(kit.regression, kit.regression_kernels, kit.target, prefix="regress", families=families)


def test_wrong_calls_of_a_loaded_package(exported, data):
    loaded = runtime.load(exported)
    with pytest.raises(UsageError, match="1 inputs, expected 2: x, y"):
        loaded.step(data.x)
    with pytest.raises(UsageError, match="'stop'.*step, evaluate"):
        loaded.call("stop")
    with pytest.raises(LibraryError, match="exported library"):
        runtime.export(loaded.library, "anywhere", {})


WRONG = {
    "seed as text": (lambda p, path: p.seed("a"), "seed: got 'a' of type str, expected a whole number"),
    "seed with a fraction": (lambda p, path: p.seed(1.5), "seed: got 1.5 of type float"),
    "seed beyond 64 bits": (lambda p, path: p.seed(2**70), "seed: got 1180591620717411303424 of type int"),
    "path to save": (lambda p, path: p.save(5), "save, argument 'path': got 5 of type int"),
    "path to restore": (lambda p, path: p.restore(None), "restore, argument 'path': got None of type NoneType"),
    "null byte in a path": (lambda p, path: p.save("a\0b"), "save, argument 'path': got 'a.x00b'.*null bytes"),
    "folder": (lambda p, path: runtime.load(3), "load, argument 'directory': got 3"),
    "threads": (lambda p, path: runtime.load(path, num_threads="two"), "threads.*'two'"),
    "no threads": (lambda p, path: runtime.load(path, num_threads=0), "threads.*0"),
    "name of a state": (lambda p, path: p.state(["w"]), r"state: got \['w'\], expected one of"),
    "name of an entry": (lambda p, path: p.run(["step"], {}), r"entry: got \['step'\], expected one of"),
    "number as an entry": (lambda p, path: p.call(1), "entry: got 1, expected one of"),
    "arguments in a list": (lambda p, path: p.run("step", [1, 2]), "'step', argument 'args': got list, expected arrays by port"),
    "no arguments": (lambda p, path: p.run("step", None), "'step', argument 'args': got NoneType"),
    "runs as text": (lambda p, path: p.context.benchmark("step", {}, number="9"), "number '9', repeat 1, expected whole"),
    "runs of another entry": (lambda p, path: p.context.profile([], {}), r"benchmark, entry: got \[\]"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_types_given_to_a_loaded_package(name, exported):
    """Each is the project's own error, and names what was wrong."""
    call, message = WRONG[name]
    with pytest.raises(UsageError, match=message):
        call(runtime.load(exported), exported)
