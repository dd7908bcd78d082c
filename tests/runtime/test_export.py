"""Exported packages: loaded by Python without TVM, linked by C and C++."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import pytest

from tilegrad import runtime
from tilegrad.runtime import builder, example, header, safetensors, wrapper
from tilegrad.runtime.manifest import TAKEN, Port

C = Path(__file__).parent / "c"
STRICT = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic")


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
        '#include "odd.hpp"\nint main() { odd_cpp::Context c; float x[64] = {1}; c.sum(x, x, x, x, x + 0); }\n'
    )
    compile_c(tmp_path, tmp_path / "odd.cpp", "-L.", "-lodd", compiler="c++", flags=("-std=c++17", "-Wall", "-Wextra", "-Werror"))


def test_no_port_is_named_like_a_macro(tmp_path):
    """All macros without arguments that the standard headers define, as the compiler lists them."""
    headers = (
        "assert complex ctype errno fenv float inttypes iso646 limits locale math setjmp signal stdalign stdarg stdatomic "
        "stdbool stddef stdint stdio stdlib stdnoreturn string tgmath threads time uchar wchar wctype unistd pthread"
    )
    (tmp_path / "all.c").write_text("".join(f"#include <{h}.h>\n" for h in headers.split()))
    command = [shutil.which("gcc") or pytest.skip("platform: no gcc"), "-std=gnu11", "-dM", "-E", tmp_path / "all.c"]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    macros = {name for name in re.findall(r"^#define (\w+) ", found, re.M) if not name.startswith("_")}
    assert {"NULL", "errno", "I", "linux", "EOF"} <= macros
    names = header.identifiers(tuple(Port(name, "input", (1,), "float32", False) for name in sorted(macros)))
    assert not set(names.values()) & macros
    usual = ("x", "weight", "fc1_weight", "W", "lr", "hidden", "state", "Wq")
    assert list(header.identifiers(tuple(Port(n, "input", (1,), "float32", False) for n in usual)).values()) == list(usual)


def test_prefixes_that_mean_something_in_c(regression, tmp_path):
    """Names of functions, types, macros and namespaces: headers and wrappers compile behind the system's own headers."""
    code = "#include <cstdio>\n"
    for prefix in ("printf", "main", "size_t", "NULL", "std"):
        manifest = regression.recipe().with_prefix(prefix).manifest
        (tmp_path / f"{prefix}.h").write_text(header.header(manifest, {}))
        (tmp_path / f"{prefix}.hpp").write_text(wrapper.wrapper(manifest))
        code += f'#include "{prefix}.hpp"\nvoid use({prefix}_cpp::Context &c) {{ c.seed(1); }}\n'
        targets = re.findall(r"^add_\w+\((\w+)", example.cmake(manifest), re.M)
        assert targets == [f"{prefix}_shared", f"{prefix}_static", "main"]
    (tmp_path / "use.cpp").write_text(code)
    flags = ("-std=c++11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only")
    compile_c(tmp_path, tmp_path / "use.cpp", compiler="c++", flags=flags)


def test_prefixes_of_the_systems_headers_are_refused(tmp_path):
    """All that the standard headers include by a plain name, as the compiler lists them."""
    (tmp_path / "all.cpp").write_text("#include <bits/stdc++.h>\n")
    command = [shutil.which("c++") or pytest.skip("platform: no c++"), "-std=c++17", "-M", tmp_path / "all.cpp"]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    names = {
        Path(f).stem for f in found.split() if re.fullmatch(r"/usr/include/[a-z0-9_]+\.h|.*/gcc/.*/include/[a-z0-9_]+\.h", f)
    }
    assert len(names) > 20 and not names - TAKEN


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


def test_a_package_written_over_a_loaded_one(kit, tmp_path):
    """The system would give the library that it loaded by that name before: no error, and the other's numbers."""
    x = np.full(64, 5, "f4")
    for name, func, expected in (("add", kit.add, 7), ("subtract", kit.subtract, 3), ("add", kit.add, 7)):
        runtime.export(runtime.build(*kit.binary(name, func), kit.target, prefix="same"), tmp_path, {})
        loaded = runtime.load(tmp_path)
        assert np.all(loaded(x) == expected) and str(tmp_path) in repr(loaded)
