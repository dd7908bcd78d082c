"""The contraction template's kernels against NumPy in float64: layouts, tails, types, fusion, every config of a space."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from tilegrad._base.errors import ScheduleError
from tilegrad._base.target import Target
from tilegrad._base.tvm import te, tirx, tvm
from tilegrad.schedules import stages as st
from tilegrad.schedules.contraction import TEMPLATE
from tilegrad.schedules.contraction.canonical import canonicalise
from tilegrad.schedules.finish import finish
from tilegrad.schedules.te.matmul import dims, matmul
from tilegrad.schedules.template import Workload
from tilegrad.tuning_logs import canonical

TARGET = Target.native(2)


def tensor(*shape, dtype="float32", name="x"):
    return te.placeholder(shape, dtype, name=name)


def product(m, n, k, layout="NN", dtype="float32", acc=None):
    """Inputs and one result of C = A B with each operand stored as ``layout`` says."""
    a = tensor(*((m, k) if layout[0] == "N" else (k, m)), dtype=dtype, name="a")
    b = tensor(*((k, n) if layout[1] == "N" else (n, k)), dtype=dtype, name="b")
    axis = te.reduce_axis((0, k), "k")

    def body(i, j):
        x = a[i, axis] if layout[0] == "N" else a[axis, i]
        y = b[axis, j] if layout[1] == "N" else b[j, axis]
        return te.sum(x.astype(acc or dtype) * y.astype(acc or dtype), axis=axis)

    return [a, b], te.compute((m, n), body, name="matmul")


def plain(arrays, layout):
    a, b = (x.astype("float64") for x in arrays)
    return (a if layout[0] == "N" else a.T) @ (b if layout[1] == "N" else b.T)


def arrays_for(tensors, seed=0):
    rng = np.random.default_rng(seed)
    return [
        rng.integers(-9, 9, dims(t)).astype(str(t.dtype))
        if "int" in str(t.dtype)
        else rng.standard_normal(dims(t)).astype(str(t.dtype))
        for t in tensors
    ]


def run(inputs, outputs, config=None, arrays=None, target=TARGET):
    """(arrays, results) of the scheduled kernel; outputs and scratch start as garbage."""
    func = st.create([*inputs, *outputs])
    workload = TEMPLATE.match(func)
    assert workload is not None
    chosen = TEMPLATE.default(workload, target) | (config or {})
    done = finish(TEMPLATE.apply(func, chosen, target), target)
    lib = tvm.compile(done.func.with_attr("global_symbol", "main"), target.tvm)
    arrays = arrays_for(inputs) if arrays is None else arrays
    results = [tvm.runtime.tensor(np.full(dims(t), 77).astype(str(t.dtype))) for t in outputs]
    scratch = [tvm.runtime.tensor(np.full(done.scratch_bytes, 0xFF, "uint8"))] if done.scratch_bytes else []
    lib["main"](*map(tvm.runtime.tensor, arrays), *results, *scratch)
    return arrays, [r.numpy() for r in results]


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("m, n, k", [(7, 5, 3), pytest.param(127, 255, 61, marks=pytest.mark.long)])
def test_layouts_and_tails(m, n, k, layout):
    inputs, out = product(m, n, k, layout)
    arrays, (got,) = run(inputs, [out])
    np.testing.assert_allclose(got, plain(arrays, layout), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("m, n, k", [(1, 17, 33), (33, 1, 17), (1, 1000, 7), (17, 7, 1), (2, 3, 1000)])
def test_skinny_shapes(m, n, k):
    inputs, out = product(m, n, k, "NT")
    arrays, (got,) = run(inputs, [out])
    np.testing.assert_allclose(got, plain(arrays, "NT"), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "config",
    [
        {"pack_a": True, "pack_b": True, "kc": 16, "nc": 16, "mc": 12, "split": [1, 2, 1]},
        {"pack_a": False, "pack_b": True, "kc": 40, "split": [2, 1, 1]},
        {"pack_a": True, "kc": 13, "split": [1, 1, 2]},
        {"mr": 3, "nr": 24, "kc": 20, "split": [2, 2, 2], "pack_b": True},
        {"form": "dot", "mr": 1, "nr": 8, "kc": 20, "split": [1, 2, 1], "pack_a": False, "pack_b": False},
        {"form": "dot", "mr": 4, "nr": 8, "kc": 64, "split": [1, 1, 2], "pack_a": False, "pack_b": False},
    ],
)
def test_blocks_and_splits(config):
    layout = "NT" if config.get("form") == "dot" else "NN"
    inputs, out = product(29, 43, 57, layout)
    arrays, (got,) = run(inputs, [out], config)
    np.testing.assert_allclose(got, plain(arrays, layout), rtol=1e-4, atol=1e-4)


def test_one_thread_count_gives_one_result():
    inputs, out = product(29, 43, 157, "NT")
    config = {"kc": 20, "split": [1, 1, 2]}
    arrays, (first,) = run(inputs, [out], config)
    for _ in range(3):
        np.testing.assert_array_equal(run(inputs, [out], config, arrays)[1][0], first)


@pytest.mark.parametrize(
    "a, b", [((3, 9, 8), (3, 8, 20)), ((5, 4), (6, 4, 20)), ((2, 1, 9, 8), (3, 8, 5)), ((4,), (2, 4, 7)), ((2, 5, 4), (4,))]
)
def test_batches(a, b):
    inputs = [tensor(*a), tensor(*b)]
    (x, y), (got,) = run(inputs, [matmul(*inputs)])
    np.testing.assert_allclose(got, np.matmul(x.astype("float64"), y), rtol=1e-5, atol=1e-5)


def test_an_operand_times_itself():
    x = tensor(20, 20)
    (v,), (got,) = run([x], [matmul(x, x)])
    np.testing.assert_allclose(got, v.astype("float64") @ v, rtol=1e-4, atol=1e-4)


TYPES = [("float64", None, 1e-12), ("float16", "float32", 2e-3), ("bfloat16", "float32", 2e-2), ("int8", "int32", 0)]


@pytest.mark.parametrize("dtype, acc, tolerance", TYPES)
def test_types(dtype, acc, tolerance):
    ml_dtypes = pytest.importorskip("ml_dtypes") if dtype == "bfloat16" else None
    a, b = tensor(19, 70, dtype=dtype), tensor(70, 35, dtype=dtype)
    out = matmul(a, b)
    rng = np.random.default_rng(3)
    kind = ml_dtypes.bfloat16 if ml_dtypes else dtype
    arrays = [(rng.standard_normal(dims(t)) * (20 if acc == "int32" else 1)).astype(kind) for t in (a, b)]
    func = st.create([a, b, out])
    workload = TEMPLATE.match(func)
    done = finish(TEMPLATE.apply(func, TEMPLATE.default(workload, TARGET), TARGET), TARGET)
    lib = tvm.compile(done.func.with_attr("global_symbol", "main"), TARGET.tvm)
    result = tvm.runtime.empty(dims(out), str(out.dtype))
    scratch = [tvm.runtime.empty((done.scratch_bytes,), "uint8")] if done.scratch_bytes else []
    lib["main"](*map(tvm.runtime.tensor, arrays), result, *scratch)
    wide = [x.astype("int64" if acc == "int32" else "float64") for x in arrays]
    got = np.asarray(result.numpy()).astype("float64")
    np.testing.assert_allclose(got, wide[0] @ wide[1], rtol=tolerance, atol=tolerance * 10)


def _fused(name, shape, body):
    return te.compute(shape, body, name=name)


def test_prologues_are_packed():
    """A masked gradient on one side, a transposed and scaled one on the other."""
    x, mask, w = tensor(30, 40, name="x"), tensor(30, 40, name="mask"), tensor(50, 40, name="w")
    gated = _fused("gated", (30, 40), lambda i, j: tirx.Select(mask[i, j] > 0, x[i, j], tirx.const(0, "float32")))
    wt = _fused("T_transpose", (40, 50), lambda i, j: w[j, i])
    scaled = _fused("scaled", (40, 50), lambda i, j: wt[i, j] * tirx.const(0.5, "float32"))
    arrays, (got,) = run([x, mask, w], [matmul(gated, scaled)])
    want = np.where(arrays[1] > 0, arrays[0], 0).astype("float64") @ (arrays[2].T * 0.5)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_epilogue_with_bias_and_relu():
    x, w, b = tensor(30, 40, name="x"), tensor(40, 50, name="w"), tensor(50, name="b")
    y = matmul(x, w)
    add = _fused("T_add", (30, 50), lambda i, j: y[i, j] + b[j])
    relu = _fused("T_relu", (30, 50), lambda i, j: tirx.max(add[i, j], tirx.const(0, "float32")))
    arrays, (got,) = run([x, w, b], [relu])
    np.testing.assert_allclose(got, np.maximum(arrays[0].astype("float64") @ arrays[1] + arrays[2], 0), rtol=1e-5, atol=1e-5)
    workload = TEMPLATE.match(st.create([x, w, b, relu]))
    assert workload.fields["epilogue"] == "add[n],relu" and workload.fields["layout"] == "NN"


def test_an_optimizer_update_in_place():
    """Momentum and new parameter written over the old ones: each element is read before it is written."""
    x, dy, m, w = tensor(64, 30, name="x"), tensor(64, 43, name="dy"), tensor(30, 43, name="m"), tensor(30, 43, name="w")
    k = te.reduce_axis((0, 64), "k")
    g = te.compute((30, 43), lambda i, j: te.sum(x[k, i] * dy[k, j], axis=k), name="matmul")
    m2 = _fused("momentum", (30, 43), lambda i, j: m[i, j] * tirx.const(0.9, "float32") + g[i, j])
    w2 = _fused("update", (30, 43), lambda i, j: w[i, j] - m2[i, j] * tirx.const(0.1, "float32"))
    func = st.create([x, dy, m, w, m2, w2])
    config = TEMPLATE.default(TEMPLATE.match(func), TARGET) | {"kc": 20}
    done = finish(TEMPLATE.apply(func, config, TARGET), TARGET)
    lib = tvm.compile(done.func.with_attr("global_symbol", "main"), TARGET.tvm)
    vx, vdy, vm, vw = arrays_for([x, dy, m, w])
    mem_m, mem_w = tvm.runtime.tensor(vm), tvm.runtime.tensor(vw)
    scratch = [tvm.runtime.empty((done.scratch_bytes,), "uint8")] if done.scratch_bytes else []
    lib["main"](tvm.runtime.tensor(vx), tvm.runtime.tensor(vdy), mem_m, mem_w, mem_m, mem_w, *scratch)
    want_m = 0.9 * vm.astype("float64") + vx.astype("float64").T @ vdy
    np.testing.assert_allclose(mem_m.numpy(), want_m, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(mem_w.numpy(), vw - 0.1 * want_m, rtol=1e-4, atol=1e-4)


def test_a_permuting_epilogue():
    x, w = tensor(6, 7, 8, name="x"), tensor(6, 8, 20, name="w")
    y = matmul(x, w)
    out = _fused("T_transpose", (7, 6, 20), lambda i, b, j: y[b, i, j])
    arrays, (got,) = run([x, w], [out])
    np.testing.assert_allclose(got, np.matmul(*arrays).transpose(1, 0, 2), rtol=1e-5, atol=1e-5)


def test_every_config_of_a_space_is_right():
    inputs, out = product(13, 33, 40, "NN")
    workload = TEMPLATE.match(st.create([*inputs, out]))
    space = TEMPLATE.space(workload, TARGET)
    assert TEMPLATE.default(workload, TARGET) in space and 4 <= len(space) <= 2000
    widths = {len(TEMPLATE.features(workload, c, TARGET)) for c in space}
    assert len(widths) == 1 and all(TEMPLATE.estimate(workload, c, TARGET) > 0 for c in space)
    for config in itertools.islice(space, 0, None, max(1, len(space) // 5)):
        arrays, (got,) = run(inputs, [out], config)
        np.testing.assert_allclose(got, plain(arrays, "NN"), rtol=1e-4, atol=1e-4, err_msg=str(config))


@pytest.mark.parametrize(
    "m, n, k, blocks",
    [
        (320, 320, 320, {24, 48, 96, 192, 320}),
        (40, 64, 512, {24, 40}),
        (512, 128, 32, {96, 192, 512}),  # small blocks of a short K would leave most of L1 empty
        (2000, 128, 1024, {24, 48, 96, 192}),  # a block of all rows would not fit L2
    ],
)
def test_blocks_of_m_fill_the_first_level_cache_and_fit_the_second(m, n, k, blocks):
    inputs, out = product(m, n, k, "NN")
    target = replace(TARGET, l1_bytes=32768, l2_bytes=524288)
    space = TEMPLATE.space(TEMPLATE.match(st.create([*inputs, out])), target)
    assert {c["mc"] for c in space if c["kc"] >= min(k, 256)} == blocks and len(space) <= 2000


@pytest.mark.parametrize("threads", [2, 8, 64])
def test_a_large_space_keeps_what_the_model_finds_cheapest(threads):
    inputs, out = product(2048, 2048, 2048, "TN")
    workload, target = TEMPLATE.match(st.create([*inputs, out])), Target.parse("x86-64-v4", threads)
    space = TEMPLATE.space(workload, target)
    assert len(space) == 2000 == len({canonical(c) for c in space}) and TEMPLATE.default(workload, target) in space
    assert TEMPLATE.space(workload, target) == space, "stable"
    cost = [TEMPLATE.estimate(workload, c, target) for c in space]
    assert TEMPLATE.default(workload, target) == space[cost.index(min(cost))]
    dear = {**space[0], "mr": 1, "nr": 16, "kc": 128, "nc": 128, "pack_b": True}  # legal, and far from cheap
    assert TEMPLATE.estimate(workload, dear, target) > max(cost)


def test_a_gathered_block_takes_the_columns_that_the_second_level_holds():
    """Each block begins every row of K anew: measured, blocks of 400 columns are 9 % ahead of 128 for this convolution."""
    fields = {
        "batch": 1, "m": 128, "n": 392, "k": 576, "layout": "NG", "dtypes": ["f32", "f32", "f32"], "epilogue": "", "segments": 2,
        "geometry": "x=2x64x14x14 w=128x64x3x3 y=2x128x14x14 stride=1,1 pad=1:1,1:1 dilation=1,1 groups=1",
    }  # fmt: skip
    target = Target.parse("znver3", 2)
    assert TEMPLATE.default(Workload("conv2d", fields), target)["nc"] == 400


def test_illegal_configs_are_typed_errors():
    inputs, out = product(64, 64, 64)
    func = st.create([*inputs, out])
    good = TEMPLATE.default(TEMPLATE.match(func), TARGET)
    with pytest.raises(ScheduleError, match="registers"):
        TEMPLATE.apply(func, good | {"mr": 12, "nr": 64}, TARGET)
    with pytest.raises(ScheduleError, match="knobs"):
        TEMPLATE.apply(func, {"mr": 4}, TARGET)


def test_what_is_no_contraction_is_left_alone():
    x, y = tensor(8, 16, name="x"), tensor(8, 16, name="y")
    k = te.reduce_axis((0, 16), "k")
    row_dot = te.compute((8,), lambda i: te.sum(x[i, k] * y[i, k], axis=k), name="dot")
    k = te.reduce_axis((0, 16), "k")
    total = te.compute((8,), lambda i: te.sum(x[i, k], axis=k), name="sum")
    for out in (row_dot, total):
        assert canonicalise(st.create([x, y, out])) is None


def test_workloads_name_and_rebuild_kernels():
    x, w, b = tensor(30, 40, name="x"), tensor(50, 40, name="w"), tensor(50, name="b")
    wt = _fused("T_transpose", (40, 50), lambda i, j: w[j, i])
    y = matmul(x, wt)
    add = _fused("T_add", (30, 50), lambda i, j: y[i, j] + b[j])
    workload = TEMPLATE.match(st.create([x, w, b, add]))
    assert workload.json() == {
        "op": "matmul", "batch": 1, "m": 30, "n": 50, "k": 40, "layout": "NT",
        "dtypes": ["f32", "f32", "f32"], "epilogue": "add[n]", "prologue": ["", "transpose"],
    }  # fmt: skip
    assert workload.flops == 2 * 30 * 50 * 40


def test_own_mathematics_in_a_long_epilogue():
    """gelu and its derivative after one product, at full tiles and tails: each error function is evaluated once, in names
    that TVM's simplifier does not look through (seen through, this kernel took minutes to compile)."""
    inputs, c = product(37, 43, 19)
    g = tensor(37, 43, name="g")
    half = te.compute((37, 43), lambda i, j: tirx.erf(c[i, j] * 0.7071067811865476), name="erf")
    gelu = te.compute((37, 43), lambda i, j: c[i, j] * (half[i, j] * 0.5 + 0.5), name="gelu")
    slope = te.compute(
        (37, 43),
        lambda i, j: g[i, j] * (half[i, j] * 0.5 + 0.5 + c[i, j] * tirx.exp(c[i, j] * c[i, j] * -0.5) * 0.3989422804014327),
        name="slope",
    )
    arrays, (y, dy) = run([*inputs, g], [gelu, slope])
    x = plain(arrays[:2], "NN")
    cdf = np.vectorize(math.erf)(x / math.sqrt(2)) / 2 + 0.5
    np.testing.assert_allclose(y, x * cdf, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(dy, arrays[2] * (cdf + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layout", ["NN", "NT", "TN"])
@pytest.mark.parametrize("m, n, k", [(2, 7, 1), (17, 33, 127), (40, 19, 300)])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
def test_narrow_integers_are_exact(m, n, k, layout, dtype):
    inputs, out = product(m, n, k, layout, dtype, "int32")
    rng = np.random.default_rng(0)
    ends = np.iinfo(dtype)
    arrays = [rng.integers(ends.min // (64 if dtype == "int16" else 1), ends.max, dims(t), dtype) for t in inputs]
    _, (got,) = run(inputs, [out], arrays=arrays)
    a, b = (x.astype("int64") for x in arrays)
    exact = (a if layout[0] == "N" else a.T) @ (b if layout[1] == "N" else b.T)
    np.testing.assert_array_equal(got, exact.astype("int32"))


def test_what_is_made_of_bytes_may_be_wider_than_pairs():
    a, b = tensor(17, 30, dtype="int8", name="a"), tensor(30, 33, dtype="int8", name="b")
    k = te.reduce_axis((0, 30), "k")
    out = te.compute((17, 33), lambda i, j: te.sum((a[i, k].astype("int32") + 40000) * b[k, j].astype("int32"), axis=k))
    (x, y), (got,) = run([a, b], [out], {"pack_a": True, "pack_b": True})
    np.testing.assert_array_equal(got, (x.astype("int64") + 40000) @ y.astype("int64"))
