"""Functions of the form of numbers and special functions, against PyTorch over the range of the floats."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")

from tests.pytorch.test_importer import run  # noqa: E402

EDGES = [0.0, -0.0, 27.0, 100.0, -30.0, float("inf"), -float("inf"), float("nan"), 1e-40, 3e38, -1e-45]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_mantissa_exponent_neighbours_and_special_functions(dtype):
    x = torch.cat([torch.linspace(-6, 12, 37), torch.tensor(EDGES)]).to(dtype)
    y = torch.linspace(4, -3, len(x)).to(dtype)

    def function(x, y):
        return (*torch.frexp(x), torch.nextafter(x, y), torch.nextafter(y, x), torch.special.erfc(x), torch.special.i0(x))

    found = [torch.as_tensor(v) for v in run(function, x, y)]
    for ours, theirs in list(zip(found, function(x, y), strict=True))[:4]:
        assert torch.equal(ours.nan_to_num(7), theirs.nan_to_num(7)) and ours.dtype == theirs.dtype
    for ours, theirs in list(zip(found, function(x, y), strict=True))[4:]:
        limit = 1e-6 if dtype == torch.float32 else 1e-12
        torch.testing.assert_close(ours, theirs, rtol=limit, atol=1e-44, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32, torch.int64])
def test_greatest_common_divisors_and_least_common_multiples(dtype):
    torch.manual_seed(0)
    low = 0 if dtype == torch.uint8 else -100
    a, b = (torch.cat([torch.randint(low, 100, (300,)), torch.tensor([0, 0, 5])]).to(dtype) for _ in range(2))
    if dtype == torch.int64:  # and two neighbours of Fibonacci's, the longest way
        a, b = (
            torch.cat([v, torch.tensor([f])]) for v, f in ((a * 2**50, 7540113804746346429), (b * 2**49, 4660046610375530309))
        )

    def function(a, b):
        return torch.gcd(a, b), torch.lcm(a, b)

    for ours, theirs in zip(run(function, a, b), function(a, b), strict=True):
        assert torch.equal(torch.as_tensor(ours), theirs)
