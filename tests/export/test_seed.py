"""The seed of an exported step with dropout: the same numbers in C and in Python."""

from __future__ import annotations

import subprocess

import numpy as np
import pytest

import tilegrad as tg
from tests.export.models import STRICT
from tilegrad import nn
from tilegrad._base.errors import UsageError

C_PROGRAM = """
#include "drop.h"
#include <stdio.h>
int main(void) {
  static float x[8 * 6];
  static int64_t y[8];
  float loss;
  drop_context *ctx = drop_context_create(2);
  for (int i = 0; i < 8 * 6; ++i) x[i] = (float)(i % 7);
  for (int i = 0; i < 8; ++i) y[i] = i % 3;
  if (!ctx || drop_load(ctx, "parameters.safetensors") || drop_seed(ctx, 7)) return 1;
  for (int i = 0; i < 5; ++i) {
    if (drop_call_step(ctx, x, y, &loss)) return 2;
    printf("%.9g\\n", (double)loss);
  }
  return drop_context_destroy(ctx);
}
"""


def test_the_same_seed_in_c_and_in_python(tmp_path):
    tg.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.5), nn.Linear(16, 3))
    x, y = np.arange(48).reshape(8, 6).astype("f4") % 7, np.arange(8) % 3
    step = tg.compile_step(model, nn.functional.cross_entropy, tg.optim.SGD(model.parameters(), lr=0.01), [x, y], logs=[])
    step.export(tmp_path, prefix="drop")

    def losses(seed):
        loaded = tg.load(tmp_path, num_threads=2)
        loaded.seed(seed)
        return np.array([loaded.step(x, y) for _ in range(5)], "f4")

    (tmp_path / "seed.c").write_text(C_PROGRAM)
    command = ["cc", "-std=c11", *STRICT, "seed.c", "libdrop.a", "-lm", "-lpthread", "-o", "seed"]
    built = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    done = subprocess.run(["./seed"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert np.array_equal(np.array(done.stdout.split(), "f4"), losses(7))
    assert not np.array_equal(losses(7), losses(8))
    tg.manual_seed(7)
    assert np.array_equal([float(step(x, y)) for _ in range(5)], losses(7))


def test_a_package_without_random_operators(package):
    with pytest.raises(UsageError, match="seed: got a package without random operators"):
        tg.load(package("mlp").folder).seed(1)
