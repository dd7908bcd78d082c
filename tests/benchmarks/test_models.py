"""The benchmark's models are the same models in tilegrad and in PyTorch."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from benchmarks.models import nets, ours  # noqa: E402
from benchmarks.models.tasks import TASKS  # noqa: E402


@pytest.mark.parametrize("model", TASKS)
def test_parameters_and_buffers_have_the_same_names_and_shapes(model: str) -> None:
    own = {name: value.shape for name, value in ours.net_of(model).state_dict().items()}
    theirs = {name: tuple(value.shape) for name, value in nets.NETS[model](torch.nn).state_dict().items()}
    assert own == theirs


@pytest.mark.parametrize("model", ["mlp", "lstm"])
def test_predictions_from_the_same_weights_are_the_same(model: str) -> None:
    net, reference = ours.net_of(model), nets.NETS[model](torch.nn)
    reference.load_state_dict({name: torch.from_numpy(value) for name, value in net.state_dict().items()})
    x = TASKS[model].batch()[0][:4, ..., :]
    x = x[:, :3] if model == "lstm" else x
    torch.testing.assert_close(torch.from_numpy(net(x).numpy()), reference(torch.from_numpy(x)), rtol=1e-4, atol=1e-5)
