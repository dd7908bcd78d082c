"""PyTorch's side of the comparison, in a process of its own: same initial parameters, same batches, same optimizer.

python -m tilegrad.demo.torch_step NAME initial.npz losses.npz THREADS EPOCHS LR
"""

from __future__ import annotations

import sys
import time

import numpy as np
import torch
from torch import nn

from tilegrad.demo import digits


def build(name: str) -> nn.Module:
    """The networks of ``models`` in PyTorch's words."""
    if name == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))
    convolutions = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10))


def main(name: str, initial: str, output: str, threads: str, epochs: str, lr: str) -> None:
    torch.set_num_threads(int(threads))
    model = build(name)
    with np.load(initial) as file:
        model.load_state_dict({k: torch.from_numpy(file[k]) for k in file.files})
    optimizer = torch.optim.Adam(model.parameters(), lr=float(lr))
    losses, seconds = [], []
    train = digits.load()[0]
    total = int(epochs) * digits.steps_per_epoch(train)
    for i, (x, y) in enumerate(digits.batches(train, int(epochs))):
        optimizer.param_groups[0]["lr"] = digits.learning_rate(float(lr), i / total)
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(torch.from_numpy(x)), torch.from_numpy(y))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - start)
    np.savez(output, losses=np.array(losses), seconds=np.array(seconds))


if __name__ == "__main__":
    main(*sys.argv[1:])
