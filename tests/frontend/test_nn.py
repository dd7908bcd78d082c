"""Layers against PyTorch with equal weights: outputs, gradients of inputs and parameters, buffers; names and initial values."""

import numpy as np
import pytest

import tilegrad as tg
from tests.frontend.many import virtual_machine, weights
from tilegrad.frontend.apply import as_tensor
from tilegrad.frontend.gradients import flatten, to_arrays

torch = pytest.importorskip("torch")
nn, tnn = tg.nn, torch.nn
rng = np.random.default_rng(0)


def normal(*shape):
    return rng.standard_normal(shape).astype("float32")


IMAGE, SERIES, ROWS, VOLUME = normal(2, 4, 7, 6), normal(2, 4, 9), normal(5, 6), normal(2, 2, 4, 5, 3)
SEQUENCE = normal(5, 2, 8)
# name: (make in either library, inputs)
LAYERS = {
    "Linear": (lambda n: n.Linear(6, 3), [ROWS]),
    "Linear without bias": (lambda n: n.Linear(6, 3, bias=False), [normal(2, 3, 6)]),
    "Conv1d": (lambda n: n.Conv1d(4, 3, 3, stride=2, padding=1), [SERIES]),
    "Conv2d": (lambda n: n.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 0), groups=2), [IMAGE]),
    "Conv2d same": (lambda n: n.Conv2d(4, 3, 3, padding="same", dilation=2), [IMAGE]),
    "Conv2d depthwise": (lambda n: n.Conv2d(4, 4, 3, groups=4, bias=False), [IMAGE]),
    "Conv3d": (lambda n: n.Conv3d(2, 3, 2), [VOLUME]),
    "ConvTranspose1d": (lambda n: n.ConvTranspose1d(4, 3, 3, stride=2), [SERIES]),
    "ConvTranspose2d": (lambda n: n.ConvTranspose2d(4, 3, 3, stride=2, padding=1, output_padding=1), [IMAGE]),
    "MaxPool2d": (lambda n: n.MaxPool2d(3, stride=2, padding=1), [IMAGE]),
    "MaxPool1d": (lambda n: n.MaxPool1d(2), [SERIES]),
    "AvgPool2d": (lambda n: n.AvgPool2d(3, stride=2, padding=1), [IMAGE]),
    "AdaptiveAvgPool2d": (lambda n: n.AdaptiveAvgPool2d((3, 2)), [IMAGE]),
    "BatchNorm1d": (lambda n: n.BatchNorm1d(6), [ROWS]),
    "BatchNorm2d": (lambda n: n.BatchNorm2d(4, momentum=0.3), [IMAGE]),
    "BatchNorm2d cumulative": (lambda n: n.BatchNorm2d(4, momentum=None), [IMAGE]),
    "BatchNorm2d eval": (lambda n: n.BatchNorm2d(4).eval(), [IMAGE]),
    "LayerNorm": (lambda n: n.LayerNorm((7, 6)), [IMAGE]),
    "RMSNorm": (lambda n: n.RMSNorm(6), [ROWS]),
    "GroupNorm": (lambda n: n.GroupNorm(2, 4), [IMAGE]),
    "InstanceNorm2d": (lambda n: n.InstanceNorm2d(4, affine=True), [IMAGE]),
    "Embedding": (lambda n: n.Embedding(7, 3, padding_idx=2), [np.array([[1, 2, 2], [6, 0, 1]])]),
    "PReLU": (lambda n: n.PReLU(4), [IMAGE]),
    "Dropout eval": (lambda n: n.Dropout(0.5).eval(), [ROWS]),
    "MultiheadAttention": (lambda n: n.MultiheadAttention(8, 2), [SEQUENCE, SEQUENCE * 0.5, SEQUENCE + 1]),
    "TransformerEncoder": (
        lambda n: n.TransformerEncoder(n.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True), 2),
        [SEQUENCE],
    ),
    "LSTM": (lambda n: n.LSTM(8, 3, num_layers=2, bidirectional=True), [SEQUENCE[:3]]),
    "GRU": (lambda n: n.GRU(8, 3, batch_first=True), [SEQUENCE[:, :2]]),
    "Sequential": (lambda n: n.Sequential(n.Conv2d(4, 2, 3), n.ReLU(), n.Flatten(), n.Linear(40, 3), n.Softmax(dim=1)), [IMAGE]),
}


class Layers:
    """Comparisons, six layers a program, when one of them is asked for."""

    def __init__(self):
        self.done = {}

    def __getitem__(self, name):
        if name not in self.done:
            start = list(LAYERS).index(name) // 6 * 6
            self.done |= compare(list(LAYERS)[start : start + 6])
        return self.done[name]


@pytest.fixture(scope="module")
def recorded():
    with virtual_machine():
        yield Layers()


@pytest.fixture(scope="module")
def compiled():
    return Layers()


def compare(names):
    """Outputs, then gradients of inputs and parameters, then buffers: (ours, PyTorch's) by layer."""
    wanted, expected, spans = [], [], {}
    for name in names:
        make, arrays = LAYERS[name]
        torch.manual_seed(0)
        theirs, ours = make(tnn), make(nn)
        ours.load_state_dict(theirs.state_dict())
        start = len(wanted)
        wanted += measure(ours, [tg.tensor(a, requires_grad=a.dtype.kind == "f") for a in arrays], as_tensor)
        expected += measure(theirs, [torch.tensor(a, requires_grad=a.dtype.kind == "f") for a in arrays], torch.as_tensor)
        spans[name] = (start, len(wanted))
    values = to_arrays(wanted)
    expected = [e.detach().numpy() for e in expected]
    assert len(values) == len(expected)
    return {n: (values[a:b], expected[a:b]) for n, (a, b) in spans.items()}


def measure(layer, tensors, convert):
    outs = [convert(o) for o in flatten(layer(*tensors))[0]]
    loss = sum((o * convert(weights(tuple(o.shape), "float32"))).sum() for o in outs)
    loss.backward()
    return [*outs, *(t.grad for t in tensors if t.requires_grad), *(p.grad for p in layer.parameters()), *layer.buffers()]


@pytest.mark.parametrize("name", list(LAYERS))
def test_recorded(recorded, name):
    check(*recorded[name])


@pytest.mark.long
@pytest.mark.parametrize("name", list(LAYERS))
def test_compiled(compiled, name):
    check(*compiled[name])


def check(values, expected):
    for ours, theirs in zip(values, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", list(LAYERS))
def test_state_has_pytorch_names(name):
    make = LAYERS[name][0]
    ours, theirs = make(nn).state_dict(), make(tnn).state_dict()
    assert {k: v.shape for k, v in ours.items()} == {k: tuple(v.shape) for k, v in theirs.items()}


@pytest.mark.parametrize(
    "name", ["Linear", "Conv2d", "ConvTranspose2d", "Embedding", "LSTM", "MultiheadAttention", "BatchNorm2d"]
)
def test_initial_distribution_is_pytorchs(name):
    """Same range and spread: compared on large layers."""
    big = {
        "Linear": lambda n: n.Linear(100, 400),
        "Conv2d": lambda n: n.Conv2d(16, 64, 3),
        "ConvTranspose2d": lambda n: n.ConvTranspose2d(16, 64, 3),
        "Embedding": lambda n: n.Embedding(100, 50),
        "LSTM": lambda n: n.LSTM(40, 30),
        "MultiheadAttention": lambda n: n.MultiheadAttention(64, 4),
        "BatchNorm2d": lambda n: n.BatchNorm2d(8),
    }[name]
    torch.manual_seed(0)
    tg.manual_seed(0)
    ours, theirs = big(nn).state_dict(), big(tnn).state_dict()
    for k, v in ours.items():
        t = theirs[k].double().numpy()
        assert abs(v.std() - t.std()) <= 0.1 * t.std()
        assert abs(np.abs(v).max() - np.abs(t).max()) <= 0.35 * np.abs(t).max()


@pytest.mark.parametrize(
    "function",
    [
        lambda f, x, w, b: f.layer_norm(x, (6,), w, b, 1e-3),
        lambda f, x, w, b: f.layer_norm(x, (4, 6)),
        lambda f, x, w, b: f.rms_norm(x, (6,), w, 1e-3),
        lambda f, x, w, b: f.group_norm(x, 2, w[:4], b[:4], 1e-3),
        lambda f, x, w, b: f.dropout(x, 0.5, training=False),
        lambda f, x, w, b: f.dropout(x, 0.0),
    ],
)
def test_functions_of_normalisation_are_pytorchs(function):
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s).astype("float32") for s in ((3, 4, 6), (6,), (6,))]
    with virtual_machine():
        ours = function(nn.functional, *map(tg.tensor, arrays)).numpy()
    np.testing.assert_allclose(ours, function(torch.nn.functional, *map(torch.tensor, arrays)).numpy(), rtol=1e-5, atol=1e-6)


def test_seed_repeats_weights_and_dropout():
    def draw():
        tg.manual_seed(7)
        layer = nn.Linear(3, 2)
        return layer.weight.numpy(), nn.Dropout(0.5)(np.ones((64, 8), "float32")).numpy()

    (w1, d1), (w2, d2) = draw(), draw()
    np.testing.assert_array_equal(w1, w2)
    np.testing.assert_array_equal(d1, d2)
    assert set(np.unique(d1)) == {0.0, 2.0}
    assert 0.4 < (d1 == 0).mean() < 0.6
    assert not np.array_equal(d1, nn.Dropout(0.5)(np.ones((64, 8), "float32")).numpy())  # the next draw differs


def test_module_bookkeeping():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(2, 2)
            self.tied = self.first
            self.extra = nn.Parameter(np.zeros(3, "float32"))
            self.blocks = nn.ModuleDict({"a": nn.ModuleList([nn.Linear(1, 1)])})
            self.register_buffer("count", tg.tensor(0))

        def forward(self, x):
            return self.tied(self.first(x))

    net = Net()
    assert [n for n, _ in net.named_parameters()] == [
        "extra",
        "first.weight",
        "first.bias",
        "blocks.a.0.weight",
        "blocks.a.0.bias",
    ]
    assert "tied.weight" in net.state_dict() and "count" in net.state_dict()
    assert not net.eval().blocks["a"][0].training and net.train().blocks["a"][0].training
    assert "Linear(in_features=2" in repr(net)
    with pytest.raises(tg.errors.UsageError, match="missing .*extra"):
        net.load_state_dict({})
    with pytest.raises(tg.errors.ShapeError, match="'extra'"):
        net.load_state_dict(net.state_dict() | {"extra": np.zeros(4)})


@pytest.mark.parametrize("kernel, stride, padding", [(6, 3, 3), ((6, 4), (3, 2), (3, 1)), (4, 2, 2), (5, 2, 1)])
def test_average_pooling_with_overlap_and_padding_has_pytorchs_gradient(kernel, stride, padding):
    x = np.random.default_rng(0).standard_normal((2, 3, 9, 9)).astype("float32")
    ours, theirs = tg.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    (tg.nn.functional.avg_pool2d(ours, kernel, stride, padding) ** 2).sum().backward()
    (torch.nn.functional.avg_pool2d(theirs, kernel, stride, padding) ** 2).sum().backward()
    np.testing.assert_allclose(ours.grad.numpy(), theirs.grad.numpy(), rtol=1e-5, atol=1e-6)


def test_arguments_are_refused_where_the_module_is_made():
    conv, p = tg.nn.Conv2d, tg.nn.Linear(2, 2)
    bad = {
        "kernel_size.*one whole number or 2": lambda: conv(3, 4, (3, 3, 3)),
        "stride.*one whole number or 2": lambda: conv(3, 4, 3, stride=(1,)),
        "padding.*'same' or 'valid'": lambda: conv(3, 4, 3, padding="full"),
        "num_groups.*3 for 4": lambda: tg.nn.GroupNorm(3, 4),
        "Dropout, argument 'p'.*probability": lambda: tg.nn.Dropout(1.5),
        "GRU, argument 'dropout'.*probability": lambda: tg.nn.GRU(2, 2, 2, dropout=-0.5),
        "hx.*pair": lambda: tg.nn.LSTM(2, 3)(np.ones((4, 1, 2), "float32"), np.ones((1, 1, 3), "float32")),
        "params.*module.parameters": lambda: tg.optim.Adam(p),
        "betas.*pair": lambda: tg.optim.Lion(p.parameters(), betas=0.9),
    }
    for message, make in bad.items():
        with pytest.raises(tg.errors.TilegradError, match=message):
            make()
