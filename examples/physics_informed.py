"""A physics-informed network: Poisson's equation on the unit square, its Laplacian by nested gradients.

-(u_xx + u_yy) = 2 pi^2 sin(pi x) sin(pi y), u = 0 on the border; the solution is sin(pi x) sin(pi y).

python examples/physics_informed.py
"""

import time

import numpy as np

import tilegrad as tg
from tilegrad import nn

SIDE, STEPS = 20, 1500


class Solution(nn.Module):
    """u(x, y) = x (1 - x) y (1 - y) N(x, y): zero on the border whatever the network N is."""

    def __init__(self):
        super().__init__()
        self.network = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))

    def u(self, x, y):
        """Values [n] at coordinates [n] and [n]."""
        return x * (1.0 - x) * y * (1.0 - y) * self.network(tg.stack([x, y], 1))[:, 0]

    def forward(self, x, y):
        """The Laplacian at every point: a sum over points has each point's derivative by its own coordinates."""
        u_xx = second_derivative(lambda v: self.u(v, y))(x)
        u_yy = second_derivative(lambda v: self.u(x, v))(y)
        return u_xx + u_yy


def second_derivative(f):
    """f'' of a function that works point by point."""
    first = tg.grad(lambda v: f(v).sum())
    return tg.grad(lambda v: first(v).sum())


def main():
    """Adam on the mean squared residual, in one compiled step."""
    tg.manual_seed(0)
    middle = (np.arange(SIDE, dtype="float32") + 0.5) / SIDE
    x, y = (c.ravel() for c in np.meshgrid(middle, middle))
    exact = np.sin(np.pi * x) * np.sin(np.pi * y)
    source = (-2 * np.pi**2 * exact).astype("float32")

    model = Solution()
    optimizer = tg.optim.Adam(model.parameters(), lr=5e-3)
    step = tg.compile_step(model, nn.functional.mse_loss, optimizer, [x, y, source])
    start = time.perf_counter()
    losses = []
    for k in range(STEPS):
        optimizer.lr = 5e-3 * 0.5 * (1 + np.cos(np.pi * k / STEPS))
        losses.append(float(step(x, y, source)))
        if k % 250 == 0:
            print(f"step {k:4d}  loss {losses[-1]:.5f}")
    error = np.abs(model.u(tg.tensor(x), tg.tensor(y)).numpy() - exact).max()
    print(f"loss {losses[0]:.3f} to {losses[-1]:.6f} in {STEPS} steps, {time.perf_counter() - start:.1f} s")
    print(f"largest error against the exact solution {error:.2e}")


if __name__ == "__main__":
    main()
