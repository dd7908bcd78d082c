"""Several batch sizes over the same parameters in one package: called by the batch from Python and from C."""

from __future__ import annotations

import ctypes
import dataclasses
import math
import mmap
import multiprocessing
import subprocess

import numpy as np
import pytest

import tilegrad as tg
from tests.export.models import STRICT
from tilegrad import _model, nn
from tilegrad._base.errors import ShapeError, UsageError

SIZES = (1, 4, 16)
F = nn.functional


def mlp():
    tg.manual_seed(3)
    return nn.Sequential(nn.Linear(9, 8), nn.ReLU(), nn.Linear(8, 5))


@pytest.fixture(scope="module")
def batch():
    rng = np.random.default_rng(2)
    return rng.standard_normal((16, 9)).astype("f4"), rng.integers(0, 5, 16)


def training_step(batch, **options):
    model = mlp()
    x, y = batch
    return tg.compile_step(
        model, F.cross_entropy, tg.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), [x, y], logs=[], **options
    )


@pytest.fixture(scope="module")
def several(batch, tmp_path_factory):
    """A training step for three batch sizes, and its package."""
    step = training_step(batch, batch_sizes=SIZES)
    return step, step.export(tmp_path_factory.mktemp("several"), prefix="several")


@pytest.fixture(scope="module")
def upto(batch, tmp_path_factory):
    """For up to 16 rows, with an entry of its own for up to 4: products, sums along rows, kernels of several; its package."""
    model = mlp()
    compiled = tg.compile(lambda x: model(x).softmax(1) + tg.max(x, 1, keepdims=True), [batch[0]], logs=[], max_batch=(4, 16))
    return compiled, compiled.export(tmp_path_factory.mktemp("upto"), prefix="upto", c_source=True)


def test_each_size_trains_as_if_compiled_alone(several, batch):
    """One run through all sizes, on the same parameters and momentum."""
    step, loaded = several[0], tg.load(several[1])
    x, y = batch
    alone = training_step(batch)
    for n in (*SIZES, *reversed(SIZES)):
        expected = alone(x[:n], y[:n])
        assert step(x[:n], y[:n]) == expected == loaded.step(x[:n], y[:n])
        loss, prediction = loaded.evaluate(x[:n], y[:n])
        assert loss == alone.evaluate(x[:n], y[:n])[0]
        assert np.array_equal(prediction, alone.predict(x[:n])) and np.array_equal(prediction, loaded.predict(x[:n]))
    assert all(np.array_equal(loaded.state(name), a) for name, a in alone.states.items())


def test_an_unknown_batch_is_refused_with_those_there_are(several, batch):
    loaded = tg.load(several[1])
    x, y = batch
    for call in (loaded.step, loaded.evaluate):
        with pytest.raises(ShapeError, match=r"'(step|evaluate)': got a batch of 5, expected 1, 4 or 16"):
            call(x[:5], y[:5])
    with pytest.raises(ShapeError, match=r"input 'target'.*\(3,\).*\(4,\)"):
        loaded.step(x[:4], y[:3])
    with pytest.raises(UsageError, match="'stop'.*step, evaluate, predict, step_16"):
        loaded.call("stop", x)


@pytest.mark.parametrize("n", [1, 2, 4, 5, 7, 15, 16])
def test_any_batch_up_to_the_largest(upto, batch, n):
    compiled, folder = upto
    x = batch[0][:n]
    loaded = tg.load(folder)
    y = loaded(x)
    most = 4 if n <= 4 else 16
    assert y.shape == (n, 5) and np.array_equal(y, compiled(x)) and np.array_equal(y, compiled(batch[0][:most])[:n])
    np.testing.assert_allclose(y, tg.compile(compiled.function, [x], logs=[])(x), rtol=1e-5, atol=1e-6)


def test_the_command_line_calls_by_the_batch(upto, batch, tmp_path):
    np.savez(tmp_path / "in.npz", x=batch[0][:5])
    for entry in (None, "run"):
        _model.run(upto[1], tmp_path / "in.npz", tmp_path / "out.npz", entry)
        with np.load(tmp_path / "out.npz") as out:
            assert np.array_equal(out["output"], upto[0](batch[0][:5]))
    assert upto[0].verify().ok


def test_rows_beyond_the_batch_are_neither_read_nor_written(upto, batch):
    """The arrays end in memory that the call must leave alone."""
    loaded = tg.load(upto[1])
    memory = np.full((16, 5), 7, "f4")
    loaded.run("run", {"x": batch[0][:7], "output": memory[:7]})
    assert np.all(memory[7:] == 7) and np.array_equal(memory[:7], loaded(batch[0][:7]))
    for n in (0, 17):
        with pytest.raises(ShapeError, match=f"a batch of {n}, expected 1 to 16"):
            loaded(np.zeros((n, 9), "f4"))


C_PROGRAM = r"""
#include "NAME.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
enum { THREADS = 3, SIZES = 18 };
static float all[16 * 9];
static struct { float y[SIZES][16 * 5]; char error[SIZES][64]; } found[THREADS];
static void *work(void *argument) { /* every batch, in a context of this thread */
  const int t = *(int *)argument;
  NAME_context *ctx = NAME_context_create(2);
  if (!ctx || NAME_load(ctx, "parameters.safetensors")) return NULL;
  for (int n = 0; n < SIZES; ++n) {
    const size_t rows = (size_t)n, given = rows < 16 ? rows : 16; /* arrays of exactly n rows */
    float *x = malloc(rows * 9 * sizeof *x + 1), *y = malloc(rows * 5 * sizeof *y + 1);
    if (!x || !y) return NULL;
    memcpy(x, all, given * 9 * sizeof *x);
    if (NAME_call_ENTRY(ctx, n, x, y)) strcpy(found[t].error[n], NAME_last_error(ctx));
    else memcpy(found[t].y[n], y, given * 5 * sizeof *y);
    free(x), free(y);
  }
  return NAME_context_destroy(ctx) ? NULL : argument;
}
int main(void) {
  pthread_t threads[THREADS];
  int numbers[THREADS];
  FILE *file = fopen("x.bin", "rb");
  if (!file || fread(all, sizeof *all, 16 * 9, file) != 16 * 9) return 1;
  fclose(file);
  for (int t = 0; t < THREADS; ++t) {
    numbers[t] = t;
    if (pthread_create(&threads[t], NULL, work, &numbers[t])) return 2;
  }
  for (int t = 0; t < THREADS; ++t) {
    void *done;
    if (pthread_join(threads[t], &done) || !done || memcmp(&found[t], &found[0], sizeof found[0])) return 3;
  }
  for (int n = 0; n < SIZES; ++n) {
    if (*found[0].error[n]) puts(found[0].error[n]);
    else for (int i = 0; i < n * 5; ++i) printf("%.9g%c", (double)found[0].y[n][i], i + 1 < n * 5 ? ' ' : '\n');
  }
  return 0;
}
"""


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        ("several", "shared"), ("several", "static"), ("upto", "shared"), ("upto", "static"), ("upto", "source"),
        ("upto", "sanitized"), ("upto", "thread"),
    ],
)  # fmt: skip
def test_from_c(kind, form, batch, request):
    compiled, folder = request.getfixturevalue(kind)
    entry, taken = {"several": ("predict", SIZES), "upto": ("run", range(1, 17))}[kind]
    (folder / "call.c").write_text(C_PROGRAM.replace("NAME", kind).replace("ENTRY", entry))
    batch[0].tofile(folder / "x.bin")
    thread = ("-g", "-fsanitize=thread", "-fno-sanitize-recover=all")
    if form == "thread":  # the runtime that divides the rows is instrumented
        recipe = compiled.library.recipe().with_prefix(kind)
        (folder / "instrumented.a").write_bytes(dataclasses.replace(recipe, cflags=thread).static_library())
    links = {
        "shared": ["-L.", f"-l{kind}", "-Wl,-rpath,."],
        "static": [f"lib{kind}.a"],
        "source": [f"{kind}.c"],
        "sanitized": [f"{kind}.c", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
        "thread": ["instrumented.a", *thread],
    }[form]
    command = ["cc", "-O2", "-std=c11", *STRICT, "call.c", *links, "-lm", "-lpthread", "-o", f"call_{form}"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    done = subprocess.run([f"./call_{form}"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
    lines = done.stdout.splitlines()
    loaded = tg.load(folder, num_threads=2)
    for n, line in enumerate(lines):
        if n in taken:
            got, expected = np.array(line.split(), "f4").reshape(n, 5), loaded.call(entry, batch[0][:n])
            assert (
                np.array_equal(got, expected)
                if form in ("shared", "static", "thread")
                else np.allclose(got, expected, 1e-5, 1e-6)
            )
        else:
            assert line == f"{entry}: a batch of {n}; there are {'1, 4 or 16' if kind == 'several' else '1 to 16'}"
    assert len(lines) == 18


def test_the_wrapper_for_cpp(several):
    _, folder = several
    (folder / "wrap.cpp").write_text(
        '#include "several.hpp"\nint main() {\n'
        "  several_cpp::Context c;\n  float x[16 * 9] = {}, y[16 * 5];\n  c.predict(4, x, y);\n"
        "  try { c.predict(5, x, y); } catch (const several_cpp::Error &e) { return e.code == SEVERAL_ERR_ARGUMENT ? 0 : 2; }\n"
        "  return 1;\n}\n"
    )
    command = ["c++", "-std=c++11", *STRICT, "wrap.cpp", "-L.", "-lseveral", "-Wl,-rpath,.", "-o", "wrap"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    subprocess.run(["./wrap"], cwd=folder, check=True)


def guarded(shape, dtype):
    """An array that ends where a page begins that must not be touched."""
    libc, page = ctypes.CDLL(None), mmap.PAGESIZE
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    pages = -(-nbytes // page)
    memory = mmap.mmap(-1, (pages + 1) * page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert libc.mprotect(ctypes.c_void_p(start + pages * page), page, 0) == 0
    return np.frombuffer(memory, np.uint8, nbytes, pages * page - nbytes).view(dtype).reshape(shape)


def every_batch(folder, x, expected, threads):
    """In a process of its own, which a read or write beyond the rows ends."""
    loaded = tg.load(folder, num_threads=threads)
    whole = loaded(x)
    for n in range(len(x), 0, -1):
        rows, out = guarded((n, *x.shape[1:]), x.dtype), guarded((n, *expected.shape[1:]), expected.dtype)
        rows[...] = x[:n]
        loaded.run("run", {"x": rows, "output": out})
        np.testing.assert_allclose(out, expected[:n], rtol=1e-5, atol=1e-6)
        assert np.array_equal(out, whole[:n])


def models():
    """Dense rows, images (segments of a convolution, windows, pools), tokens (attention, norms, rows of rows), pairs of rows."""
    tg.manual_seed(0)
    rng = np.random.default_rng(0)
    images = [nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.BatchNorm2d(4), nn.Conv2d(4, 8, 3, padding=1), nn.ReLU()]
    images += [nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.Conv2d(8, 8, 1), nn.Flatten(), nn.Linear(8 * 9, 10)]
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    constant = tg.tensor(rng.standard_normal((40, 24)).astype("f4"))
    return {
        "mlp": (nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 10)), rng.standard_normal((17, 40)).astype("f4")),
        "cnn": (nn.Sequential(*images).eval(), rng.standard_normal((5, 1, 14, 14)).astype("f4")),
        "transformer": (nn.Sequential(nn.Embedding(11, 16), layer, nn.Linear(16, 3)).eval(), rng.integers(0, 11, (5, 12))),
        "products of batches": (lambda x: x @ x.transpose(1, 2), rng.standard_normal((6, 7, 20)).astype("f4")),
        "one column": (nn.Linear(40, 1), rng.standard_normal((9, 40)).astype("f4")),
        "a packed constant": (lambda x: tg.relu(x @ constant), rng.standard_normal((33, 40)).astype("f4")),
    }


@pytest.mark.parametrize("name", models())
@pytest.mark.parametrize("threads", [pytest.param(1, marks=pytest.mark.long), 2])
def test_every_batch_is_right_and_stays_within_its_rows(name, threads, tmp_path):
    """Each row is what the model gives for it, whatever number of rows it comes with."""
    model, x = models()[name]
    compiled = tg.compile(model, [x], logs=[], max_batch=len(x), num_threads=threads)
    names = [p.name for p in compiled.library.ports("run") if p.role in ("input", "output")]
    assert names == ["x", "output"]
    expected = np.asarray(model(tg.tensor(x)))
    args = (compiled.export(tmp_path, prefix="every"), x, expected, threads)
    process = multiprocessing.get_context("spawn").Process(target=every_batch, args=args)
    process.start()
    process.join(600)
    assert process.exitcode == 0


X = np.ones((8, 6), "f4")
MIXING = {
    "a mean over the batch": (lambda x: x - x.mean(0), "mean.*'x_red'"),
    "a softmax along the batch": (lambda x: x.softmax(0), "softmax"),
    "rows that move": (lambda x: tg.roll(x, 1, 0), "strided_slice"),
    "products of rows with rows": (lambda x: x @ x.T, "matmul"),
    "a running sum": (lambda x: tg.cumsum(x, 0), "scan"),
    "loops that cannot be divided": (lambda x: tg.cumsum(x, 1), "scan.*divided by rows"),
    "the largest of a column": (lambda x: tg.argmax(x, 0), "argmax"),
    "rows chosen by their values": (lambda x: x[tg.argmax(x, 1)], "take|gather"),
    "a sum": (lambda x: x.sum(), "'x_red'"),
    "an output without rows": (lambda x: (x, tg.zeros((2, 2)) + 1), "'output1'.*no row"),
    "an output that lies across": (lambda x: (x * 2).T, "first axis"),
}


@pytest.mark.parametrize("name", MIXING)
def test_models_that_mix_rows_are_refused(name):
    function, what = MIXING[name]
    with pytest.raises(UsageError, match=rf"max_batch.*{what}.*batch_sizes="):
        tg.compile(function, [X], logs=[], max_batch=2)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.softmax(1),
        lambda x: tg.argmax(x, 1),
        lambda x: x.mean(1),
        lambda x: x + tg.arange(x.shape[0]).reshape(-1, 1),
        lambda x: tg.concat([x, tg.zeros((x.shape[0], 2))], 1),
    ],
)
def test_rows_may_be_worked_on_each_by_itself(function):
    x = np.random.default_rng(1).standard_normal((15, 3)).astype("f4")
    compiled = tg.compile(function, [x], logs=[], max_batch=15)
    whole, expected = compiled(x), np.asarray(function(tg.tensor(x)))
    np.testing.assert_allclose(whole, expected, rtol=1e-6)
    assert all(np.array_equal(compiled(x[:n]), whole[:n]) for n in range(1, 16))


def test_batch_normalisation_is_refused_in_training():
    """In evaluation it is part of the CNN above."""
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    x = np.random.default_rng(0).standard_normal((2, 1, 5, 5)).astype("f4")
    with pytest.raises(UsageError, match="mixes rows of the batch"):
        tg.compile(model, [x], logs=[], max_batch=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_sizes": (1, 8), "max_batch": 8}, "'batch_sizes' and 'max_batch'.*both"),
        ({"batch_sizes": ()}, r"'batch_sizes'.*\(\).*distinct"),
        ({"batch_sizes": (8, 8)}, r"'batch_sizes'.*distinct"),
        ({"batch_sizes": (0, 8)}, r"'batch_sizes'.*at least 1"),
        ({"max_batch": 0}, "'max_batch'.*at least 1"),
        ({"max_batch": 2.5}, "'max_batch'.*a whole number"),
        ({"max_batch": (2, 2)}, "'max_batch'.*several"),
    ],
)
def test_bad_sizes(options, message):
    with pytest.raises(UsageError, match=message):
        tg.compile(lambda x: x, [X], **options)


def test_an_example_without_a_batch():
    with pytest.raises(UsageError, match=r"example_inputs.*first axis is the batch"):
        tg.compile(lambda x: x, [np.float32(1)], max_batch=4)
