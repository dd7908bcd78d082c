"""TE definitions of contractions against NumPy and PyTorch, with TVM's own unscheduled loops."""

import numpy as np
import pytest

from tilegrad._base.errors import DTypeError, ShapeError
from tilegrad._base.tvm import te, tvm
from tilegrad.schedules import stages as st
from tilegrad.schedules.te.conv import conv, conv_attrs, conv_by_data, conv_by_weight
from tilegrad.schedules.te.matmul import dims, matmul

CONVS = [  # groups, strides, padding, dilation, kernel
    (1, 1, 1, 1, (3, 3)),
    (2, 2, 1, 1, (3, 3)),
    (4, (2, 3), [(1, 0), (2, 1)], (1, 2), (3, 2)),
    (1, 2, 1, 2, (3, 3)),
]


def _run(ins, out, rng):
    lib = tvm.compile(st.create([*ins, out]).with_attr("global_symbol", "main"), "llvm")
    arrays = [rng.standard_normal(dims(t)).astype(str(t.dtype)) for t in ins]
    result = tvm.runtime.tensor(np.zeros(dims(out), str(out.dtype)))
    lib["main"](*map(tvm.runtime.tensor, arrays), result)
    return arrays, result.numpy()


def _tensor(*shape, dtype="float64"):
    return te.placeholder(shape, dtype, name="x")


@pytest.mark.parametrize(
    "a, b",
    [
        ((3, 4), (4, 5)),
        ((4,), (4,)),
        ((4,), (4, 5)),
        ((3, 4), (4,)),
        ((2, 1, 3, 4), (5, 4, 6)),
        ((4,), (2, 4, 3)),
        ((7, 3, 4), (4, 5)),
    ],
)
def test_matmul_follows_numpy(a, b):
    ins = [_tensor(*a), _tensor(*b)]
    (x, y), got = _run(ins, matmul(*ins), np.random.default_rng(0))
    assert got.shape == np.matmul(x, y).shape
    np.testing.assert_allclose(got, np.matmul(x, y), rtol=1e-12, atol=1e-12)


def test_matmul_accumulates_narrow_types_wide():
    half = matmul(_tensor(2, 3, dtype="float16"), _tensor(3, 2, dtype="float16"))
    assert half.dtype == "float16" and half.op.input_tensors[0].dtype == "float32"
    assert matmul(_tensor(2, 3, dtype="int8"), _tensor(3, 2, dtype="int8")).dtype == "int32"


def test_bad_operands_are_typed_errors():
    with pytest.raises(ShapeError, match="inner dimensions"):
        matmul(_tensor(2, 3), _tensor(4, 2))
    with pytest.raises(DTypeError, match="one element type"):
        matmul(_tensor(2, 3), _tensor(3, 2, dtype="float32"))
    with pytest.raises(ShapeError, match="channels"):
        conv(_tensor(1, 3, 8, 8), _tensor(4, 2, 3, 3))
    with pytest.raises(ShapeError, match="kernel no larger"):
        conv(_tensor(1, 3, 2, 2), _tensor(4, 3, 3, 3))


@pytest.mark.parametrize("groups, strides, padding, dilation, kernel", CONVS)
def test_conv_and_its_gradients_against_torch(groups, strides, padding, dilation, kernel):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    x_shape, w_shape, args = (2, 4, 9, 10), (8, 4 // groups, *kernel), (strides, padding, dilation, groups)
    at = conv_attrs(2, *args)
    y_shape = (2, 8, *at.out_size(x_shape[2:], kernel))

    def forward(x, w):
        x = torch.nn.functional.pad(x, [v for pair in reversed(at.padding) for v in pair])
        return torch.nn.functional.conv2d(x, w, None, at.strides, 0, at.dilation, groups)

    def check(ins, out, reference):
        arrays, got = _run(ins, out, rng)
        np.testing.assert_allclose(got, reference(*map(torch.tensor, arrays)).numpy(), rtol=1e-11, atol=1e-11)

    x, w, dy = _tensor(*x_shape), _tensor(*w_shape), _tensor(*y_shape)
    zeros = torch.zeros
    check([x, w], conv(x, w, *args), forward)
    by_data = conv_by_data(dy, w, x_shape, *args)
    check([dy, w], by_data, lambda g, v: torch.func.vjp(lambda u: forward(u, v), zeros(x_shape, dtype=g.dtype))[1](g)[0])
    by_weight = conv_by_weight(dy, x, w_shape, *args)
    check([dy, x], by_weight, lambda g, u: torch.func.vjp(lambda v: forward(u, v), zeros(w_shape, dtype=g.dtype))[1](g)[0])
