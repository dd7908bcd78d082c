"""Small kernels with known results, the programs made of them, and their libraries (built once a session)."""

# No "from __future__ import annotations" here: TVMScript reads the annotations as values.
from types import SimpleNamespace

import numpy as np
import pytest

from tilegrad import runtime
from tilegrad._base.target import Target
from tilegrad._base.tvm import tvm
from tilegrad.runtime.program import Buffer, Call, Program

T = pytest.importorskip("tvm.script").tirx
ROWS, COLS, STEPS = 32, 5, 20


@T.prim_func(s_tir=True)
def error(x: T.Buffer((32, 5), "float32", align=4), y: T.Buffer((32,), "float32", align=4), w: T.Buffer((5,), "float32", align=4),
          e: T.Buffer((32,), "float32", align=4)):  # fmt: skip
    """e = x w - y, one thread a few rows."""
    T.func_attr({"tirx.noalias": True})
    for i in T.parallel(32):
        e[i] = -y[i]
        for k in range(5):
            e[i] = e[i] + x[i, k] * w[k]


@T.prim_func(s_tir=True)
def mean_square(e: T.Buffer((32,), "float32", align=4), loss: T.Buffer((), "float32", align=4)):
    """loss = mean(e^2)."""
    T.func_attr({"tirx.noalias": True})
    loss[()] = T.float32(0)
    for i in range(32):
        loss[()] = loss[()] + e[i] * e[i] * T.float32(1 / 32)


# fmt: off
@T.prim_func(s_tir=True)
def descend(x: T.Buffer((32, 5), "float32", align=4), e: T.Buffer((32,), "float32", align=4),
            lr: T.Buffer((), "float32", align=4), w: T.Buffer((5,), "float32", align=4),
            out: T.Buffer((5,), "float32", align=4), scratch: T.Buffer((40,), "uint8")):
    """out = w - lr 2/32 x^T e; ``out`` may be ``w``. Scratch is written to show that it is there."""
    T.func_attr({"tirx.noalias": False})
    for k in T.parallel(5):
        scratch[k] = T.uint8(1)
        g = T.alloc_buffer((1,), "float32")
        g[0] = T.float32(0)
        for i in range(32):
            g[0] = g[0] + x[i, k] * e[i]
        out[k] = w[k] - lr[()] * g[0] * T.float32(2 / 32)
# fmt: on


@T.prim_func(s_tir=True)
def add(a: T.Buffer((64,), "float32", align=4), b: T.Buffer((64,), "float32", align=4), c: T.Buffer((64,), "float32", align=4)):
    """c = a + b."""
    T.func_attr({"tirx.noalias": False})
    for i in T.vectorized(64):
        c[i] = a[i] + b[i]


@T.prim_func(s_tir=True)
def subtract(
    a: T.Buffer((64,), "float32", align=4), b: T.Buffer((64,), "float32", align=4), c: T.Buffer((64,), "float32", align=4)
):
    """c = a - b."""
    T.func_attr({"tirx.noalias": False})
    for i in T.vectorized(64):
        c[i] = a[i] - b[i]


def scheduled(func, scratch_bytes=0):
    """What schedules.schedule returns, for kernels that are arranged already."""
    return SimpleNamespace(func=func, scratch_bytes=scratch_bytes)


def program(name, ports, buffers, calls, arena_bytes=0):
    """A Program from ``buffers``: (name, shape, dtype, role, offset or data)."""
    made = {}
    for b_name, shape, dtype, role, *more in buffers:
        extra = {"offset": more[0]} if role == "temp" else {"data": more[0]} if role == "const" else {}
        made[b_name] = Buffer(b_name, shape, dtype, role, **extra)
    return Program(name, ports, made, tuple(Call(k, a) for k, a in calls), {}, arena_bytes)


F = "float32"
REGRESSION = {
    "step": program(
        "step", ("x", "y", "w", "lr", "loss"),
        [("x", (ROWS, COLS), F, "input"), ("y", (ROWS,), F, "input"), ("w", (COLS,), F, "state"), ("lr", (), F, "hyper"),
         ("loss", (), F, "output"), ("e", (ROWS,), F, "temp", 64)],
        [("error", ("x", "y", "w", "e")), ("mean_square", ("e", "loss")), ("descend", ("x", "e", "lr", "w", "w"))],
        arena_bytes=192),
    "evaluate": program(
        "evaluate", ("x", "y", "w", "loss"),
        [("x", (ROWS, COLS), F, "input"), ("y", (ROWS,), F, "input"), ("w", (COLS,), F, "state"), ("loss", (), F, "output"),
         ("e", (ROWS,), F, "temp", 0)],
        [("error", ("x", "y", "w", "e")), ("mean_square", ("e", "loss"))], arena_bytes=128),
}  # fmt: skip
REGRESSION_KERNELS = {"error": scheduled(error), "mean_square": scheduled(mean_square), "descend": scheduled(descend, 40)}


def binary(kernel_name, func):
    """A library's parts with the one entry ``apply``: y = x op 2."""
    two = np.full(64, 2, F)
    p = program(
        "apply", ("x", "y"), [("x", (64,), F, "input"), ("y", (64,), F, "output"), ("two", (64,), F, "const", two)],
        [(kernel_name, ("x", "two", "y"))],
    )  # fmt: skip
    return {"apply": p}, {kernel_name: scheduled(func)}


def reference(x, y, w, lr, steps):
    """Losses and final weights of gradient descent in float64."""
    x, y, w, losses = x.astype("f8"), y.astype("f8"), w.astype("f8"), []
    for _ in range(steps):
        e = x @ w - y
        losses.append(np.mean(e * e))
        w = w - lr * 2 / len(x) * (x.T @ e)
    return np.array(losses), w


@pytest.fixture(scope="session")
def kit():
    """Kernels, programs and helpers for the tests of this folder."""
    return SimpleNamespace(
        add=add, subtract=subtract, scheduled=scheduled, program=program, binary=binary, reference=reference, steps=STEPS,
        regression=REGRESSION, regression_kernels=REGRESSION_KERNELS, target=Target.native(2), tvm=tvm,
    )  # fmt: skip


@pytest.fixture(scope="session")
def regression():
    """The library of a least-squares training step and its evaluation."""
    return runtime.build(REGRESSION, REGRESSION_KERNELS, Target.native(2), prefix="regress")


@pytest.fixture(scope="session")
def data():
    """x, y of a linear model, and the weights to start from."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((ROWS, COLS)).astype(F)
    y = (x @ np.arange(1, 6) + 0.1 * rng.standard_normal(ROWS)).astype(F)
    return SimpleNamespace(x=x, y=y, w=np.zeros(COLS, F), lr=0.1)


@pytest.fixture(scope="session")
def exported(regression, data, tmp_path_factory):
    """Its package."""
    notes = {"step": "One step of gradient descent.", "lr": "learning rate, per step", "loss": "mean squared error"}
    states = {"w": data.w, "lr": np.array(data.lr, "f4")}
    return runtime.export(regression, tmp_path_factory.mktemp("package"), states, notes=notes)
