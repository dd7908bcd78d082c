"""What the templates of products share: their module ``model`` answers for the space, its default and their cost."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilegrad._base.target import Target
from tilegrad._base.tvm import tirx
from tilegrad.schedules.contraction import define
from tilegrad.schedules.template import Config, Workload


class ModelledTemplate:
    """See schedules.template.Template."""

    model: Any

    def space(self, workload: Workload, target: Target) -> list[Config]:
        """All legal configs."""
        return list(self.model.space(workload, target))

    def default(self, workload: Workload, target: Target) -> Config:
        """The analytic choice."""
        return dict(self.model.default(workload, target))

    def estimate(self, workload: Workload, config: Config, target: Target) -> float:
        """Seconds that the analytic model expects."""
        return float(self.model.estimate(workload, config, target))

    def features(self, workload: Workload, config: Config, target: Target) -> np.ndarray:
        """The cost model's input."""
        return np.asarray(self.model.features(workload, config, target))

    def define(self, workload: Workload) -> tirx.PrimFunc:
        """An unscheduled kernel with this workload."""
        return define.define(workload)
