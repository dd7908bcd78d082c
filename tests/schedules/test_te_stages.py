"""Reading a kernel as stages, and inlining."""

from tilegrad._base.tvm import te, tirx
from tilegrad.schedules import stages as st


def _dense_relu():
    a, b, c = te.placeholder((5, 7), name="a"), te.placeholder((9, 7), name="b"), te.placeholder((9,), name="c")
    k = te.reduce_axis((0, 7), "k")
    m = te.compute((5, 9), lambda i, j: te.sum(a[i, k] * b[j, k], axis=k), name="matmul")
    d = te.compute((5, 9), lambda i, j: m[i, j] + c[j], name="add")
    e = te.compute((5, 9), lambda i, j: tirx.max(d[i, j], tirx.const(0, "float32")), name="relu")
    return st.create([a, b, c, d, e])


def test_stages_of_a_fused_kernel():
    func = _dense_relu()
    matmul, add, relu = st.stages(func)
    assert [s.name for s in (matmul, add, relu)] == ["matmul", "add", "relu"]
    assert matmul.shape == (5, 9) and [i.extent for i in matmul.reduce] == [7] and not add.reduce
    kind, update = matmul.combiner
    assert kind == "sum" and [r.source.name for r in st.loads(update)] == ["a", "b"]
    ins, outs = st.inputs_outputs(func, (matmul, add, relu))
    assert [p.name for p in ins] == ["a", "b", "c"] and [p.name for p in outs] == ["add", "relu"]


def test_inline_substitutes_spatial_producers_only():
    found = st.stages(_dense_relu())
    text = str(st.inline(found[-1].at([tirx.const(1, "int32"), tirx.const(2, "int32")]), found))
    assert text == "T.max(matmul[1, 2] + c[2], T.float32(0.0))"


def test_zero_and_unit_dimensions():
    x = te.placeholder((3, 1), name="x")
    k = te.reduce_axis((0, 3), "k")
    y = te.compute((), lambda: te.sum(x[k, 0], axis=k), name="y")
    z = te.compute((1,), lambda i: y() + x[0, i], name="z")
    total, last = st.stages(st.create([x, z]))
    assert total.shape == () and total.combiner[0] == "sum" and last.shape == (1,)


def test_a_kernel_with_two_results_in_a_block_is_opaque():
    x = te.placeholder((8,), name="x")
    k = te.reduce_axis((0, 8), "k")
    arg = te.comm_reducer(
        lambda a, b: (tirx.Select(a[1] >= b[1], a[0], b[0]), tirx.max(a[1], b[1])),
        lambda ti, tv: (tirx.const(-1, ti), tirx.min_value(tv)),
        name="argmax",
    )
    i, v = te.compute((1,), lambda _: arg((k, x[k]), axis=k), name="arg")
    assert st.stages(st.create([x, i, v])) is None
