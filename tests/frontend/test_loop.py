"""The imperative loop: equal to PyTorch, compiled once, bounded."""

import numpy as np
import pytest

import tilegrad as tg
from tilegrad.frontend import evaluate

torch = pytest.importorskip("torch")


def pair(*, seed=0):
    torch.manual_seed(seed)
    theirs = torch.nn.Sequential(torch.nn.Linear(12, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    ours = tg.nn.Sequential(tg.nn.Linear(12, 8), tg.nn.ReLU(), tg.nn.Linear(8, 4))
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def data(n, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, 12)).astype("float32"), rng.integers(0, 4, n)


def our_step(model, opt, x, y):
    loss = tg.nn.functional.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss


def their_step(model, opt, x, y):
    loss = torch.nn.functional.cross_entropy(model(torch.tensor(x)), torch.tensor(y))
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.item()


def test_nesterov_curve_last_batch_and_learning_rate():
    ours, theirs = pair()
    kw = dict(lr=0.1, momentum=0.9, weight_decay=1e-3, nesterov=True)
    opt, topt = tg.optim.SGD(ours.parameters(), **kw), torch.optim.SGD(theirs.parameters(), **kw)
    x, y = data(8)
    counts = []
    for i in range(20):
        n = 5 if i % 4 == 3 else 8  # a last, smaller batch
        if i == 10:
            opt.lr = 0.02
            topt.param_groups[0]["lr"] = 0.02
        loss = our_step(ours, opt, x[:n], y[:n]).item()
        assert loss == pytest.approx(their_step(theirs, topt, x[:n], y[:n]), rel=1e-5)
        counts.append(evaluate.compiles)
    assert counts[3] == counts[-1]  # the second pass compiles nothing, nor does the learning rate
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        np.testing.assert_allclose(p.numpy(), q.detach().numpy(), rtol=1e-5, atol=1e-6)
