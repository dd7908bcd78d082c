"""The demo: for each network train untuned, tune, train tuned, compare with PyTorch, export, reload without TVM."""

from __future__ import annotations

import importlib.util
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tilegrad._base import settings
from tilegrad._base.errors import TilegradError
from tilegrad.demo import curves, digits

EPOCHS = {"mlp": 40, "cnn": 25}
LEARNING_RATE = 2e-3
MORE_STEPS = 20
WANTED = 0.97


@dataclass(frozen=True)
class Run:
    """One training run: the loss of every step and its seconds."""

    losses: list[float]
    seconds: list[float]

    @property
    def ms(self) -> float:
        """Median milliseconds of a step, the first tenth left out."""
        return 1e3 * statistics.median(self.seconds[len(self.seconds) // 10 :])


def run(output: Path, budget_s: float) -> None:
    """Run everything for both networks, write under ``output``. Raises TilegradError when a promise is not kept."""
    train, test = digits.load()
    say(
        f"{len(train.labels)} training and {len(test.labels)} test images of handwritten digits, {settings.num_threads()} threads"
    )
    log = output / "tuning.jsonl"
    output.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    for name in ("mlp", "cnn"):
        _one(name, train, test, output / name, log, budget_s)
    say(f"\nlibraries, headers and parameters: {output.resolve()}/{{mlp,cnn}}/{{step,infer}}\ntuning log: {log.resolve()}")
    say(f"done in {time.perf_counter() - start:.0f} s")


def say(text: str) -> None:
    """Progress for a person, at once."""
    print(text, flush=True)


def _one(name: str, train: digits.Split, test: digits.Split, folder: Path, log: Path, budget_s: float) -> None:
    import tilegrad as tg
    from tilegrad.tuner.progress import listener

    say(f"\n== {name} ==")
    folder.mkdir(exist_ok=True)
    untuned = _step(name, train, logs=[])
    initial = {k: v.copy() for k, v in untuned.model.state_dict().items()}
    report = tg.tune(untuned, budget_s=budget_s, log=log, progress=listener("table") if sys.stderr.isatty() else None)
    say(replace(report, tasks=tuple(t for t in report.tasks if t.row.trials)).text())
    tuned = _step(name, train, logs=[log])
    runs = _train(name, {"untuned": untuned, "tuned": tuned}, train)
    torch = _torch(name, initial, folder)
    if torch is not None:
        runs["PyTorch"] = torch
    steps = digits.steps_per_epoch(train)
    by_epoch = {k: curves.per_epoch(r.losses, steps) for k, r in runs.items()}
    say("loss by epoch\n  " + "\n  ".join(curves.draw(by_epoch)))
    say(
        "step time: " + ", ".join(f"{k} {r.ms:.3f} ms" for k, r in runs.items()) + ("" if torch else ", PyTorch is not installed")
    )
    (folder / "curves.json").write_text(json.dumps({k: {"losses": r.losses, "step_ms": r.ms} for k, r in runs.items()}))
    _ship(name, tuned, train, test, folder, log)


def _step(name: str, train: digits.Split, logs: Sequence[Path]) -> Any:
    import tilegrad as tg
    from tilegrad.demo import models

    model = models.build(name)
    optimizer = tg.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    example = [train.images[: digits.BATCH], train.labels[: digits.BATCH]]
    return tg.compile_step(model, tg.nn.functional.cross_entropy, optimizer, example, logs=logs)


def _train(name: str, steps: Mapping[str, Any], train: digits.Split) -> dict[str, Run]:
    """Train with each, epoch by epoch in turns, so that what disturbs the machine meets all alike."""
    runs = {who: Run([], []) for who in steps}
    length = digits.steps_per_epoch(train)
    batches = list(digits.batches(train, EPOCHS[name]))
    for first in range(0, len(batches), length):
        for who, step in steps.items():
            for i, (x, y) in enumerate(batches[first : first + length], first):
                step.optimizer.lr = digits.learning_rate(LEARNING_RATE, i / len(batches))
                start = time.perf_counter()
                runs[who].losses.append(float(step(x, y)))
                runs[who].seconds.append(time.perf_counter() - start)
    return runs


def _torch(name: str, initial: dict[str, np.ndarray], folder: Path) -> Run | None:
    """The same training in PyTorch, in a process of its own; None where PyTorch is not installed."""
    if importlib.util.find_spec("torch") is None:
        return None
    np.savez(folder / "initial.npz", **initial)  # type: ignore[arg-type]
    files = [str(folder / "initial.npz"), str(folder / "torch.npz")]
    numbers = [str(settings.num_threads()), str(EPOCHS[name]), str(LEARNING_RATE)]
    subprocess.run([sys.executable, "-m", "tilegrad.demo.torch_step", name, *files, *numbers], check=True)
    with np.load(folder / "torch.npz") as file:
        return Run(file["losses"].tolist(), file["seconds"].tolist())


def _ship(name: str, step: Any, train: digits.Split, test: digits.Split, folder: Path, log: Path) -> None:
    """Export step and inference, then do the same things here and in a fresh process without TVM."""
    import tilegrad as tg

    infer = tg.compile(step.model.eval(), [test.images], logs=[log])
    before = infer(test.images)
    accuracy = float((before.argmax(1) == test.labels).mean())
    say(f"test accuracy {accuracy:.2%}")
    step.optimizer.lr = LEARNING_RATE / 10
    step.export(folder / "step")
    infer.export(folder / "infer")
    subprocess.run([sys.executable, "-m", "tilegrad.demo.reload", str(folder), str(MORE_STEPS)], check=True)
    losses = np.array([float(step(x, y)) for x, y in digits.some_batches(train, MORE_STEPS)])
    with np.load(folder / "reloaded.npz") as file:
        same = {
            k: np.array_equal(file[k], v) for k, v in {"before": before, "losses": losses, "after": infer(test.images)}.items()
        }
    if not all(same.values()):
        other = " and ".join(k for k, v in same.items() if not v)
        raise TilegradError(f"demo, {name} reloaded without TVM", f"other values {other}", "the same bits")
    say(f"reloaded without TVM: predictions, losses of {MORE_STEPS} more steps and predictions after them are the same bits")
    if accuracy < WANTED:
        raise TilegradError(f"demo, {name}", f"test accuracy {accuracy:.2%}", f"at least {WANTED:.0%}")
