"""Operators that few models use, values and gradients against PyTorch in float64: one library for several."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings("ignore")  # of PyTorch's export and deprecations

import torch.nn.functional as F  # noqa: E402

from tests.pytorch.test_importer import run  # noqa: E402


def leaf(*shape):
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def quick():
    """(function, its arguments): gradients by those that ask for one."""
    torch.manual_seed(0)
    lengths, grid = torch.tensor([2, 0, 3, 1]), torch.rand(1, 2, 3, 1, 3, dtype=torch.float64) * 3 - 1.5
    yield lambda x, n: torch.segment_reduce(x, "mean", lengths=n, initial=1.5), (leaf(6, 2), lengths)
    yield lambda x, n: torch.segment_reduce(x, "max", lengths=n), (leaf(6), lengths)
    yield lambda x, g: F.grid_sample(x, g, "bilinear", "zeros", False), (leaf(1, 2, 3, 2, 4), grid.requires_grad_())
    yield lambda v: torch.mode(v.round(), 1), (leaf(4, 9),)
    yield lambda v, w: torch.histogram(v, 5, weight=w, density=True), (torch.randn(40).double(), torch.rand(40).double())
    yield lambda v: torch.nonzero_static(v > 0.3, size=9, fill_value=-7), (torch.randn(3, 5),)
    mask = torch.tensor([[True, False, True], [False, True, False]])
    yield lambda v, m, n: v.index_put((m,), n), (leaf(2, 3, 2), mask, leaf(3, 2))


def more():
    torch.manual_seed(1)
    lengths, offsets = torch.tensor([2, 0, 3, 1]), torch.tensor([1, 3, 3, 6])
    for reduce, initial in (("min", 0.5), ("sum", None), ("prod", 2.0), ("mean", None)):
        yield lambda x, n, r=reduce, i=initial: torch.segment_reduce(x, r, lengths=n, initial=i), (leaf(6, 2), lengths)
    yield lambda x, o: torch.segment_reduce(x, "sum", offsets=o, unsafe=True), (leaf(7), offsets)
    for mode, padding, align in (
        ("bilinear", "border", True),
        ("bilinear", "reflection", False),
        ("nearest", "reflection", True),
    ):
        grid = (torch.rand(2, 2, 3, 2, 3, dtype=torch.float64) * 3.5 - 1.75).requires_grad_()
        yield lambda x, g, m=mode, p=padding, a=align: F.grid_sample(x, g, m, p, a), (leaf(2, 2, 3, 4, 5), grid)
    yield lambda v: torch.quantile(v, 0.3), (leaf(),)
    yield lambda v: torch.histc(v, 7, -1.0, 1.5), (torch.randn(40, dtype=torch.float64),)
    yield lambda v: torch.histc(v, 4), (torch.full((5,), 3.0, dtype=torch.float64),)
    yield lambda v, e: torch.histogram(v, e), (torch.randn(40).double(), torch.tensor([-1.0, 0.0, 0.7]).double())
    mask = torch.tensor([True, False, True])
    yield lambda v, m, n: torch.ops.aten.index_put(v, [None, m], n, True), (leaf(2, 3), mask, leaf(2, 1))


def gamma():
    a = torch.logspace(-2, 3, 6, dtype=torch.float64).reshape(6, 1)
    x = a * torch.tensor([0.01, 0.6, 0.98, 1.02, 1.7, 9.0], dtype=torch.float64)
    yield torch.special.gammainc, (a, x.requires_grad_())


@pytest.mark.parametrize("cases", [quick, *(pytest.param(c, marks=pytest.mark.long) for c in (more, gamma))])
def test_values_and_gradients(cases):
    from benchmarks._conformance_worker import Case, ours, reference

    known = [reference(Case(f, SimpleNamespace(input=args[0], args=args[1:], kwargs={}))) for f, args in cases()]
    for i, (sample, (results, gradients)) in enumerate(zip(known, ours(known), strict=True)):
        found, wanted = [*results, *gradients], [*sample.results, *sample.gradients]
        for got, want in zip(found, wanted, strict=True):
            assert (got.dtype, got.shape) == (want.numpy().dtype, tuple(want.shape)), i
            np.testing.assert_allclose(got, want.numpy(), rtol=1e-9, atol=1e-11, err_msg=f"case {i}")


@pytest.mark.long
def test_incomplete_gamma_functions_at_the_edges_and_for_large_numbers():
    special = pytest.importorskip("scipy.special")
    edges = torch.tensor([0.0, 1.0, -1.0, float("inf"), 1e-3, 1e4], dtype=torch.float64)
    a, x = edges[:, None].expand(6, 6).contiguous(), edges.expand(6, 6).contiguous()
    found = run(lambda a, x: (torch.special.gammainc(a, x), torch.special.gammaincc(a, x)), a, x)
    for got, want in zip(found, (special.gammainc(a.numpy(), x.numpy()), special.gammaincc(a.numpy(), x.numpy())), strict=True):
        off = np.isnan(want) | (a.numpy() == np.inf)  # SciPy's limits there are not PyTorch's
        np.testing.assert_allclose(got[~off], want[~off], rtol=1e-9, atol=1e-14)
