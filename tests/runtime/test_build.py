"""Building: content caches, hidden symbols, refused programs, machines without a compiler."""

from __future__ import annotations

import dataclasses
import os
import stat
import subprocess
import sys
import threading

import numpy as np
import pytest

import tilegrad as tg
from tilegrad import runtime
from tilegrad._base.errors import LibraryError, UsageError
from tilegrad.relax_ext.graph import GraphBuilder
from tilegrad.runtime import cache, kernels, toolchain
from tilegrad.runtime.program import Buffer


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """An empty cache."""
    monkeypatch.setenv("TILEGRAD_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def counted(monkeypatch):
    """Counts kernels compiled and C compiler runs."""
    counts = {"kernels": 0, "cc": 0}

    def count(module, name, what):
        real = getattr(module, name)

        def wrapper(*args, **kwargs):
            counts[what] += 1
            return real(*args, **kwargs)

        monkeypatch.setattr(module, name, wrapper)

    count(kernels, "_compile", "kernels")
    count(toolchain.Toolchain, "_run", "cc")
    return counts


def build(kit, **options):
    return runtime.build(kit.regression, kit.regression_kernels, kit.target, **options)


def test_second_build_compiles_nothing(kit, own_cache, counted):
    first = build(kit)
    assert counts_then_reset(counted) == (3, 3)  # runtime, tables, link
    assert build(kit).path == first.path and counts_then_reset(counted) == (0, 0)
    build(kit, prefix="other")  # kernels and runtime are shared; tables and link are not
    assert counts_then_reset(counted) == (0, 2)


def counts_then_reset(counted):
    seen = counted["kernels"], counted["cc"]
    counted.update(kernels=0, cc=0)
    return seen


def test_builds_are_reproducible(kit, tmp_path, monkeypatch):
    images = []
    for name in ("one", "two"):
        monkeypatch.setenv("TILEGRAD_CACHE_DIR", str(tmp_path / name))
        images.append(build(kit).path.read_bytes())
    assert images[0] == images[1]


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b[:5000] + b"\0" + b[5001:], lambda b: b""])
def test_damaged_entries_are_made_again(kit, own_cache, counted, damage, data):
    path = build(kit).path
    counts_then_reset(counted)
    path.write_bytes(damage(path.read_bytes()))
    one_object = next(p for p in (own_cache / "objects").iterdir() if p.name.startswith("tgk_"))
    one_object.write_bytes(damage(one_object.read_bytes()))
    again = build(kit)
    assert again.path == path and counts_then_reset(counted) == (1, 2)
    assert again.context().run("evaluate", {"x": data.x, "y": data.y})["loss"] > 0


def test_size_limit_and_clear(kit, own_cache, monkeypatch):
    build(kit)
    assert cache.info().files == 5 and cache.info().bytes > 10_000
    library = max((own_cache / "libraries").iterdir())
    for p in (own_cache / "objects").iterdir():
        os.utime(p, (1, 1))
    size = library.stat().st_size
    monkeypatch.setattr(cache, "_limit_bytes", lambda: size)
    cache.trim()
    assert [p for p in own_cache.rglob("*") if p.is_file()] == [library]  # what was used last stays
    assert cache.clear().files == 1 and cache.info().files == 0


@pytest.mark.parametrize("wrong", ["abc", "-1", "1.5", "\u00b2"])
def test_a_size_limit_that_is_none(kit, own_cache, monkeypatch, wrong):
    monkeypatch.setenv("TILEGRAD_CACHE_LIMIT_MB", wrong)
    for use in (cache.info, lambda: build(kit)):
        with pytest.raises(UsageError, match=f"TILEGRAD_CACHE_LIMIT_MB.*{wrong}.*a whole number of mebibytes"):
            use()


def test_tvm_prints_nothing(own_cache, capfd):
    """Sequences of statements in a kernel, and a graph given up half-way, would make it print warnings."""
    x = np.ones((2, 3), "f4")
    tg.compile(lambda x: tg.cumsum(x, 1), [x], logs=[])(x)
    builder = GraphBuilder()
    builder.input("x", (2,), "float32")
    del builder
    assert capfd.readouterr() == ("", "")


def test_unwritable_cache_is_an_error(kit, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TILEGRAD_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(LibraryError, match="TILEGRAD_CACHE_DIR"):
        build(kit)


def test_many_threads_build_at_once(kit, own_cache):
    paths = []
    threads = [threading.Thread(target=lambda: paths.append(build(kit).path)) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(paths) == 4 and len(set(paths)) == 1
    assert not list(own_cache.rglob(".*"))


def test_only_public_symbols_and_plain_needs(regression):
    text = subprocess.run(["nm", "-D", "--defined-only", regression.path], capture_output=True, text=True, check=True).stdout
    names = {line.split()[-1] for line in text.splitlines()}
    assert {"regress_step", "regress_evaluate", "regress_context_create", "regress_manifest"} <= names
    assert all(n.startswith("regress_") for n in names)
    needs = subprocess.run(["readelf", "-d", regression.path], capture_output=True, text=True, check=True).stdout
    wanted = {line.split("[")[1].split("]")[0] for line in needs.splitlines() if "(NEEDED)" in line}
    assert {w for w in wanted if not w.startswith("ld-linux")} <= {"libc.so.6", "libm.so.6", "libpthread.so.0"}


def test_manifest_says_what_is_inside(regression, kit):
    m = regression.manifest
    assert m["prefix"] == "regress" and m["target"]["arch"] == kit.target.arch
    assert [str(p) for p in regression.entries["evaluate"]] == [
        "input 'x' float32[32, 5]", "input 'y' float32[32]", "state 'w' float32[5]", "output 'loss' float32[]",
    ]  # fmt: skip
    assert [p.written for p in regression.entries["step"]] == [False, False, True, False, True]
    assert [p.written for p in regression.entries["evaluate"]] == [False, False, False, True]


def test_large_constants_are_taken_in_from_a_file(kit):
    big = np.arange(64 * 64, dtype="f4").reshape(64, 64)
    buffers = [(f"c{i}", (64,), "float32", "const", big[i].copy()) for i in range(64)]
    buffers += [("x", (64,), "float32", "input"), ("y", (64,), "float32", "output"), ("t", (64,), "float32", "temp", 0)]
    calls = [("add", ("x", "c0", "t"))] + [("add", ("t", f"c{i}", "t" if i < 63 else "y")) for i in range(1, 64)]
    p = kit.program("sum", ("x", "y"), buffers, calls, arena_bytes=256)
    library = runtime.build({"sum": p}, {"add": kit.scheduled(kit.add)}, kit.target)
    x = np.ones(64, "f4")
    np.testing.assert_array_equal(library.context().run("sum", {"x": x})["y"], x + big.sum(0))


def test_views_show_the_memory_of_another_buffer(kit):
    """x + 2 through views of a temporary, of the input and of the output."""
    two, F = np.full(64, 2, "f4"), "float32"
    buffers = [
        ("x", (8, 8), F, "input"),
        ("y", (4, 16), F, "output"),
        ("two", (64,), F, "const", two),
        ("t", (2, 32), F, "temp", 0),
    ]
    p = kit.program("run", ("x", "y"), buffers, [("add", ("xv", "two", "tv")), ("add", ("tv", "two", "yv"))], arena_bytes=256)
    views = {f"{n}v": Buffer(f"{n}v", (64,), F, "view", view_of=n) for n in ("x", "y", "t")}
    p = dataclasses.replace(p, buffers={**p.buffers, **views})
    library = runtime.build({"run": p}, {"add": kit.scheduled(kit.add)}, kit.target)
    assert [port.written for port in library.entries["run"]] == [False, True]
    x = np.arange(64, dtype="f4").reshape(8, 8)
    np.testing.assert_array_equal(library.context().run("run", {"x": x})["y"], (x + 4).reshape(4, 16))
    for change in ({"view_of": "yv"}, {"view_of": None}, {"view_of": "two", "shape": (32,)}):
        bad = dataclasses.replace(p, buffers={**p.buffers, "tv": dataclasses.replace(views["tv"], **change)})
        with pytest.raises(UsageError, match="view 'tv'|call of 'add'"):
            runtime.build({"run": bad}, {"add": kit.scheduled(kit.add)}, kit.target)


def test_entries_that_disagree_on_a_state(kit):
    other = dict(kit.regression)
    step = other["step"]
    buffers = {**step.buffers, "w": dataclasses.replace(step.buffers["w"], shape=(6,))}
    other["again"] = dataclasses.replace(step, buffers=buffers)
    with pytest.raises(UsageError, match=r"entry 'again', state 'w'.*float32\[6\].*float32\[5\]"):
        runtime.build(other, kit.regression_kernels, kit.target)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: {"calls": (dataclasses.replace(p.calls[0], kernel="nothing"),)}, "call of 'nothing'"),
        (
            lambda p: {"calls": (dataclasses.replace(p.calls[0], args=("x", "y", "w")),)},
            r"got float32\[32, 5\], float32\[32\], float32\[5\], expected .*, float32\[32\]",
        ),
        (lambda p: {"calls": (dataclasses.replace(p.calls[0], args=("x", "y", "w", "v")),)}, "unknown buffers.*'v'"),
        (lambda p: {"calls": (dataclasses.replace(p.calls[0], args=("x", "y", "y", "e")),)}, r"call of 'error'.*float32\[5\]"),
        (lambda p: {"arena_bytes": 128}, "temporary 'e'.*offset 64.*128 bytes"),
        (lambda p: {"ports": p.ports[1:]}, "input 'x'.*no port"),
    ],
)
def test_malformed_programs(kit, change, message):
    step = kit.regression["step"]
    with pytest.raises(UsageError, match=message):
        runtime.build({"step": dataclasses.replace(step, **change(step))}, kit.regression_kernels, kit.target)


def test_refused_names(kit):
    for entries, prefix, message in (
        ({}, "tg", "no programs"),
        ({"a-b": kit.regression["step"]}, "tg", "entry name.*'a-b'"),
        ({"profile": kit.regression["step"]}, "tg", "entry name.*'profile'"),
        ({"step": kit.regression["step"]}, "1x", "prefix.*'1x'"),
        ({"step": kit.regression["step"]}, "tgrt", "prefix.*'tgrt'"),
        ({"step": kit.regression["step"]}, "int", "prefix.*'int'"),
    ):
        with pytest.raises(UsageError, match=message):
            runtime.build(entries, kit.regression_kernels, kit.target, prefix=prefix)


def test_no_compiler_says_what_to_install(kit, own_cache, monkeypatch, tmp_path):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(LibraryError, match="apt install gcc.*tilegrad\\[cc\\]"):
        build(kit)


def test_cc_is_obeyed_and_its_failure_shown(kit, own_cache, monkeypatch, tmp_path):
    monkeypatch.setenv("CC", "no-such-compiler -m64")
    with pytest.raises(LibraryError, match="no-such-compiler"):
        build(kit)
    broken = tmp_path / "mycc"
    broken.write_text("#!/bin/sh\necho this compiler is broken >&2\nexit 1\n")
    broken.chmod(broken.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CC", str(broken))
    with pytest.raises(LibraryError, match="this compiler is broken"):
        build(kit)


def test_a_cached_library_needs_no_compiler(kit, own_cache, monkeypatch, tmp_path):
    build(kit)
    monkeypatch.setenv("PATH", str(tmp_path))
    build(kit)


def test_a_kernel_that_allocates_is_refused(kit, own_cache):
    from tilegrad._base.tvm import te, tirx

    a = te.placeholder((4096,), "float32", name="a")
    b = te.compute((4096,), lambda i: a[i] + 1, name="b")
    func = te.create_prim_func([a, te.compute((4096,), lambda i: b[4095 - i] * 2, name="c")])
    assert isinstance(func, tirx.PrimFunc)
    F = "float32"
    p = kit.program("run", ("a", "c"), [("a", (4096,), F, "input"), ("c", (4096,), F, "output")], [("k", ("a", "c"))])
    with pytest.raises(LibraryError, match="kernel 'k'.*heap"):
        runtime.build({"run": p}, {"k": kit.scheduled(func)}, kit.target)


def test_importing_runtime_imports_no_tvm():
    code = "import sys, tilegrad.runtime.library; sys.exit(bool({'tvm', 'torch', 'platformdirs'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
