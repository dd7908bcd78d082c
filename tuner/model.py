"""CostModel: learns how much the analytic estimate errs, from measured trials of this and of related workloads.

The target is log(cost / default's cost) minus the same of the estimates: 0 for every workload's default, so
that shapes and machines mix, and no data at all means the analytic order.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

import numpy as np

log = logging.getLogger(__name__)

ROUNDS = 60
PARAMETERS = {
    "objective": "reg:squarederror",
    "max_depth": 4,
    "eta": 0.15,
    "lambda": 1.0,
    "min_child_weight": 1.0,
    "subsample": 0.8,
    "colsample_bytree": 0.8,
    "base_score": 0.0,
    "nthread": 1,
    "verbosity": 0,
}


@dataclass
class Rows:
    """Training data: ``x`` features, ``y`` log residuals, ``w`` how much each row counts."""

    x: list[np.ndarray] = field(default_factory=list)
    y: list[float] = field(default_factory=list)
    w: list[float] = field(default_factory=list)

    def add(self, x: np.ndarray, y: float, w: float = 1.0) -> None:
        """One trial."""
        self.x.append(x)
        self.y.append(y)
        self.w.append(w)

    def __len__(self) -> int:
        return len(self.y)


def xgboost() -> Any | None:
    """The xgboost module, or None when it is not installed or does not load."""
    try:
        import xgboost as module
    except Exception as e:  # a broken shared library raises its own kinds
        log.info("xgboost is not usable (%s); searching by coordinate descent", e)
        return None
    return module


class CostModel:
    """Gradient-boosted trees through the plainest, oldest part of xgboost's interface (DMatrix, train, predict)."""

    def __init__(self, module: Any, seed: int = 0) -> None:
        self._xgb = module
        self._parameters = PARAMETERS | {"seed": seed}
        self._booster: Any = None

    def fit(self, rows: Rows) -> None:
        """Learn from scratch; takes milliseconds for some hundred rows."""
        data = self._xgb.DMatrix(np.stack(rows.x), label=np.array(rows.y), weight=np.array(rows.w))
        self._booster = self._xgb.train(self._parameters, data, num_boost_round=ROUNDS)

    def predict(self, x: np.ndarray) -> np.ndarray:
        """float64[n]: expected log residuals; zeros before the first fit."""
        if self._booster is None:
            return np.zeros(len(x))
        return np.asarray(self._booster.predict(self._xgb.DMatrix(x)), dtype=np.float64)
