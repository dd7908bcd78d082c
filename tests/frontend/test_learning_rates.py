"""Learning rates against PyTorch's schedulers."""

from __future__ import annotations

import pytest

from tilegrad.frontend import optim

torch = pytest.importorskip("torch")

STEPS = 20


def theirs(make):
    opt = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.4)
    scheduler, found = make(opt), []
    for _ in range(STEPS):
        found.append(opt.param_groups[0]["lr"])
        opt.step()
        scheduler.step()
    return found


S = torch.optim.lr_scheduler
CASES = {
    "cosine": (lambda i: optim.cosine(i, 0.4, STEPS, final=0.1), lambda o: S.CosineAnnealingLR(o, STEPS, 0.1)),
    "linear": (lambda i: optim.linear(i, 0.4, STEPS), lambda o: S.LinearLR(o, 1.0, 0.0, STEPS)),
    "exponential": (lambda i: optim.exponential(i, 0.4, 0.9), lambda o: S.ExponentialLR(o, 0.9)),
    "piecewise": (lambda i: optim.piecewise(i, 0.4, [5, 12], 0.5), lambda o: S.MultiStepLR(o, [5, 12], 0.5)),
}


@pytest.mark.parametrize("name", CASES)
def test_schedules_are_pytorchs(name):
    ours, make = CASES[name]
    assert [ours(i) for i in range(STEPS)] == pytest.approx(theirs(make), abs=1e-9)


def test_warm_up_ends_at_the_peak_and_the_fall_at_the_end():
    rates = [optim.cosine(i, 1.0, 10, warmup=4) for i in range(12)]
    assert rates[:5] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0]) and rates[10:] == [0.0, 0.0]
