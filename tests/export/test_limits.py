"""Class numbers and indices out of range are refused by the library itself, before anything is computed."""

from __future__ import annotations

import subprocess

import numpy as np
import pytest

import tilegrad as tg
from tests.export.models import STRICT
from tilegrad import nn
from tilegrad._base.errors import IndexingError

F = nn.functional
X = np.random.default_rng(0).standard_normal((8, 6)).astype("f4")
Y = np.arange(8) % 3

C_PROGRAM = """
#include "classes.h"
#include <stdio.h>
int main(void) {
  static float x[8 * 6];
  int64_t y[8] = {0, 1, 2, 0, 1, -100, 0, 1};
  float loss = -1;
  classes_context *ctx = classes_context_create(1);
  if (!ctx || classes_load(ctx, "parameters.safetensors")) return 1;
  printf("%d\\n", classes_call_step(ctx, x, y, &loss));
  y[2] = 3;
  loss = -1;
  printf("%d %s %g\\n", classes_call_step(ctx, x, y, &loss), classes_last_error(ctx), (double)loss);
  y[2] = INT64_MIN;
  printf("%d %s\\n", classes_call_evaluate(ctx, x, y, &loss, x), classes_last_error(ctx));
  y[2] = 2;
  printf("%d\\n", classes_call_step(ctx, x, y, &loss));
  return classes_context_destroy(ctx);
}
"""


def step(loss_fn=F.cross_entropy, y=Y, model=None, x=X):
    tg.manual_seed(1)
    model = model or nn.Linear(6, 3)
    return tg.compile_step(model, loss_fn, tg.optim.SGD(model.parameters(), lr=0.1), [x, y], logs=[], num_threads=1)


def test_in_c(tmp_path):
    folder = step().export(tmp_path, prefix="classes")
    assert "0 to 2, or -100, anything else is CLASSES_ERR_ARGUMENT" in (folder / "classes.h").read_text()
    (folder / "call.c").write_text(C_PROGRAM)
    command = ["cc", "-std=c11", *STRICT, "call.c", "libclasses.a", "-lm", "-lpthread", "-o", "call"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = subprocess.run(["./call"], cwd=folder, capture_output=True, text=True, check=True).stdout.splitlines()
    bad = "argument 1 ('target') is {} at element 2, expected 0 to 2, or -100"
    assert lines == ["0", f"3 step: {bad.format(3)} -1", f"3 evaluate: {bad.format(-(2**63))}", "0"]


@pytest.mark.parametrize("dtype", ["int64", "int32", "int16", "uint8"])
def test_in_python_compiled_and_loaded(dtype, tmp_path):
    y = Y.astype(dtype)
    compiled = step(y=y)
    loaded = tg.load(compiled.export(tmp_path, prefix="classes"), num_threads=1)
    before = loaded.state("weight").copy()
    wrong = y.copy()
    wrong[5] = 200 if dtype == "uint8" else -3
    for call in (loaded.step, loaded.evaluate, compiled, compiled.evaluate):
        with pytest.raises(IndexingError, match=rf"'target'\) is {wrong[5]} at element 5, expected 0 to 2, or -100"):
            call(X, wrong)
    assert np.array_equal(loaded.state("weight"), before)
    assert loaded.step(X, y) == compiled(X, y)


def test_a_target_in_another_shape():
    trained = step(lambda p, t: F.cross_entropy(p, t.reshape(-1)), Y.reshape(4, 2))
    trained(X, Y.reshape(4, 2))
    with pytest.raises(IndexingError, match="is 9 at element 7, expected 0 to 2"):
        trained(X, np.array([[0, 0], [0, 0], [0, 0], [0, 9]]))


def test_indices_of_an_embedding_in_every_row_given():
    """From minus the number of entries on; for a batch below the largest its own rows alone are looked at."""
    table = nn.Embedding(11, 4)
    compiled = tg.compile(table, [np.zeros((3, 2), "int64")], logs=[], max_batch=(2, 3))
    memory = np.array([[0, 10], [-11, 3], [99, 99]])
    weight = table.weight.numpy()
    assert np.array_equal(compiled(memory[:2]), weight[memory[:2]])
    with pytest.raises(IndexingError, match=r"'index'\) is 99 at element 4, expected -11 to 10"):
        compiled(memory)
    for rows in (1, 2, 3):  # the smallest entry that takes them is called; C's text says its name
        with pytest.raises(IndexingError, match="is 99 at element 0"):
            compiled(memory[::-1][:rows].copy())
        context = compiled._context
        assert context._f.last_error(context._pointer).decode().startswith(f"run_{max(rows, 2)}: argument 0")


def test_two_uses_of_one_array_allow_what_both_allow():
    """As a class of 3, or -100, and as an index of 2 rows: 0 and 1."""
    table = tg.tensor(np.ones((2, 3), "f4"))
    compiled = tg.compile(lambda x, y: F.cross_entropy(x, y) + table[y].sum(), [X, Y % 2], logs=[])
    compiled(X, Y % 2)
    for bad in (2, -1, -100):
        with pytest.raises(IndexingError, match=f"is {bad} at element 0, expected 0 to 1$"):
            compiled(X, np.full(8, bad))
