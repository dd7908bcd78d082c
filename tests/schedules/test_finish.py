"""Rules common to all kernels: any array's alignment, scratch instead of the heap, no calls into TVM's runtime."""

from __future__ import annotations

import numpy as np
import pytest

from tests.schedules.kernels import TARGET, Kernel, normal, tensor
from tilegrad import schedules
from tilegrad._base.errors import ScheduleError
from tilegrad._base.tvm import tirx, topi
from tilegrad.schedules.finish import finish
from tilegrad.schedules.stages import create
from tilegrad.schedules.template import Scheduled


def test_parameters_are_declared_with_the_alignment_of_their_elements() -> None:
    x, n = tensor(100, 40), tensor(100, 40, dtype="float64", name="n")
    func = schedules.schedule(create([x, n, topi.sum(topi.multiply(topi.cast(x, "float64"), n), 0)]), TARGET).func
    assert [int(p.data_alignment) for p in func.params[:3]] == [4, 8, 8]
    assert bool(func.attrs["tirx.is_scheduled"])


def test_large_allocations_become_scratch_and_each_thread_has_its_own() -> None:
    """A parallel loop over rows, each with a temporary too large for the stack."""
    a = tirx.decl_buffer((64, 2048), "float32", name="a")
    b = tirx.decl_buffer((64, 2048), "float32", name="b")
    row = tirx.decl_buffer((2048,), "float32", name="row")
    i, j, k = (tirx.Var(n, "int32") for n in "ijk")
    reverse = tirx.For(j, 0, 2048, tirx.ForKind.SERIAL, tirx.BufferStore(row, a[i, 2047 - j], [j]))
    copy = tirx.For(k, 0, 2048, tirx.ForKind.SERIAL, tirx.BufferStore(b, row[k] + row[0], [i, k]))
    body = tirx.For(i, 0, 64, tirx.ForKind.PARALLEL, tirx.SeqStmt([tirx.AllocBuffer(row), reverse, copy]))
    done = finish(Scheduled(tirx.PrimFunc([a, b], body).with_attr("global_symbol", "main")), TARGET)
    assert done.scratch_bytes == 2 * 2048 * 4
    assert len(done.func.params) == 3
    assert int(done.func.params[2].data_alignment) == 64
    from tilegrad._base.tvm import tvm

    kernel = tvm.compile(tvm.IRModule({"main": done.func}), TARGET.tvm)["main"]
    x, y = tvm.runtime.tensor(normal(64, 2048)), tvm.runtime.tensor(np.zeros((64, 2048), "float32"))
    kernel(x, y, tvm.runtime.tensor(np.zeros(done.scratch_bytes, "uint8")))
    flipped = normal(64, 2048)[:, ::-1]
    np.testing.assert_array_equal(y.numpy(), flipped + flipped[:, :1])


def test_calls_into_the_runtime_are_refused() -> None:
    x = tensor(8, 8)
    with pytest.raises(ScheduleError, match="sort"):
        schedules.schedule(create([x, topi.sort(x)]), TARGET)


def test_an_opaque_kernel_is_right() -> None:
    x = tensor(200, 300)
    a = normal(200, 300)
    scan = Kernel([x], topi.cumsum(x, 1))
    assert scan.template.name == "opaque/1"
    np.testing.assert_allclose(scan(a), a.astype("float64").cumsum(1), atol=1e-4)
    best = Kernel([x], topi.argmax(x, 1))
    np.testing.assert_array_equal(best(a), a.argmax(1))


def test_task_of_names_the_most_special_template() -> None:
    x, y = tensor(16, 16), tensor(16, 16, name="y")
    names = [schedules.task_of(create([x, y, out]))[0].name for out in (topi.matmul(x, y), topi.sum(x, 1), topi.add(x, y))]
    assert names == ["contraction/1", "reduction/1", "elementwise/1"]
    assert schedules.template_named("reduction/1") is not None
    assert schedules.template_named("reduction/999") is None
