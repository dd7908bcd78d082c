"""No kernel touches a byte outside its buffers and scratch: every buffer ends, then begins, at a page that cannot be touched.

The arrays are run in a process of their own, so that a fault is a failed test and not the end of the run.
"""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
import signal
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.schedules.kernels import tensor
from tilegrad import schedules
from tilegrad._base.target import Target
from tilegrad._base.tvm import te, tirx, tvm
from tilegrad.runtime import toolchain
from tilegrad.runtime.kernels import pointer_kernel
from tilegrad.runtime.lowering import pipeline_for
from tilegrad.schedules.contraction import TEMPLATE as CONTRACTION
from tilegrad.schedules.finish import finish
from tilegrad.schedules.stages import create
from tilegrad.schedules.te.attention import attention, attention_backward
from tilegrad.schedules.te.conv import conv, conv_by_data, conv_by_weight
from tilegrad.schedules.te.matmul import matmul
from tilegrad.schedules.te.softmax import softmax

PAGE = mmap.PAGESIZE
TARGET = Target.native(1)  # one thread: the kernel is a plain function of pointers
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def guarded(data: np.ndarray, at_end: bool, align: int) -> np.ndarray:
    """A copy between two untouchable pages, against the second one or the first one.

    At the end the slack of up to ``align`` - 1 bytes that alignment asks for is left behind the array.
    """
    pages = -(-max(data.nbytes, 1) // PAGE)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    start = libc.mmap(None, (pages + 2) * PAGE, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    for guard in (start, start + (pages + 1) * PAGE):
        assert libc.mprotect(guard, PAGE, 0) == 0
    first = start + PAGE
    if at_end:
        first += (pages * PAGE - data.nbytes) // align * align
    array = np.ctypeslib.as_array((ctypes.c_uint8 * data.nbytes).from_address(first)).view(data.dtype).reshape(data.shape)
    array[...] = data
    return array


class Argument(ctypes.Structure):
    """TVM's TVMFFIAny with a plain pointer in it."""

    _fields_ = (("type_index", ctypes.c_int32), ("padding", ctypes.c_int32), ("pointer", ctypes.c_void_p))


def call(library: str, arrays: list[np.ndarray], scratch: int, at_end: bool) -> None:
    """Run the kernel on guarded copies; in a child process."""
    guards = [guarded(a, at_end, a.itemsize) for a in arrays]
    if scratch:
        guards.append(guarded(np.full(scratch, 255, "uint8"), at_end, 64))
    args = (Argument * len(guards))(*(Argument(4, 0, g.ctypes.data) for g in guards))
    if ctypes.CDLL(library).__tvm_ffi_kernel(None, args, len(guards), ctypes.byref(Argument())):
        raise SystemExit(2)


def outcomes(folder: Path, func: tirx.PrimFunc, scratch: int = 0) -> list[int | None]:
    """How the process ends that runs a scheduled kernel with its buffers against the page behind, then the one before."""
    module = tvm.IRModule({"kernel": pointer_kernel(func, "kernel")})
    tvm.compile(module, target=TARGET.tvm, tir_pipeline=pipeline_for(func)).mod.write_to_file(str(folder / "k.o"), "o")
    (folder / "stub.c").write_text("int TVMFFIErrorSetRaisedFromCStrParts(void) { return 0; }\n")
    command = [*toolchain.find(TARGET).command, "-shared", "-fPIC", "stub.c", "k.o", "-o", "k.so", "-lm"]
    subprocess.run(command, check=True, cwd=folder)
    rng = np.random.default_rng(0)
    params = func.params[:-1] if scratch else func.params
    arrays = [rng.integers(0, 2, [int(d) for d in p.shape]).astype(str(p.dtype)) for p in params]
    found = []
    for at_end in (True, False):
        args = (str(folder / "k.so"), arrays, scratch, at_end)
        process = multiprocessing.get_context("fork").Process(target=call, args=args)
        process.start()
        process.join(60)
        found.append(process.exitcode)
    return found


def check(folder: Path, inputs: list[te.Tensor], outputs: list[te.Tensor], config: Any = None, template: str = "") -> None:
    """Compile one kernel and run it against both guards."""
    func = create([*inputs, *outputs])
    found, workload = schedules.task_of(func)
    assert template in ("", found.name)
    chosen = None if config is None else {**found.default(workload, TARGET), **config}
    done = schedules.schedule(func, TARGET, chosen)
    assert outcomes(folder, done.func, done.scratch_bytes) == [0, 0]


@pytest.mark.parametrize("first, expected", [(0, [-signal.SIGSEGV, 0]), (-1, [0, -signal.SIGSEGV])])
def test_the_guards_catch_one_element_too_far_or_too_early(tmp_path, first, expected):
    x, y = (tirx.decl_buffer((n,), "float32", name, data_alignment=4) for n, name in ((8, "x"), (9, "y")))
    i = tirx.Var("i", "int32")
    body = tirx.For(i, 0, 9, tirx.ForKind.SERIAL, tirx.BufferStore(y, tirx.BufferLoad(x, [i + first]), [i]))
    attrs = {"tirx.is_scheduled": True, "tirx.noalias": True, "s_tir": True}
    assert outcomes(tmp_path, tirx.PrimFunc([x, y], body).with_attr(attrs)) == expected


@pytest.mark.parametrize("layout", ["NN", "NT", "TN"])
@pytest.mark.parametrize("m, n, k", [(1, 17, 127), (7, 33, 5), (127, 61, 17)])
def test_products(tmp_path, m, n, k, layout):
    a = tensor(*((m, k) if layout[0] == "N" else (k, m)), name="a")
    b = tensor(*((k, n) if layout[1] == "N" else (n, k)), name="b")
    x = a if layout[0] == "N" else te.compute((m, k), lambda i, j: a(j, i), name="at")
    y = b if layout[1] == "N" else te.compute((k, n), lambda i, j: b(j, i), name="bt")
    check(tmp_path, [a, b], [matmul(x, y)], template="contraction/1")


@pytest.mark.parametrize(
    "config",
    [
        {"pack_a": True, "pack_b": True, "kc": 16},
        {"pack_a": False, "pack_b": True},
        {"pack_a": True, "split": [1, 1, 2], "kc": 8},
        {"mr": 5, "mc": 10, "nc": 32},
    ],
)
def test_configs_of_a_product_with_bias(tmp_path, config):
    a, b, bias = tensor(37, 31, name="a"), tensor(31, 45, name="b"), tensor(45, name="bias")
    c = matmul(a, b)
    check(tmp_path, [a, b, bias], [te.compute(c.shape, lambda i, j: c(i, j) + bias(j), name="add")], config, "contraction/1")


@pytest.mark.parametrize("constant, panels", [(0, 13 * 31 * 3), (1, 31 * 48)])
def test_constants_packed_ahead(tmp_path, constant, panels):
    a, b = tensor(37, 31, name="a"), tensor(31, 45, name="b")
    func = create([a, b, matmul(a, b)])
    config = {
        "form": "outer",
        "mr": 3,
        "nr": 16,
        "kc": 31,
        "nc": 32,
        "mc": 12,
        "split": [1, 1, 1],
        "pack_a": True,
        "pack_b": True,
    }
    done, fills = CONTRACTION.prepack(func, config, TARGET, [constant])
    assert list(fills) == [constant]
    data = fills[constant](np.zeros([(37, 31), (31, 45)][constant], "float32"))
    done = finish(done, TARGET)
    assert [int(d) for d in done.func.params[constant].shape] == [data.size] == [panels]
    assert outcomes(tmp_path, done.func, done.scratch_bytes) == [0, 0]


def test_few_rows_against_rows(tmp_path):
    a, b = tensor(2, 131, name="a"), tensor(19, 131, name="b")
    c = matmul(a, te.compute((131, 19), lambda i, j: b(j, i), name="bt"))
    check(tmp_path, [a, b], [c], {"form": "dot", "mr": 2, "nr": TARGET.vector_bytes // 4, "pack_a": False, "pack_b": False})


@pytest.mark.parametrize(
    "kind, c, template, dtype",
    [
        ("forward", 3, "contraction/1", "float32"),
        ("by_data", 6, "contraction/1", "float32"),
        ("by_data", 3, "window/1", "float32"),
        ("by_weight", 3, "contraction/1", "float32"),
        ("forward", 3, "contraction/1", "int8"),
        ("by_data", 6, "contraction/1", "int8"),
        ("by_weight", 3, "contraction/1", "int8"),
    ],
)
def test_convolutions(tmp_path, kind, c, template, dtype):
    shapes = {"x": (3, c, 7, 7), "w": (5, c, 3, 3), "y": (3, 5, 4, 4)}
    x, w, y = (tensor(*shape, dtype=dtype, name=name) for name, shape in shapes.items())
    window = ((2, 2), ((1, 1), (1, 1)), (1, 1), 1)
    made = {
        "forward": lambda: ([x, w], conv(x, w, *window)),
        "by_data": lambda: ([y, w], conv_by_data(y, w, (3, c, 7, 7), *window)),
        "by_weight": lambda: ([y, x], conv_by_weight(y, x, (5, c, 3, 3), *window)),
    }[kind]()
    check(tmp_path, made[0], [made[1]], template=template)


@pytest.mark.parametrize("shape", [(1, 1), (3, 17), (5, 127)])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_elementwise_and_reductions(tmp_path, shape, dtype):
    x, y = tensor(*shape, dtype=dtype, name="x"), tensor(shape[1], dtype=dtype, name="y")
    k = te.reduce_axis((0, shape[1]), "k")
    added = te.compute(shape, lambda i, j: x(i, j) + y(j), name="add")
    turned = te.compute(shape[::-1], lambda i, j: x(j, i), name="turn")
    rows = te.compute((shape[0],), lambda i: te.max(x(i, k), axis=k), name="rows")
    r = te.reduce_axis((0, shape[0]), "r")
    columns = te.compute((shape[1],), lambda j: te.sum(x(r, j), axis=r), name="columns")
    cases = [([x, y], added), ([x], turned), ([x], rows), ([x], columns)]
    cases += [([x], softmax(x))] if dtype == "float32" else []
    for n, (inputs, out) in enumerate(cases):
        folder = tmp_path / str(n)
        folder.mkdir()
        check(folder, inputs, [out])


@pytest.mark.parametrize("m, n, d, diagonal", [(7, 17, 5, None), (45, 33, 20, 0)])
def test_attention(tmp_path, m, n, d, diagonal):
    shapes = [(2, m, d), (2, n, d), (2, n, d)]
    q, k, v = (tensor(*s, name=x) for s, x in zip(shapes, "qkv", strict=True))
    check(tmp_path, [q, k, v], attention(q, k, v, scale=0.3, diagonal=diagonal), template="attention/1")
    more = [tensor(*s, name=f"g{i}") for i, s in enumerate(((2, m, d), (2, m), (2, m)))]
    check(tmp_path, [q, k, v, *more], attention_backward(q, k, v, *more, scale=0.3, diagonal=diagonal), template="attention/1")
