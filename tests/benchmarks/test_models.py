"""The benchmark's models are the same models in tilegrad and in PyTorch."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from benchmarks import train_step  # noqa: E402
from benchmarks.models import nets, ours  # noqa: E402
from benchmarks.models.pytorch import training  # noqa: E402
from benchmarks.models.tasks import TASKS, save_weights  # noqa: E402
from benchmarks.train_step import compared  # noqa: E402


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


def test_curves_are_judged_by_the_exact_one() -> None:
    exact = [2.0, 1.0, 0.5]
    near = compared([2.0, 1.002, 0.5], [2.0, 1.0, 0.4995], exact)
    assert near["curve_error"] == {"ours": pytest.approx(2e-3), "torch": pytest.approx(1e-3)} and near["curve_as_good"]
    assert near["curve_max_rel_diff"] == pytest.approx(2e-3)
    assert not compared([2.0, 1.004, 0.5], [2.0, 1.0, 0.4995], exact)["curve_as_good"]
    assert compared([2.0 + 1e-6, 1.0, 0.5], exact, exact)["curve_as_good"]
    assert not compared([2.0 + 1e-5, 1.0, 0.5], exact, exact)["curve_as_good"]


def test_the_exact_curve_is_computed_where_the_others_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def apart(_: str, who: str, kwargs: dict[str, str]) -> list[float]:
        asked.append((who, kwargs.get("dtype")))
        return [2.0, 1.001 if kwargs["model"] == "far" and who == "ours" else 1.0]

    monkeypatch.setattr(train_step, "_apart", apart)
    assert train_step.curves({"model": "near"}, {"model": "near"}) == {"curve_max_rel_diff": 0.0, "curve_as_good": True}
    assert asked == [("ours", None), ("pytorch", None)]
    assert not train_step.curves({"model": "far"}, {"model": "far"})["curve_as_good"]
    assert asked[-1] == ("pytorch", "float64")


def test_curves_of_a_small_model_are_those_of_pytorch(tmp_path: Path) -> None:
    """The float64 curve is one: it differs from PyTorch's own by float32's rounding, not by the model or the batch."""
    save_weights(tmp_path / "w", ours.net_of("mlp").state_dict())
    single = training("mlp", tmp_path / "w", 1, None)
    double = training("mlp", tmp_path / "w", 1, None, "float64")
    found = compared([single() for _ in range(3)], [single() for _ in range(3)], [double() for _ in range(3)])
    assert 0 < found["curve_error"]["ours"] < 1e-5 < found["curve_error"]["torch"]
