"""The real search strategy against recorded sweeps: how many trials it needs, over many seeds, without measuring anything.

Sweeps are made by ``python -m benchmarks.sweeps``. Beside the strategy: random order, and the analytic model's order alone.
``trials_p`` is the number of trials until the best of the sweep is reached to within p percent of its speed.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks import sweeps
from tilegrad.tuner import model as cost_model
from tilegrad.tuner.model import CostModel
from tilegrad.tuner.session import BATCH
from tilegrad.tuner.strategy import Search
from tilegrad.tuner.task import Space, Task
from tilegrad.tuning_logs import Record

ENOUGH = 160
"""Trials after which a replay stops."""


class Recorded:
    """A sweep as a template: its configs are the space; estimates, features and default are the real template's."""

    def __init__(self, task: Task, costs: Mapping[str, float]) -> None:
        self.task = task
        self.costs = dict(costs)
        self.space = Space(task)
        self.space.configs = [c for c, k in zip(self.space.configs, self.space.keys, strict=True) if k in self.costs]
        self.space.keys = [k for k in self.space.keys if k in self.costs]
        self.space.index = {k: i for i, k in enumerate(self.space.keys)}
        default = Space(task)
        self.has_default = default.keys[default.default] in self.costs
        self.space.default = self.space.index.get(default.keys[default.default], 0)

    @property
    def best(self) -> float:
        """Seconds of the fastest config."""
        return min(self.costs.values())

    @property
    def default_s(self) -> float:
        """Seconds of the default."""
        return self.costs[self.space.keys[self.space.default]]


def replay(recorded: Recorded, seed: int, model: bool = True) -> list[float]:
    """Seconds of the configs in the order in which the strategy asks for them."""
    module = cost_model.xgboost() if model else None
    search = Search(recorded.space, seed=seed, model=CostModel(module, seed) if module else None)
    order: list[float] = []
    while len(order) < min(ENOUGH, len(recorded.space)):
        batch = search.propose(BATCH)
        if not batch:
            break
        for i in batch:
            cost = recorded.costs[recorded.space.keys[i]]
            search.observe(i, Record("", {}, {}, recorded.space.configs[i], "ok", (cost,) * 3))
            order.append(cost)
    return order


def trials_to(order: list[float], best: float, percent: float) -> int:
    """Number of trials until ``percent`` of the best speed is reached; twice the length where it is not."""
    for n, cost in enumerate(order, 1):
        if best / cost >= percent / 100:
            return n
    return 2 * len(order)


def shuffled(recorded: Recorded, seed: int) -> list[float]:
    """Random order, the default first."""
    costs = list(recorded.costs.values())
    np.random.default_rng(seed).shuffle(costs)
    return [recorded.default_s, *costs]


def analytic(recorded: Recorded) -> list[float]:
    """By the analytic estimate alone."""
    order = np.argsort(recorded.space.estimates, kind="stable")
    return [recorded.costs[recorded.space.keys[i]] for i in order]


def row_of(name: str, seeds: int) -> dict[str, Any]:
    """All figures of one workload."""
    r = Recorded(sweeps.task_of(name), sweeps.costs(name))
    runs = [replay(r, seed) for seed in range(seeds)]
    random = [shuffled(r, seed) for seed in range(seeds)]
    ordered = analytic(r)

    def median(orders: list[list[float]], percent: float) -> float:
        return statistics.median(trials_to(o, r.best, percent) for o in orders)

    outside = sweeps.costs(name, "outside").values()
    row: dict[str, Any] = {"workload": name, "configs": len(r.space), "default_fraction": round(r.best / r.default_s, 4)}
    for p in (95, 99):
        row[f"trials_{p}"] = median(runs, p)
        row[f"random_{p}"] = median(random, p)
        row[f"analytic_{p}"] = trials_to(ordered, r.best, p)
    row["worst_seed_vs_default"] = round(min(r.default_s / min(run[:48]) for run in runs), 4)
    row["outside"], row["outside_vs_best"] = len(outside), round(r.best / min(outside), 4) if outside else None
    return row


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="3 seeds instead of 20")
    args = parser.parse_args()
    for row in run(3 if args.quick else 20):
        print(json.dumps(row) if args.json else "  ".join(f"{k} {v}" for k, v in row.items()), flush=True)


def run(seeds: int) -> list[dict[str, Any]]:
    """Rows of every recorded workload and the summary."""
    names = [n for n in sweeps.WORKLOADS if sweeps.recorded(n)]
    rows = [row_of(n, seeds) for n in names]
    return [*rows, {"summary": summary(rows, seeds)}]


def summary(rows: list[dict[str, Any]], seeds: int) -> dict[str, Any]:
    """The figures that the project states goals for."""
    missing = [n for n in sweeps.WORKLOADS if n not in {r["workload"] for r in rows}]
    if not rows:
        return {"workloads": 0, "missing": missing}
    return {
        "workloads": len(rows),
        "seeds": seeds,
        "median_trials_95": statistics.median(r["trials_95"] for r in rows),
        "median_trials_99": statistics.median(r["trials_99"] for r in rows),
        "median_random_99": statistics.median(r["random_99"] for r in rows),
        "median_analytic_99": statistics.median(r["analytic_99"] for r in rows),
        "default_fraction": round(math.exp(statistics.fmean(math.log(r["default_fraction"]) for r in rows)), 4),
        "worst_seed_vs_default": min(r["worst_seed_vs_default"] for r in rows),
        "xgb_beats_analytic": sum(r["trials_99"] < r["analytic_99"] for r in rows),
        "outside_vs_best": max((r["outside_vs_best"] for r in rows if r["outside_vs_best"]), default=None),
        "missing": missing,
    }


if __name__ == "__main__":
    main()
