"""A whole training step (forward, backward, SGD update) against PyTorch and JAX.

    python -m benchmarks.train_step --model mlp --json [--quick] [--log my.jsonl]

mlp is 784-512-512-10 at batch 128, cnn two 3 x 3 convolutions and a linear layer on 28 x 28 images at batch 64; float32,
cross-entropy, plain SGD. ``ours`` uses ``--log`` (default: your log, then the shipped ones), ``untuned`` no log. Both are
compiled and exported first, in a process of their own, and then run as they would be deployed: loaded without TVM.
``peak_mb`` is the peak resident memory of the process that trains, ``compile_peak_mb`` of the one that compiled.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import ROOT, Arena, Contestant, Missing, arguments, emit, machine, peak_mb

LEARNING_RATE = 0.01
MODELS: dict[str, tuple[tuple[int, ...], int]] = {"mlp": ((784,), 128), "cnn": ((1, 28, 28), 64)}
"""Shape of one example, batch size."""


def data(model: str) -> tuple[np.ndarray, np.ndarray]:
    """One batch: x float32, labels int64 below 10."""
    shape, batch = MODELS[model]
    rng = np.random.default_rng(0)
    return rng.standard_normal((batch, *shape), dtype=np.float32), rng.integers(0, 10, batch)


def prepare(model: str, folder: str, threads: int, logs: list[str] | None) -> float:
    """Compile and export our step to ``folder``; peak memory in MiB. Runs in its own process."""
    import tilegrad as tg
    from tilegrad import nn

    tg.manual_seed(0)
    if model == "mlp":
        net = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    else:
        first = [nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        second = [nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        net = nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(64 * 7 * 7, 10))
    optimizer = tg.optim.SGD(net.parameters(), lr=LEARNING_RATE)
    step = tg.compile_step(net, tg.nn.functional.cross_entropy, optimizer, data(model), logs=logs, num_threads=threads)
    step.export(folder)
    return peak_mb()


def ours(model: str, folder: str) -> Callable[[], Any]:
    """The exported step, loaded."""
    import tilegrad as tg

    step = tg.load(folder)
    x, y = data(model)
    return lambda: float(step(x, y))


def pytorch(model: str, threads: int, compiled: bool) -> Callable[[], Any]:
    """PyTorch, eager or through torch.compile."""
    import torch
    from torch import nn

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    if model == "mlp":
        net = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    else:
        first = [nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        second = [nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        net = nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(64 * 7 * 7, 10))
    optimizer = torch.optim.SGD(net.parameters(), lr=LEARNING_RATE)
    x, y = map(torch.from_numpy, data(model))

    def loss_of(x: Any, y: Any) -> Any:
        return nn.functional.cross_entropy(net(x), y)

    loss_of = torch.compile(loss_of) if compiled else loss_of

    def step() -> float:
        optimizer.zero_grad()
        loss = loss_of(x, y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def jitted_jax(model: str) -> Callable[[], Any]:
    """JAX, one jitted step with donated parameters."""
    if model != "mlp":
        raise Missing("this benchmark has the mlp alone for JAX")
    import jax
    import jax.numpy as jnp

    rng = np.random.default_rng(0)
    sizes = (784, 512, 512, 10)
    pairs = zip(sizes, sizes[1:], strict=False)
    params = [(jnp.asarray(rng.uniform(-1, 1, (m, n)).astype(np.float32) / m**0.5), jnp.zeros(n)) for m, n in pairs]
    x, y = map(jnp.asarray, data(model))

    def loss_of(params: Any, x: Any, y: Any) -> Any:
        for i, (w, b) in enumerate(params):
            x = x @ w + b
            x = jnp.maximum(x, 0) if i < len(params) - 1 else x
        return -jnp.mean(jax.nn.log_softmax(x)[jnp.arange(len(y)), y])

    def update(params: Any, x: Any, y: Any) -> Any:
        loss, grads = jax.value_and_grad(loss_of)(params, x, y)
        return jax.tree.map(lambda p, g: p - LEARNING_RATE * g, params, grads), loss

    jitted = jax.jit(update, donate_argnums=0)
    state = [params]

    def step() -> float:
        state[0], loss = jitted(state[0], x, y)
        return float(loss)

    return step


def _prepare_apart(model: str, folder: Path, threads: int, logs: list[str] | None) -> float:
    code = "import sys, json; from benchmarks.train_step import prepare; print(prepare(*json.loads(sys.argv[1])))"
    command = [sys.executable, "-c", code, json.dumps([model, str(folder), threads, logs])]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=env, check=True, stdout=subprocess.PIPE, text=True)
    return float(done.stdout.splitlines()[-1])


def main() -> None:
    """Print one row and the summary."""
    options: dict[str, dict[str, Any]] = {
        "model": {"choices": sorted(MODELS), "default": "mlp", "help": "which network"},
        "log": {"action": "append", "help": "tuning log for `ours`; may repeat"},
    }
    args = arguments(str(__doc__), **options)
    n, model = args.threads, args.model
    peers = ["torch", "torch.compile", "jax"][: 1 if args.quick else 3]
    with tempfile.TemporaryDirectory() as tmp:
        compile_mb = _prepare_apart(model, Path(tmp) / "ours", n, args.log)
        _prepare_apart(model, Path(tmp) / "untuned", n, [])
        own = [Contestant(k, "benchmarks.train_step:ours", {"model": model, "folder": f"{tmp}/{k}"}) for k in ("ours", "untuned")]
        theirs = [
            Contestant("torch", "benchmarks.train_step:pytorch", {"model": model, "threads": n, "compiled": False}),
            Contestant("torch.compile", "benchmarks.train_step:pytorch", {"model": model, "threads": n, "compiled": True}),
            Contestant("jax", "benchmarks.train_step:jitted_jax", {"model": model}),
        ][: len(peers)]
        with Arena([*own, *theirs], n) as arena:
            result = arena.race(rounds=5, turn_s=0.1 if args.quick else 0.5)
            missing = arena.missing
    best = result.best(peers)
    row = {
        "model": model,
        "batch": MODELS[model][1],
        "threads": n,
        "ours_ms": result.ms["ours"],
        "untuned_ms": result.ms["untuned"],
        "peers_ms": {k: v for k, v in result.ms.items() if k in peers},
        "ratio_vs_best": result.ratio("ours", best) if best else None,
        "untuned_ratio_vs_best": result.ratio("untuned", best) if best else None,
        "spread": {k: result.spread(k) for k in result.ms},
        "peak_mb": result.peak_mb["ours"],
        "compile_peak_mb": compile_mb,
        "peers_peak_mb": {k: v for k, v in result.peak_mb.items() if k in peers},
        "missing": missing,
    }
    emit(row, args.json)
    keys = ("model", "ours_ms", "untuned_ms", "ratio_vs_best", "untuned_ratio_vs_best")
    emit({"summary": {**{k: row[k] for k in keys}, "best_peer": best, "machine": machine()}}, args.json)


if __name__ == "__main__":
    main()
