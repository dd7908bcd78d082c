"""Every float32 operator of one argument, lowered and scheduled: no kernel calls the C library's mathematics."""

from __future__ import annotations

import inspect
import re

import pytest

from tilegrad import schedules
from tilegrad._base.target import Target
from tilegrad._base.tvm import relax, tvm
from tilegrad.relax_ext.graph import GraphBuilder
from tilegrad.relax_ext.pipeline import lower
from tilegrad.runtime.lowering import pipeline_for

OWN = [f for f in vars(relax.op.unary).values() if inspect.isfunction(f) and f.__module__ == relax.op.unary.__name__]
UNARY = {f.__name__: f for f in OWN if f.__name__ not in ("bitwise_not", "logical_not")}
ACTIVATIONS = "gelu gelu_tanh leakyrelu log_softmax relu selu silu softmax softplus".split()
TABLE = UNARY | {n: getattr(relax.op.nn, n) for n in ACTIVATIONS}


def assembly(function: object) -> str:
    b = GraphBuilder()
    x = b.input("x", (40, 100), "float32")
    args = [x] * sum(p.default is p.empty for p in inspect.signature(function).parameters.values())  # clip has bounds
    b.output("y", b.emit(function(args[0], *[float(k) for k in range(len(args) - 1)])))
    target, out = Target.native(1), []
    for kernel in lower(b.finish()).kernels.values():
        func = schedules.schedule(kernel, target).func.with_attr("global_symbol", "main")
        module = tvm.compile(tvm.IRModule({"main": func}), target.tvm, tir_pipeline=pipeline_for(func))
        out.append(module.mod.inspect_source("asm"))
    return "\n".join(out)


@pytest.mark.parametrize("name", TABLE)
def test_no_call_into_libm(name: str) -> None:
    if "sse4.2" not in Target.native(1).features:
        pytest.skip("rounding needs a call on such a processor")
    called = set(re.findall(r"call\w*\s+\*?(\w+)@", assembly(TABLE[name])))
    assert not {c for c in called if not c.startswith("TVM")}, called
