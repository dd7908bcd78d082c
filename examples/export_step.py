"""A training step as a library for other languages: examples/c, examples/cpp and examples/rust train with it.

python examples/export_step.py [folder]
"""

import sys

import numpy as np

import tilegrad as tg

BATCH = 240


def two_spirals(n):
    """n points on two arms, in the order that the other languages make them."""
    i = np.arange(n)
    turn = 1.5 * np.pi * (i // 2 + 1) / (n // 2)
    side = np.where(i % 2 == 0, 1.0, -1.0)
    x = np.stack([side * np.cos(turn), side * np.sin(turn)], axis=1) * (turn / 5)[:, None]
    return x.astype("float32"), (i % 2).astype("int64")


tg.manual_seed(0)
model = tg.nn.Sequential(tg.nn.Linear(2, 32), tg.nn.ReLU(), tg.nn.Linear(32, 32), tg.nn.ReLU(), tg.nn.Linear(32, 2))
optimizer = tg.optim.Adam(model.parameters(), lr=0.01)
x, y = two_spirals(BATCH)
step = tg.compile_step(model, tg.nn.functional.cross_entropy, optimizer, (x, y))

folder = step.export(
    sys.argv[1] if len(sys.argv) > 1 else "spirals",
    prefix="spirals",
    notes={
        "step": "One step of Adam on one batch.",
        "x": "coordinates of each point",
        "target": "the arm of each point, 0 or 1",
        "loss": "mean cross-entropy in nats, before the update",
        "prediction": "scores of both arms",
        "lr": "learning rate, per step",
    },
)
print("wrote", folder)

# The same package from Python. This part needs neither TVM nor the model's code.
loaded = tg.load(folder)
first = float(loaded.step(x, y))
for _ in range(400):
    last = float(loaded.step(x, y))
print(f"loss {first:.4f} -> {last:.4f}")
assert last < 0.05 < first
