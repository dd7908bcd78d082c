"""Plain kernels take the short pass pipeline; kernels with blocks TVM's own. Both compute the same."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from tilegrad._base.target import Target
from tilegrad._base.tvm import te
from tilegrad.runtime import Context, build
from tilegrad.runtime.lowering import NAME, pipeline_for
from tilegrad.runtime.program import Buffer, Call, Program
from tilegrad.schedules import schedule


def test_scheduled_kernels_take_the_short_pipeline() -> None:
    x = te.placeholder((33, 17), name="x")
    func = te.create_prim_func([x, te.compute((17, 33), lambda i, j: x[j, i] * 2.0, name="y")]).without_attr("global_symbol")
    target = Target.native()
    scheduled = schedule(func, target)
    assert pipeline_for(func) == "default"
    assert pipeline_for(scheduled.func) == NAME
    buffers = {"x": Buffer("x", (33, 17), "float32", "input"), "y": Buffer("y", (17, 33), "float32", "output")}
    program = Program("f", ("x", "y"), buffers, (Call("k", ("x", "y")),), {"k": func})
    value = np.random.default_rng(0).standard_normal((33, 17)).astype("float32")
    for kernel in (scheduled, SimpleNamespace(func=func, scratch_bytes=0)):
        context: Context = build({"f": program}, {"k": kernel}, target).context()
        np.testing.assert_array_equal(context.run("f", {"x": value})["y"], value.T * 2)
