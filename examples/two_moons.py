"""Micrograd's demonstration: two interleaved half moons, told apart by a 2-16-16-1 network with a max-margin loss.

python examples/two_moons.py
"""

import numpy as np

import tilegrad as tg
from tilegrad import nn

POINTS, STEPS, DECAY = 100, 100, 1e-4


def two_moons(n, rng):
    """n points on two half circles with noise, and their side, -1 or 1."""
    angle = np.pi * rng.uniform(size=n)
    side = np.where(np.arange(n) % 2 == 0, 1.0, -1.0)
    x = np.stack([0.5 + side * (np.cos(angle) - 0.5), 0.25 + side * (np.sin(angle) - 0.25)], axis=1)
    return x + 0.1 * rng.standard_normal((n, 2)), side


class Layer(nn.Module):
    """x w + b, in float64 as micrograd's numbers are."""

    def __init__(self, inputs, outputs, rng):
        super().__init__()
        self.w = nn.Parameter(rng.uniform(-1, 1, (inputs, outputs)))
        self.b = nn.Parameter(np.zeros(outputs))

    def forward(self, x):
        """[n, inputs] to [n, outputs]."""
        return x @ self.w + self.b


def network(rng):
    """Two hidden layers of 16 rectified units and one score."""
    return nn.Sequential(Layer(2, 16, rng), nn.ReLU(), Layer(16, 16, rng), nn.ReLU(), Layer(16, 1, rng))


def loss_of(model, x, side):
    """(mean hinge + DECAY * squares of all parameters, scores)."""
    scores = model(x)[:, 0]
    hinge = tg.relu(1.0 - side * scores).mean()
    return hinge + DECAY * sum((p * p).sum() for p in model.parameters()), scores


def main():
    """Gradient descent with micrograd's falling step."""
    rng = np.random.default_rng(1337)
    points, sides = two_moons(POINTS, rng)
    model, x, side = network(rng), tg.tensor(points), tg.tensor(sides)
    optimizer = tg.optim.SGD(model.parameters(), lr=1.0)
    for k in range(STEPS):
        loss, scores = loss_of(model, x, side)
        optimizer.zero_grad()
        loss.backward()
        optimizer.lr = 1.0 - 0.9 * k / STEPS
        optimizer.step()
        if k % 10 == 0 or k == STEPS - 1:
            right = float(((scores.numpy() > 0) == (sides > 0)).mean())
            print(f"step {k:3d}  loss {loss.item():.4f}  right {100 * right:.0f} %")


if __name__ == "__main__":
    main()
