"""PyTorch's own samples of a few operators whose rules are not decompositions, forward and gradient; the benchmark
``torch_conformance`` runs all of them."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("expecttest")

pytestmark = pytest.mark.filterwarnings("ignore")  # of PyTorch's testing modules and samples

QUICK = "nn.functional.embedding_bag searchsorted hypot logcumsumexp xlogy masked.prod nn.functional.avg_pool1d minimum".split()
MORE = (
    "polygamma.polygamma_n_2 erfinv _upsample_bilinear2d_aa nextafter frexp gcd lcm i0 bucketize "
    "aminmax nn.functional.batch_norm nan_to_num nn.functional.avg_pool2d nn.functional.avg_pool3d "
    "as_strided_scatter index_reduce.mean angle resize_"
).split()


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(n, marks=pytest.mark.long) for n in MORE)])
def test_samples(name):
    from torch.testing._internal.common_methods_invocations import op_db

    from benchmarks._conformance_worker import operator_row
    from benchmarks.torch_conformance import TOLERANCE

    op = next(o for o in op_db if name in (o.name, f"{o.name}.{o.variant_test_name}"))
    row = operator_row(name, op, 3, ["float32"], TOLERANCE)
    assert row["samples"] and row["passed"] == row["samples"], row["notes"]
