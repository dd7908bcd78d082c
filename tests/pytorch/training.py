"""A training step of a PyTorch module through the importer, beside PyTorch's own: loss, outputs, gradients, buffers."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import torch

from tilegrad._base.tvm import relax
from tilegrad.frontend.pytorch.importer import open_exported
from tilegrad.frontend.pytorch.model import exported
from tilegrad.frontend.pytorch.tensors import to_numpy
from tilegrad.relax_ext.driver import build_graphs
from tilegrad.relax_ext.gradient import vjp


class WithLoss(torch.nn.Module):
    """``model`` and cross-entropy against class numbers (the classes on axis 1, or last for token models)."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.model(x)
        logits = y.flatten(0, 1) if y.ndim == 3 else y
        return torch.nn.functional.cross_entropy(logits, target.flatten() if y.ndim == 3 else target), y


@dataclass
class Step:
    """Results by name; gradients and buffers by PyTorch's names."""

    loss: float
    output: np.ndarray
    gradients: dict[str, np.ndarray]
    buffers: dict[str, np.ndarray]


def ours(model: torch.nn.Module, x: torch.Tensor, target: torch.Tensor) -> Step:
    """Forward and backward in one library."""
    opened = open_exported(exported(WithLoss(model), (x, target), model.training))
    loss = opened.outputs["output"]
    one = relax.const(1.0, str(loss.ty.dtype))
    grads = vjp(opened.builder, [loss], [one], [opened.states[n] for n in opened.parameters])
    named = {f"grad.{n}": g for n, g in zip(opened.parameters, grads, strict=True) if g is not None}
    done = opened.finish(named)
    context = build_graphs({"step": done.graph}, logs=[]).library.context()
    for name, data in done.states.items():
        context.state(name)[...] = data
    got = context.run("step", dict(zip(done.inputs, (to_numpy(x), to_numpy(target)), strict=True)))
    buffers = {n: np.array(context.state(n)) for n in done.states if n not in done.parameters}
    return Step(
        float(got["output"]),
        got["output1"],
        {n: got[f"grad.{n}"] for n in done.parameters if f"grad.{n}" in got},
        {n.removeprefix("model."): b for n, b in buffers.items()},
    )


def theirs(model: torch.nn.Module, x: torch.Tensor, target: torch.Tensor) -> Step:
    """PyTorch's step on a copy, in float64."""
    wrapped = WithLoss(copy.deepcopy(model)).double()
    loss, y = wrapped(x.double() if x.is_floating_point() else x, target)
    loss.backward()
    grads = {n: p.grad.numpy() for n, p in wrapped.named_parameters() if p.grad is not None}
    buffers = {n.removeprefix("model."): b.numpy() for n, b in wrapped.named_buffers()}
    return Step(loss.item(), y.detach().numpy(), grads, buffers)


def assert_equal_steps(
    model: torch.nn.Module, x: torch.Tensor, target: torch.Tensor, dtype: torch.dtype = torch.float32, tolerance: float = 2e-4,
    of_gradients: float | None = None,
) -> None:  # fmt: skip
    """Raise AssertionError unless our step in ``dtype`` is PyTorch's in float64: loss, outputs, every gradient, every buffer.

    tolerance: of differences relative to each array's largest element; ``of_gradients`` where gradients have another.
    """
    model = model.train().to(dtype)
    x = x.to(dtype) if x.is_floating_point() else x
    got, want = named(ours(model, x, target)), named(theirs(model, x, target))
    assert set(want) <= set(got)
    for what, exact in want.items():
        limit = tolerance if of_gradients is None or not what.startswith("gradient") else of_gradients
        assert relative(got[what], exact) <= limit, f"{what}: relative difference {relative(got[what], exact):.2e}"


def named(step: Step) -> dict[str, np.ndarray]:
    """All results of a step by what they are."""
    gradients = {f"gradient of {n}": g for n, g in step.gradients.items()}
    return {
        "loss": np.array(step.loss),
        "output": step.output,
        **gradients,
        **{f"buffer {n}": b for n, b in step.buffers.items()},
    }


def relative(got: np.ndarray, want: np.ndarray) -> float:
    """The largest difference relative to the largest element."""
    assert got.shape == want.shape
    scale = max(float(np.abs(want).max(initial=0.0)), 1e-2)
    return float(np.abs(got.astype("float64") - want).max(initial=0.0)) / scale
