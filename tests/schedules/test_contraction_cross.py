"""The contraction template for NEON, cross-compiled and run by qemu: variants and tails against NumPy."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.runtime.test_cross import cross_compiler, emulator
from tests.schedules.test_contraction import arrays_for, plain, product
from tilegrad import runtime
from tilegrad._base.target import Target
from tilegrad.runtime.program import Buffer, Call, Program
from tilegrad.schedules import schedule, task_of
from tilegrad.schedules.stages import create

CASES = [  # m, n, k, layout, dtype, accumulator, changes to the default config
    (7, 17, 127, "NN", "float32", None, {}),
    (37, 29, 31, "NT", "float32", None, {"pack_a": True, "pack_b": True, "kc": 16}),
    (17, 61, 7, "TN", "float32", None, {"pack_a": True, "pack_b": True}),
    (13, 40, 64, "NN", "float32", None, {"split": [1, 1, 2], "kc": 16}),
    (2, 19, 131, "NT", "float32", None, {"form": "dot", "mr": 2, "nr": 4, "pack_a": False, "pack_b": False}),
    (9, 11, 23, "NN", "float64", None, {}),
    (9, 34, 23, "NN", "int8", "int32", {}),
]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """(arrays, result) of every case, from one library and one run."""
    target = Target.parse("aarch64-linux-gnu", threads=2)
    compiler, qemu = cross_compiler(target), emulator("aarch64")
    folder: Path = tmp_path_factory.mktemp("neon")
    programs, kernels, feeds, calls = {}, {}, [], []
    for i, (m, n, k, layout, dtype, acc, changes) in enumerate(CASES):
        inputs, out = product(m, n, k, layout, dtype, acc)
        func = create([*inputs, out])
        template, workload = task_of(func)
        assert template.name == "contraction/1"
        kernels[f"k{i}"] = schedule(func, target, {**template.default(workload, target), **changes})
        feeds.append(arrays_for(inputs))
        roles = {"a": "input", "b": "input", "c": "output"}
        types = {"a": dtype, "b": dtype, "c": str(out.dtype)}
        shapes = {"a": feeds[-1][0].shape, "b": feeds[-1][1].shape, "c": (m, n)}
        buffers = {x: Buffer(x, shapes[x], types[x], roles[x]) for x in "abc"}
        programs[f"p{i}"] = Program(f"p{i}", tuple("abc"), buffers, (Call(f"k{i}", tuple("abc")),), {f"k{i}": func})
        sizes = {x: buffers[x].nbytes for x in "abc"}
        for x, array in zip("ab", feeds[-1], strict=True):
            array.tofile(folder / f"{x}{i}.bin")
        calls.append(f"run(neon_p{i}, context, {i}, {sizes['a']}, {sizes['b']}, {sizes['c']});")
    library = runtime.build(programs, kernels, target, prefix="neon")
    runtime.export(library, folder, {})
    (folder / "driver.c").write_text(DRIVER.replace("CALLS", "\n    ".join(calls)))
    command = [*compiler, "-O1", "driver.c", "libneon.a", "-lm", "-lpthread", "-o", "driver"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    done = subprocess.run([*qemu, "./driver"], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [
        (f, np.fromfile(folder / f"c{i}.bin", c[5] or c[4]).reshape(c[0], c[1]))
        for i, (c, f) in enumerate(zip(CASES, feeds, strict=True))
    ]


DRIVER = """
#include <stdio.h>
#include <stdlib.h>
#include "neon.h"

static void *get(const char *name, int i, size_t bytes) {
    char path[32];
    void *data = malloc(bytes);
    sprintf(path, "%s%d.bin", name, i);
    FILE *file = fopen(path, "rb");
    if (!file || fread(data, 1, bytes, file) != bytes) exit(3);
    fclose(file);
    return data;
}

static void run(int (*entry)(neon_context *, void *const *), neon_context *context, int i, size_t a, size_t b, size_t c) {
    void *ports[] = {get("a", i, a), get("b", i, b), malloc(c)};
    if (entry(context, ports)) exit(4);
    char path[32];
    sprintf(path, "c%d.bin", i);
    FILE *file = fopen(path, "wb");
    fwrite(ports[2], 1, c, file);
    fclose(file);
}

int main(void) {
    neon_context *context = neon_context_create(2);
    CALLS
    return 0;
}
"""


@pytest.mark.parametrize("number", range(len(CASES)))
def test_products_on_neon(results, number):
    arrays, got = results[number]
    np.testing.assert_allclose(got, plain(arrays, CASES[number][3]), rtol=1e-4, atol=1e-4)
