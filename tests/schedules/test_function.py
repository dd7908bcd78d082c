"""A kernel's key tells functions apart, and nothing but functions."""

import pytest

from tests.schedules.kernels import tensor
from tilegrad import schedules
from tilegrad._base.tvm import te, tirx
from tilegrad.schedules.function import function_of
from tilegrad.schedules.stages import create, stages


def elementwise(f, rows=8, names="x"):
    x = tensor(rows, 12, name=names)
    return create([x, te.compute((rows, 12), lambda i, j: f(x, i, j), name=f"{names}_out")])


def summed(f, rows=8, combine=te.sum):
    x, k = tensor(rows, 12), te.reduce_axis((0, 12), "k")
    return create([x, te.compute((rows,), lambda i: combine(f(x, i, k), axis=k), name="y")])


FUNCTIONS = {
    "exp": lambda x, i, j: tirx.exp(x[i, j]),
    "tanh": lambda x, i, j: tirx.tanh(x[i, j]),
    "twice": lambda x, i, j: x[i, j] * 2.0,
    "plus": lambda x, i, j: x[i, j] + 2.0,
    "square": lambda x, i, j: x[i, j] * x[i, j],
    "beside": lambda x, i, j: x[i, j] * x[i, 11 - j],
    "cast": lambda x, i, j: x[i, j].astype("int32").astype("float32"),
    "of_sum": lambda x, i, j: tirx.exp(x[i, j] + x[i, 0]),
    "sum_of": lambda x, i, j: tirx.exp(x[i, j]) + x[i, 0],
}


@pytest.mark.parametrize("make", [elementwise, summed])
def test_functions_of_one_shape_have_keys_of_their_own(make):
    found = {name: schedules.task_of(make(f)) for name, f in FUNCTIONS.items()}
    assert len({workload.key for _, workload in found.values()}) == len(FUNCTIONS)
    assert {template.name for template, _ in found.values()} == {"elementwise/1" if make is elementwise else "reduction/1"}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_names_sizes_and_factors_are_not_the_function(name):
    plain, other = elementwise(FUNCTIONS[name]), elementwise(FUNCTIONS[name], rows=16, names="other")
    assert function_of(stages(plain)) == function_of(stages(other))
    assert not any(c.isdigit() for c in function_of(stages(plain)).rpartition(" ")[2])


def test_a_factor_does_not_count_but_what_starts_a_sum_and_how_it_goes_on_do():
    assert function_of(stages(elementwise(FUNCTIONS["twice"]))) == function_of(stages(elementwise(lambda x, i, j: x[i, j] * 3.0)))
    texts = {function_of(stages(summed(FUNCTIONS["exp"], combine=c))) for c in (te.sum, te.max, te.min)}
    assert len(texts) == 3


def test_operations_can_be_read():
    assert function_of(stages(elementwise(FUNCTIONS["sum_of"]))).split()[:2] == ["exp", "add"]
