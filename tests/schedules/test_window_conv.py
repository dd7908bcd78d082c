"""Window sums (depthwise convolution, few results of many channels, their gradients) against PyTorch in float64."""

import numpy as np
import pytest

from tests.schedules.convolutions import kinds
from tests.schedules.kernels import TARGET, Kernel, normal, tensor
from tilegrad._base.errors import ScheduleError
from tilegrad._base.target import Target
from tilegrad._base.tvm import te, tirx
from tilegrad.schedules.stages import create
from tilegrad.schedules.te.conv import conv
from tilegrad.schedules.window import TEMPLATE
from tilegrad.schedules.window.plan import Plan, shape_of

NARROW = Target.parse("x86-64-v3", 2)
torch = pytest.importorskip("torch")

QUICK = [  # image, weights, strides, padding, dilation, groups
    ((2, 3, 17, 19), (3, 1, 3, 3), 1, 1, 1, 3),
    ((1, 4, 13, 40), (4, 1, 3, 3), 2, 1, 1, 4),
    ((2, 1, 9, 21), (5, 1, 3, 3), 1, 1, 1, 1),
]
SLOW = [
    ((1, 2, 7, 7), (2, 1, 3, 3), 1, 1, 1, 2),
    ((3, 2, 37), (2, 1, 5), 2, 2, 1, 2),
    ((2, 2, 11, 33), (4, 1, 5, 3), (2, 3), [(1, 0), (2, 1)], (1, 2), 2),
    ((1, 2, 33, 70), (2, 1, 7, 7), 1, 3, 1, 2),
    ((1, 3, 16, 16), (3, 1, 2, 2), 2, 0, 1, 3),
    ((1, 2, 5, 6, 18), (2, 1, 3, 3, 3), 1, 1, 1, 2),
    ((1, 2, 8, 9, 17), (2, 1, 3, 2, 3), 2, 1, 1, 2),
    ((1, 2, 20, 20), (2, 1, 3, 3), 3, 2, 2, 2),
    ((2, 2, 6, 50), (2, 1, 1, 3), 1, (0, 1), 1, 2),
    ((1, 2, 130, 130), (2, 1, 3, 3), 1, 1, 1, 2),
]
CASES = [*QUICK, *(pytest.param(*case, marks=pytest.mark.long) for case in SLOW)]
FEW = [  # the same, and the computation that sums over channels to few results
    ((2, 3, 13, 21), (5, 3, 3, 3), 1, 1, 1, 1, "by_data"),
    ((1, 2, 12, 19), (4, 2, 5, 3), (2, 1), 1, 1, 1, "by_data"),
    ((2, 6, 9, 20), (4, 3, 3, 3), 1, 1, 1, 2, "forward"),
    ((1, 8, 10, 17), (7, 8, 3, 3), 1, 1, 1, 1, "by_data"),
]
FEW_SLOW = [
    ((1, 3, 30, 34), (16, 3, 7, 7), 2, 3, 1, 1, "by_data"),
    ((2, 5, 40), (1, 5, 5), 2, 2, 1, 1, "forward"),
    ((1, 3, 5, 6, 18), (2, 3, 3, 3, 3), 1, 1, 1, 1, "forward"),
    ((2, 2, 20, 20), (6, 1, 3, 3), 1, 2, 2, 2, "by_data"),
    ((1, 24, 7, 7), (4, 24, 3, 3), 2, 1, 1, 1, "forward"),
    ((3, 5, 11, 21), (12, 5, 3, 3), 1, 1, 1, 1, "forward"),
    ((1, 8, 5, 6, 18), (4, 8, 3, 3, 3), 1, 1, 1, 1, "by_data"),
]
SUMS = [*FEW, *(pytest.param(*case, marks=pytest.mark.long) for case in FEW_SLOW)]


def _check(inputs, outputs, reference, config=None, target=TARGET):
    kernel = Kernel(inputs, *outputs, config=config, target=target)
    arrays = [normal(*map(int, t.shape), seed=n) for n, t in enumerate(inputs)]
    want = reference(*(torch.tensor(a).double() for a in arrays)).numpy()
    np.testing.assert_allclose(kernel(*arrays), want, rtol=1e-4, atol=1e-4)
    return kernel


@pytest.mark.parametrize("kind", ["forward", "by_data", "by_weight"])
@pytest.mark.parametrize("x_shape, w_shape, strides, padding, dilation, groups", CASES)
def test_against_torch(x_shape, w_shape, strides, padding, dilation, groups, kind):
    inputs, out, reference = kinds(x_shape, w_shape, strides, padding, dilation, groups)[kind]
    kernel = _check(inputs, [out], reference)
    if kernel.template is TEMPLATE:
        assert TEMPLATE.match(TEMPLATE.define(kernel.workload)).key == kernel.workload.key
    else:  # a gradient by data whose phases have one tap each, or not those of the stride
        assert kind == "by_data"


@pytest.mark.parametrize("x_shape, w_shape, strides, padding, dilation, groups, kind", SUMS)
def test_few_results_of_many_channels(x_shape, w_shape, strides, padding, dilation, groups, kind):
    inputs, out, reference = kinds(x_shape, w_shape, strides, padding, dilation, groups)[kind]
    kernel = _check(inputs, [out], reference)
    assert kernel.template is TEMPLATE
    assert TEMPLATE.match(TEMPLATE.define(kernel.workload)).key == kernel.workload.key


def test_threads_share_results_where_they_do_not_share_the_image():
    inputs, out, reference = kinds((1, 3, 8, 20), (12, 3, 3, 3), 1, 1, 1, 1)["forward"]
    kernel = _check(inputs, [out], reference, {"rows": 4, "vectors": 1, "band": 2})
    plan = Plan(shape_of(kernel.workload.fields, "float32"), {"rows": 4, "vectors": 1, "band": 2}, TARGET)
    assert (plan.bands, plan.parts, plan.threads) == (1, 2, 2)


@pytest.mark.parametrize("kind", ["forward", "by_data", "by_weight"])
def test_matched_by_its_form(kind):
    inputs, out, reference = kinds((2, 3, 14, 14), (3, 1, 3, 3), 2, 1, 1, 3)[kind]
    kernel = _check(inputs, [out], reference, target=NARROW)
    assert kernel.template is TEMPLATE
    dense = kinds((2, 6, 9, 9), (7, 6, 3, 3), 1, 1, 1, 1)[kind]
    assert TEMPLATE.match(create([*dense[0], dense[1]])) is None


CONFIGURED = [  # channels, weights, stride, groups, kind
    (2, (4, 1, 3, 3), 1, 2, "forward"),
    (2, (4, 1, 3, 3), 1, 2, "by_weight"),
    (5, (2, 5, 3, 3), 1, 1, "forward"),
    pytest.param(4, (4, 1, 3, 3), 2, 4, "by_data", marks=pytest.mark.long),
]


@pytest.mark.parametrize("channels, w_shape, stride, groups, kind", CONFIGURED)
def test_configs(channels, w_shape, stride, groups, kind):
    inputs, out, reference = kinds((2, channels, 19, 35), w_shape, stride, 1, 1, groups)[kind]
    configs = TEMPLATE.space(TEMPLATE.match(create([*inputs, out])), TARGET)
    assert TEMPLATE.default(TEMPLATE.match(create([*inputs, out])), TARGET) in configs
    for config in configs[:: max(1, len(configs) // 5)]:
        _check(inputs, [out], reference, config)


@pytest.mark.parametrize("per_group", [1, 3])
def test_epilogue_and_two_outputs(per_group):
    groups = 3 // per_group
    x, w, b = tensor(2, 3, 15, 21), tensor(3, per_group, 3, 3, name="w"), tensor(3, name="b")
    y = conv(x, w, 1, 1, 1, groups)
    z = te.compute(y.shape, lambda n, c, i, j: y[n, c, i, j] + b[c], name="add")
    relu = te.compute(y.shape, lambda *i: tirx.max(z(*i), tirx.const(0, "float32")), name="relu")
    kernel = Kernel([x, w, b], z, relu)
    assert kernel.template is TEMPLATE
    arrays = [normal(2, 3, 15, 21), normal(3, per_group, 3, 3, seed=1), normal(3, seed=2)]
    got_z, got_relu = kernel(*arrays)
    u, v, s = (torch.tensor(a).double() for a in arrays)
    want = torch.nn.functional.conv2d(u, v, s, 1, 1, 1, groups).numpy()
    np.testing.assert_allclose(got_z, want, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(got_relu, np.maximum(want, 0), rtol=1e-4, atol=1e-4)


def test_integers_and_halves():
    x, w = tensor(1, 2, 9, 20, dtype="int8"), tensor(2, 1, 3, 3, dtype="int8", name="w")
    rng = np.random.default_rng(0)
    a, b = rng.integers(-9, 9, (1, 2, 9, 20)).astype("int8"), rng.integers(-9, 9, (2, 1, 3, 3)).astype("int8")
    kernel = Kernel([x, w], conv(x, w, 1, 1, 1, 2))
    want = torch.nn.functional.conv2d(torch.tensor(a).double(), torch.tensor(b).double(), None, 1, 1, 1, 2).numpy()
    assert kernel.template is TEMPLATE
    np.testing.assert_array_equal(kernel(a, b), want)
    x, w = tensor(1, 2, 9, 20, dtype="float16"), tensor(2, 1, 3, 3, dtype="float16", name="w")
    h, k = normal(1, 2, 9, 20, dtype="float16"), normal(2, 1, 3, 3, seed=1, dtype="float16")
    want = torch.nn.functional.conv2d(torch.tensor(h).double(), torch.tensor(k).double(), None, 2, 1, 1, 2).numpy()
    np.testing.assert_allclose(Kernel([x, w], conv(x, w, 2, 1, 1, 2))(h, k), want, rtol=2e-3, atol=2e-3)


def test_illegal_configs():
    inputs, out, _ = kinds((1, 2, 30, 70), (2, 1, 7, 7), 1, 3, 1, 2)["forward"]
    for config in ({"rows": 8, "vectors": 4, "band": 1}, {"rows": 0, "vectors": 1, "band": 1}, {"rows": 1}):
        with pytest.raises(ScheduleError, match="window config"):
            Kernel(inputs, out, config=config)
