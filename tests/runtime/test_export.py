"""Exported packages: loaded by Python without TVM, linked by C, refused when anything is wrong."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import pytest

from tilegrad import runtime
from tilegrad._base.errors import DTypeError, LibraryError, ShapeError, UsageError
from tilegrad.runtime import builder, contents, header, package, safetensors
from tilegrad.runtime.families import Family

C = Path(__file__).parent / "c"
STRICT = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic")


@pytest.fixture(scope="module")
def exported(regression, data, tmp_path_factory):
    notes = {"step": "One step of gradient descent.", "lr": "learning rate, per step", "loss": "mean squared error"}
    states = {"w": data.w, "lr": np.array(data.lr, "f4")}
    return runtime.export(regression, tmp_path_factory.mktemp("package"), states, notes=notes)


@pytest.fixture
def copy(exported, tmp_path):
    """A package of one's own to damage."""
    return Path(shutil.copytree(exported, tmp_path / "copy"))


def losses_of(loaded, data, steps):
    return np.array([loaded.step(data.x, data.y) for _ in range(steps)], "f4")


def compile_c(folder, source, *libraries, compiler="cc", flags=STRICT):
    """Compile ``source`` against the package in ``folder`` and return the program."""
    if shutil.which(compiler) is None:
        pytest.skip(f"platform: no {compiler}")
    program = folder / Path(source).stem
    command = [
        compiler,
        *flags,
        "-I",
        str(folder),
        str(source),
        *libraries,
        "-lm",
        "-lpthread",
        f"-Wl,-rpath,{folder}",
        "-o",
        str(program),
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    return program


def test_loaded_package_trains_as_built(regression, exported, data, kit):
    context = regression.context(2)
    context.state("lr")[...] = data.lr
    built = [context.run("step", {"x": data.x, "y": data.y})["loss"] for _ in range(kit.steps)]
    loaded = runtime.load(exported, num_threads=2)
    assert np.array_equal(built, losses_of(loaded, data, kit.steps))
    np.testing.assert_allclose(built, kit.reference(data.x, data.y, data.w, data.lr, kit.steps)[0], rtol=1e-5)
    assert np.array_equal(loaded.state("w"), context.state("w"))
    out = loaded.run("evaluate", {"x": data.x, "y": data.y})["loss"]
    assert out == loaded.call("evaluate", data.x, data.y) < built[-1]


def test_checkpoint_round_trip(exported, data, tmp_path):
    first = runtime.load(exported)
    losses_of(first, data, 5)
    first.save(tmp_path / "c.safetensors")
    second = runtime.load(exported)
    second.restore(tmp_path / "c.safetensors")
    assert np.array_equal(losses_of(first, data, 3), losses_of(second, data, 3))
    st = pytest.importorskip("safetensors.numpy")
    assert np.array_equal(st.load_file(tmp_path / "c.safetensors")["lr"], np.array(data.lr, "f4"))


def test_safetensors_of_every_type(tmp_path):
    st = pytest.importorskip("safetensors.numpy")
    kinds = ["f2", "f4", "f8", "?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"]
    arrays = {f"a.{k}": np.arange(6).reshape(2, 3).astype(k) for k in kinds} | {
        "scalar": np.array(3.5, "f4"),
        "none": np.zeros((0, 4), "f4"),
    }
    safetensors.save(tmp_path / "ours", arrays)
    st.save_file(arrays, tmp_path / "theirs")
    for got in (st.load_file(tmp_path / "ours"), safetensors.load(tmp_path / "theirs")):
        assert got.keys() == arrays.keys()
        assert all(np.array_equal(got[n], a) and got[n].dtype == a.dtype for n, a in arrays.items())


@pytest.mark.parametrize("library", ["shared", "static"])
def test_c_program_trains(exported, data, kit, tmp_path, library):
    folder = Path(shutil.copytree(exported, tmp_path / "p"))
    links = {"shared": ["-L.", "-lregress"], "static": ["libregress.a"]}[library]
    program = compile_c(folder, folder / "main.c", *links, flags=("-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic"))
    data.x.tofile(folder / "x.bin")
    data.y.tofile(folder / "y.bin")
    done = subprocess.run([program, str(kit.steps), "x.bin", "y.bin"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    losses = np.array([line.split()[1] for line in done.stdout.splitlines()], "f4")
    loaded = runtime.load(exported)
    assert np.array_equal(losses, losses_of(loaded, data, kit.steps))
    # what C wrote, Python reads: both continue alike
    restored = runtime.load(exported)
    restored.restore(folder / "checkpoint.safetensors")
    assert np.array_equal(losses_of(restored, data, 2), losses_of(loaded, data, 2))


def test_cpp_program_trains(exported, data, kit, tmp_path):
    folder = Path(shutil.copytree(exported, tmp_path / "p"))
    data.x.tofile(folder / "x.bin")
    data.y.tofile(folder / "y.bin")
    flags = ("-std=c++11", "-Wall", "-Wextra", "-Werror", "-pedantic")
    program = compile_c(folder, C / "train.cpp", "-L.", "-lregress", compiler="c++", flags=flags)
    done = subprocess.run([program, str(kit.steps), "x.bin", "y.bin"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    losses = np.array([line.split()[1] for line in done.stdout.splitlines()], "f4")
    assert np.array_equal(losses, losses_of(runtime.load(exported), data, kit.steps))


def test_names_that_are_no_identifiers(kit, tmp_path):
    """Ports named like keywords, with dots, or alike once dots are gone."""
    names = ["class", "a.b", "a_b", "1st", "ctx"]
    buffers = [(n, (64,), "float32", "input" if i < 4 else "output") for i, n in enumerate(names)] + [
        ("t", (64,), "float32", "temp", 0)
    ]
    calls = [("add", ("class", "a.b", "t")), ("add", ("t", "a_b", "t")), ("add", ("t", "1st", "ctx"))]
    p = kit.program("sum", tuple(names), buffers, calls, arena_bytes=256)
    library = runtime.build({"sum": p}, {"add": kit.scheduled(kit.add)}, kit.target, prefix="odd")
    runtime.export(library, tmp_path, {}, notes={"class": "a note */ with an end of comment"})
    compile_c(tmp_path, tmp_path / "main.c", "-L.", "-lodd", flags=("-std=c11", "-Wall", "-Wextra", "-Werror"))
    (tmp_path / "odd.cpp").write_text(
        '#include "odd.hpp"\nint main() { odd::Context c; float x[64] = {1}; c.sum(x, x, x, x, x + 0); }\n'
    )
    compile_c(tmp_path, tmp_path / "odd.cpp", "-L.", "-lodd", compiler="c++", flags=("-std=c++17", "-Wall", "-Wextra", "-Werror"))


def test_fresh_process_imports_no_tvm(exported, data, tmp_path):
    np.savez(tmp_path / "in.npz", x=data.x, y=data.y)
    code = f"""
import sys
import numpy as np
from tilegrad import runtime
d = np.load({str(tmp_path / "in.npz")!r})
m = runtime.load({str(exported)!r})
print([float(m.step(d["x"], d["y"])) for _ in range(3)])
m.save({str(tmp_path / "c.safetensors")!r})
assert not {{"tvm", "tvm_ffi", "torch", "safetensors", "platformdirs"}} & set(sys.modules)
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    assert json.loads(out.stdout) == [float(v) for v in losses_of(runtime.load(exported), data, 3)]


def test_deploy_install_needs_numpy_only(exported, data, tmp_path):
    """What ``pip install --no-deps tilegrad`` beside NumPy gives: a new environment without anything else."""
    venv.create(tmp_path / "env", symlinks=True)
    site = next((tmp_path / "env").glob("lib/python*/site-packages"))
    root = Path(np.__file__).parent
    for package_dir in (root, root.parent / "numpy.libs"):
        if package_dir.exists():
            (site / package_dir.name).symlink_to(package_dir)
    shutil.copytree(Path(runtime.__file__).parents[1], site / "tilegrad", ignore=shutil.ignore_patterns("__pycache__"))
    np.savez(tmp_path / "in.npz", x=data.x, y=data.y)
    code = f"""
import importlib.util
assert not any(importlib.util.find_spec(m) for m in ("tvm", "filelock", "platformdirs", "safetensors", "pytest"))
import numpy as np, tilegrad
from tilegrad import runtime
d = np.load({str(tmp_path / "in.npz")!r})
m = runtime.load({str(exported)!r})
print([float(m.step(d["x"], d["y"])) for _ in range(3)])
"""
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    out = subprocess.run([tmp_path / "env/bin/python", "-c", code], capture_output=True, text=True, cwd=tmp_path, env=env)
    assert out.returncode == 0, out.stderr
    assert json.loads(out.stdout) == [float(v) for v in losses_of(runtime.load(exported), data, 3)]


def test_header_is_for_people(exported):
    text = (exported / "regress.h").read_text()
    for line in (
        'args[0]  input "x"  float32 [32, 5], read',
        'args[2]  state "w"  float32 [5], read and written',
        'args[3]  hyper "lr"  float32 scalar, read; learning rate, per step',
        'args[4]  output "loss"  float32 scalar, written; mean squared error',
        "step: One step of gradient descent.",
        "int regress_call_step(regress_context *ctx, const float *x, const float *y, float *loss)",
        "REGRESS_STEP_ARG_LR = 3,",
    ):
        assert line in text


def test_prefix_is_chosen_at_export(regression, data, tmp_path):
    out = runtime.export(regression, tmp_path, {"w": data.w}, prefix="other")
    assert (out / "libother.so").exists() and (out / "other.h").exists()
    assert runtime.load(out).state("lr") == 0  # hyperparameters that are not given
    assert runtime.load(out).library.manifest["prefix"] == "other"


@pytest.mark.parametrize("kind", ["shared", "static"])
def test_two_models_in_one_program(kit, tmp_path, kind):
    for name, func in (("plus", kit.add), ("minus", kit.subtract)):
        library = runtime.build(*kit.binary("op", func), kit.target, prefix=name)
        runtime.export(library, tmp_path, {})
    links = ["-L.", "-lplus", "-lminus"] if kind == "shared" else ["libplus.a", "libminus.a"]
    done = subprocess.run([compile_c(tmp_path, C / "both.c", *links)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "7 3 1 1 the context was destroyed")


def test_static_library_shows_the_prefix_only(exported):
    out = subprocess.run(
        ["nm", "--defined-only", "-g", exported / "libregress.a"], capture_output=True, text=True, check=True
    ).stdout
    names = {line.split()[-1] for line in out.splitlines() if len(line.split()) == 3}
    assert len(names) > 10 and all(n.startswith("regress_") for n in names)


def test_c_refusals(exported, data, tmp_path):
    folder = Path(shutil.copytree(exported, tmp_path / "p"))
    done = subprocess.run([compile_c(folder, C / "refuse.c", "-L.", "-lregress")], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "1 the context is NULL",
        "too small",
        "3 step: argument 0 ('x') is NULL",
        "3 step: argument 1 ('y') is NULL",
        "3 step: argument 0 ('x') is not aligned to its element of 4 bytes",
        "3 no state or hyperparameter 'v'",
        "3 'w' has 20 bytes, got 4",
        "3 'w' is not a scalar",
        "7 no such file: No such file or directory",
        "7 main.c: damaged: shorter than its header says",
        "7 no such folder/file: No such file or directory",
        "0 ",
        "20 5 0.5",
        "1",
    ]


@pytest.mark.parametrize("flags", [(), ("-DTG_NO_THREADS",)], ids=["threads", "no threads"])
def test_the_library_as_one_c_file(regression, data, kit, tmp_path, flags):
    """These kernels are plain loops already; -Werror, and losses to within rounding of the compiled library's."""
    states = {"w": data.w, "lr": np.array(data.lr, "f4")}
    runtime.export(regression, tmp_path, states, prefix="plain", plain=regression.recipe())
    (tmp_path / "libplain.a").unlink()
    program = compile_c(
        tmp_path, tmp_path / "main.c", "plain.c", flags=("-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", *flags)
    )
    data.x.tofile(tmp_path / "x.bin")
    data.y.tofile(tmp_path / "y.bin")
    done = subprocess.run([program, str(kit.steps), "x.bin", "y.bin"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    losses = [float(line.split()[1]) for line in done.stdout.splitlines()]
    np.testing.assert_allclose(losses, kit.reference(data.x, data.y, data.w, data.lr, kit.steps)[0], rtol=1e-5)


@pytest.mark.parametrize("library", [["-L.", "-lregress"], ["libregress.a"]], ids=["shared", "static"])
def test_steps_allocate_nothing(exported, tmp_path, library):
    folder = Path(shutil.copytree(exported, tmp_path / "p"))
    done = subprocess.run([compile_c(folder, C / "steps.c", *library)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "0 0\n"), done.stderr


@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_sanitizers(kit, data, tmp_path, sanitizer):
    """The runtime and the tables instrumented, the program too; any report ends it with an error."""
    flags = (f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", "-g", "-Werror")
    library = builder.Recipe(kit.regression, kit.regression_kernels, kit.target, "regress", flags)
    (tmp_path / "libregress.a").write_bytes(library.static_library())
    (tmp_path / "regress.h").write_text(header.header(library.manifest, {}))
    shutil.copy(C / "stress.c", tmp_path)
    program = compile_c(tmp_path, tmp_path / "stress.c", "libregress.a", flags=("-std=c11", *flags))
    done = subprocess.run([program], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert float(done.stdout) < 0.1


def test_runtime_without_threads(kit, data, tmp_path):
    """-DTG_NO_THREADS: no pthreads, no atomics, no warnings, the same values."""
    flags = ("-DTG_NO_THREADS", "-Werror", "-pedantic")
    library = runtime.build(kit.regression, kit.regression_kernels, kit.target, prefix="regress", cflags=flags)
    symbols = subprocess.run(["nm", "-D", "--undefined-only", library.path], capture_output=True, text=True, check=True).stdout
    assert "pthread" not in symbols and "tls" not in symbols
    context = library.context(4)
    context.state("lr")[...] = data.lr
    losses = [context.run("step", {"x": data.x, "y": data.y})["loss"] for _ in range(kit.steps)]
    np.testing.assert_allclose(losses, kit.reference(data.x, data.y, data.w, data.lr, kit.steps)[0], rtol=1e-5)


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


def test_a_package_written_over_a_loaded_one(kit, tmp_path):
    """The system would give the library that it loaded by that name before: no error, and the other's numbers."""
    x = np.full(64, 5, "f4")
    for name, func, expected in (("add", kit.add, 7), ("subtract", kit.subtract, 3), ("add", kit.add, 7)):
        runtime.export(runtime.build(*kit.binary(name, func), kit.target, prefix="same"), tmp_path, {})
        loaded = runtime.load(tmp_path)
        assert np.all(loaded(x) == expected) and str(tmp_path) in repr(loaded)


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
