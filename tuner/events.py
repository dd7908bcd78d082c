"""What a session tells the outside while it runs: one row per task, sent after each change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Row:
    """State of one task. Seconds are None before anything was measured; ``done`` says why it is finished."""

    index: int
    name: str
    weight: int
    trials: int = 0
    errors: int = 0
    last_s: float | None = None
    default_s: float | None = None
    best_s: float | None = None
    gflops: float = 0.0
    last_gflops: float = 0.0
    roofline: float | None = None
    done: str | None = None

    @property
    def of_default(self) -> float | None:
        """The best config's speed over the default's; 1 and more."""
        return self.default_s / self.best_s if self.default_s and self.best_s else None

    @property
    def saved_ms(self) -> float:
        """Milliseconds saved per run of the whole model."""
        return 1e3 * self.weight * (self.default_s - self.best_s) if self.default_s and self.best_s else 0.0


@dataclass(frozen=True)
class Event:
    """``kind`` start (rows of all tasks), trial, task (verdict), notice (text), end. ``row`` is the task that changed."""

    kind: Literal["start", "trial", "task", "notice", "end"]
    row: Row | None = None
    rows: tuple[Row, ...] = ()
    status: str = ""
    text: str = ""
    elapsed_s: float = 0.0
    eta_s: float | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    def json(self) -> dict[str, Any]:
        """Flat JSON object, empty fields left out."""
        out: dict[str, Any] = {"event": self.kind, "elapsed_s": round(self.elapsed_s, 3)}
        if self.eta_s is not None:
            out["eta_s"] = round(self.eta_s, 1)
        out |= {k: v for k, v in (("status", self.status), ("text", self.text)) if v}
        if self.row is not None:
            out["task"] = _row_json(self.row)
        if self.rows:
            out["tasks"] = [_row_json(r) for r in self.rows]
        return out | self.extra


def _row_json(row: Row) -> dict[str, Any]:
    return asdict(row) | {"of_default": row.of_default, "saved_ms": row.saved_ms}


Listener = Callable[[Event], None]
