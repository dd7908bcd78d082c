"""A training step of a PyTorch module through the importer, beside PyTorch's own: loss, outputs, gradients, buffers."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

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
    one = relax.const(np.ones((), "float32"))
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
    """PyTorch's step on a copy."""
    wrapped = WithLoss(copy.deepcopy(model))
    loss, y = wrapped(x, target)
    loss.backward()
    grads = {n: p.grad.numpy() for n, p in wrapped.named_parameters() if p.grad is not None}
    buffers = {n.removeprefix("model."): b.numpy() for n, b in wrapped.named_buffers()}
    return Step(loss.item(), y.detach().numpy(), grads, buffers)


def assert_equal_steps(model: torch.nn.Module, x: torch.Tensor, target: torch.Tensor, tolerance: float = 2e-4) -> dict[str, Any]:
    """Raise AssertionError unless loss, outputs, every gradient and every buffer agree (relative to each array's size)."""
    model.train()
    a, b = ours(model, x, target), theirs(model, x, target)
    assert abs(a.loss - b.loss) <= tolerance * max(1.0, abs(b.loss)), f"loss {a.loss} instead of {b.loss}"
    assert set(a.gradients) == set(b.gradients)
    pairs = {"output": (a.output, b.output)}
    pairs |= {f"gradient of {n}": (a.gradients[n], g) for n, g in b.gradients.items()}
    pairs |= {f"buffer {n}": (a.buffers[n], v) for n, v in b.buffers.items() if n in a.buffers}
    worst = 0.0
    for what, (got, want) in pairs.items():
        assert got.shape == want.shape, what
        scale = max(float(np.abs(want).max(initial=0.0)), 1e-2)
        error = float(np.abs(got.astype("float64") - want).max(initial=0.0)) / scale
        assert error <= tolerance, f"{what}: relative difference {error:.2e}"
        worst = max(worst, error)
    return {"worst": worst, "loss": a.loss}
