"""The micro-kernel in machine code: vectors only, no spills, on three register files. Nothing here is run."""

import re

import pytest

from tests.schedules.test_contraction import product
from tilegrad._base.target import Target
from tilegrad._base.tvm import te, tvm
from tilegrad.runtime.kernels import pointer_kernel
from tilegrad.schedules.contraction import TEMPLATE
from tilegrad.schedules.finish import finish
from tilegrad.schedules.stages import create
from tilegrad.schedules.te.conv import conv, conv_by_weight

MACHINES = [  # target, multiply-add on vectors, the same on scalars, stack operand, least accumulators in flight
    ("x86-64-v3", r"vfmadd\w+ps .*ymm", r"vfmadd\w+ss", r"\(%rsp", 6 * 2),
    ("skylake-avx512", r"vfmadd\w+ps .*zmm", r"vfmadd\w+ss", r"\(%rsp", 6 * 4),
    ("aarch64", r"fmla\s+v\d+\.4s", r"fmadd\s+s", r"\[sp", 6 * 4),
]


def _loops(text):
    """Basic blocks that jump back to their own label; labels of debug information begin none."""
    text = re.sub(r"^\.?Ltmp\d+:.*\n", "", text, flags=re.M)
    blocks = re.split(r"^(\.?L\w+):.*$", text, flags=re.M)
    for label, body in zip(blocks[1::2], blocks[2::2], strict=True):
        lines = body.splitlines()
        ends = [i for i, line in enumerate(lines) if re.search(rf"\s(j\w+|b\.\w+|cbn?z)\s.*{re.escape(label)}\b", line)]
        if ends:
            yield [line.strip().replace("\t", " ") for line in lines[: ends[-1]]]


@pytest.mark.parametrize("name, fma, scalar, stack, accumulators", MACHINES)
def test_the_inner_loop_is_vectors_in_registers(name, fma, scalar, stack, accumulators):
    target = Target.parse(name, 2)
    inputs, out = product(14 * 18, 768, 256)
    func = create([*inputs, out])
    config = TEMPLATE.default(TEMPLATE.match(func), target)
    scheduled = finish(TEMPLATE.apply(func, config, target), target)
    text = tvm.compile(tvm.IRModule({"k": pointer_kernel(scheduled.func, "k")}), target=target.tvm).mod.inspect_source("asm")
    assert "AllocWorkspace" not in text and not re.search(r"mov\w*\s+%rsp,\s*%rbp", text)  # no frame pointer: rbp is free
    hot = max(_loops(text), key=lambda lines: sum(bool(re.search(fma, line)) for line in lines))
    count = sum(bool(re.search(fma, line)) for line in hot)
    assert count >= accumulators, (config, hot)
    assert not [line for line in hot if re.search(scalar, line)]
    assert not [line for line in hot if re.search(stack, line)]


def test_what_packing_keeps_in_registers_is_gone_in_the_inner_loop():
    """Zeros for the image's border, hoisted out of all loops, once cost two of 16 registers: the sums were spilled."""
    target = Target.parse("x86-64-v3", 2)
    dy, x = (te.placeholder((1, 128, 28, 28), "float32", name) for name in ("dy", "x"))
    func = create([dy, x, conv_by_weight(dy, x, (128, 128, 3, 3), 1, 1)])
    config = {
        "form": "outer",
        "mr": 6,
        "nr": 16,
        "kc": 784,
        "nc": 1152,
        "mc": 96,
        "split": [1, 2, 1],
        "pack_a": True,
        "pack_b": True,
    }
    scheduled = finish(TEMPLATE.apply(func, config, target), target)
    text = tvm.compile(tvm.IRModule({"k": pointer_kernel(scheduled.func, "k")}), target=target.tvm).mod.inspect_source("asm")
    hot = [lines for lines in _loops(text) if sum("vfmadd" in line for line in lines) >= 10]
    assert len(hot) >= 2  # tiles of six rows and of five
    assert not [line for lines in hot for line in lines if re.search(r"vmov\w+ .*%rsp", line)]


@pytest.mark.parametrize(
    "name, vector",
    [("x86-64-v3", r"vpmaddwd .*ymm"), ("skylake-avx512", r"vpmaddwd .*zmm"), ("aarch64", r"mla\s+v\d+\.4s")],
)
@pytest.mark.parametrize("kind", ["product", "convolution"])
def test_bytes_are_multiplied_by_vectors(name, vector, kind):
    target = Target.parse(name, 2)
    if kind == "product":
        inputs, out = product(14 * 18, 768, 256, dtype="int8", acc="int32")
    else:
        inputs = [te.placeholder(shape, "int8", n) for shape, n in (((1, 64, 28, 28), "x"), ((14 * 18, 64, 3, 3), "w"))]
        out = conv(*inputs, 1, 1)
    func = create([*inputs, out])
    scheduled = finish(TEMPLATE.apply(func, TEMPLATE.default(TEMPLATE.match(func), target), target), target)
    text = tvm.compile(tvm.IRModule({"k": pointer_kernel(scheduled.func, "k")}), target=target.tvm).mod.inspect_source("asm")
    hot = max(_loops(text), key=lambda lines: sum(bool(re.search(vector, line)) for line in lines))
    assert sum(bool(re.search(vector, line)) for line in hot) >= 12
    assert not [line for line in hot if re.search(r"imul|vpmulld|\s(madd|mul)\s+w", line)]
