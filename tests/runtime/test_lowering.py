"""Plain kernels take the short pass pipeline; kernels with blocks TVM's own. Both compute the same."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from tests.schedules.kernels import Kernel
from tilegrad._base.target import Target
from tilegrad._base.tvm import te, tirx
from tilegrad.runtime import Context, build
from tilegrad.runtime.lowering import NAME, WITH_LETS, pipeline_for
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


def test_a_kernel_with_lets_may_repeat_their_expressions() -> None:
    """The remainder of floats comes as nested Lets, of which the first reads where the other result reads."""
    a, b = te.placeholder((64,), name="a"), te.placeholder((64,), name="b")
    rest = te.compute((64,), lambda i: tirx.Mod(a[0], b[i]), name="rest")
    quotient = te.compute((64,), lambda i: a[0] / b[i], name="quotient")
    kernel = Kernel([a, b], rest, quotient)
    assert pipeline_for(kernel.done.func) == WITH_LETS
    x, y = (np.random.default_rng(k).standard_normal(64).astype("float32") for k in (0, 1))
    for got, want in zip(kernel(x, y), (np.fmod(x[0], y), x[0] / y), strict=True):
        np.testing.assert_array_equal(got, want)
