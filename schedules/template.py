"""The contract between a kernel family's template and the rest: match, space, default, apply."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from tilegrad._base.target import Target
from tilegrad._base.tvm import tirx

Config = dict[str, Any]
"""Knob values: JSON scalars or short lists of them. Readable in a log."""


@dataclass(frozen=True)
class Workload:
    """What a kernel computes, as a readable key: ``op`` and JSON fields (dims, layout, dtypes, epilogue).

    ``flops`` counts multiply and add as two; ``bytes`` is the compulsory traffic (inputs + outputs).
    """

    op: str
    fields: Mapping[str, Any]
    flops: int = field(default=0, compare=False)
    bytes: int = field(default=0, compare=False)

    def json(self) -> dict[str, Any]:
        """The ``workload`` object of a tuning record."""
        return {"op": self.op, **self.fields}

    @property
    def key(self) -> str:
        """Canonical text; equal workloads have equal keys."""
        return json.dumps(self.json(), sort_keys=True, separators=(",", ":"))

    @classmethod
    def parse(cls, key: str) -> Workload:
        """The workload that a key stands for; ``flops`` and ``bytes`` are not in it."""
        fields = json.loads(key)
        return cls(fields.pop("op"), fields)


@dataclass(frozen=True)
class Scheduled:
    """A kernel whose loops are arranged.

    ``func`` has the parameters of the unscheduled kernel, in order, and, where ``scratch_bytes`` is not
    zero, one more: a 1-D uint8 buffer of that size, 64-byte aligned, that holds packed panels and partial sums.
    """

    func: tirx.PrimFunc
    scratch_bytes: int = 0


class Template(Protocol):
    """One kernel family. ``name`` carries the version that records are matched on, e.g. ``contraction/1``."""

    name: str

    def match(self, func: tirx.PrimFunc) -> Workload | None:
        """The workload of an unscheduled (fused) kernel, or None when it is not of this family."""

    def space(self, workload: Workload, target: Target) -> list[Config]:
        """All legal configs, enumerable (up to about two thousand), in a stable order."""

    def default(self, workload: Workload, target: Target) -> Config:
        """The analytic choice; always a member of ``space``."""

    def apply(self, func: tirx.PrimFunc, config: Config, target: Target) -> Scheduled:
        """Arrange the kernel. Raises ScheduleError when the config is illegal for it.

        In-place updates: an output parameter may be bound to the same memory as an input that the epilogue reads at
        the index it writes (the kernel then has ``tirx.noalias`` False: keep the attribute). So, for each element or
        vector, every output's value is computed before any output is stored.
        """

    def estimate(self, workload: Workload, config: Config, target: Target) -> float:
        """Seconds that the analytic model expects."""

    def features(self, workload: Workload, config: Config, target: Target) -> np.ndarray:
        """float32 vector of fixed width for this family, independent of the loop count."""

    def define(self, workload: Workload) -> tirx.PrimFunc:
        """An unscheduled kernel with this workload (for shipped logs and stand-alone tuning)."""
