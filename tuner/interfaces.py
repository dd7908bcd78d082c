"""The four roles of a tuning session. Each is injected, so that tests can play it with scripted answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tilegrad.tuner.task import Task
from tilegrad.tuning_logs import Line, Record, Status, Verdict


@dataclass(frozen=True)
class Built:
    """What became of one config at the builder: a library at ``path``, or why there is none."""

    path: str | None
    status: Status = "ok"
    error: str = ""


@dataclass(frozen=True)
class Outcome:
    """What became of one candidate at the runner. ``costs_s``: seconds per run, several, None unless ok.

    ``reference_s``: seconds of the reference kernel measured just before; None where it was not.
    """

    status: Status
    costs_s: tuple[float, ...] | None = None
    error: str = ""
    reference_s: float | None = None


class Builder(Protocol):
    """Compiles configs. A failure is an answer, never an exception."""

    def build(self, task: Task, configs: Sequence[Mapping[str, Any]]) -> list[Built]:
        """One answer per config, in order."""

    def close(self) -> None:
        """Stop every worker at once."""


class Runner(Protocol):
    """Measures libraries, one at a time, on a machine that does nothing else. A failure is an answer."""

    def measure(self, task: Task, paths: Sequence[str], reference: str | None, best_s: float | None) -> Iterator[Outcome]:
        """Check and time each library, yielding each outcome when it is known.

        ``reference`` is timed every few candidates, to detect drift. ``best_s`` is the fastest so far: what is
        clearly slower needs no long measurement.
        """

    def compare(self, task: Task, paths: Sequence[str], seconds: float | None = None) -> list[Outcome]:
        """Time libraries in interleaved rounds, so that drift meets all of them alike; in about ``seconds`` where given."""

    def close(self) -> None:
        """Stop the measuring process at once."""


class Strategy(Protocol):
    """Decides what to try next. Deterministic for a seed and a history of results."""

    def propose(self, count: int) -> list[int]:
        """Up to ``count`` indices of configs not proposed before; empty when the space is exhausted."""

    def observe(self, index: int, record: Record) -> None:
        """Take in the result of a proposal."""

    def gain(self) -> float:
        """Share of the best time (0 to 1) that more trials may still be expected to save."""


class Database(Protocol):
    """What is known from earlier and is to be kept."""

    def recall(self, task: Task) -> dict[str, Record]:
        """Trials of this very task on this kind of machine, by canonical config; failed ones included."""

    def recorded(self, task: Task) -> list[dict[str, Any]]:
        """Configs that worked for this task's workload, on any machine whose code runs here."""

    def hints(self, task: Task) -> list[dict[str, Any]]:
        """Configs worth trying first: best of other runs and of near shapes."""

    def related(self, task: Task) -> list[Record]:
        """Successful trials of the same template for other workloads."""

    def verdict(self, task: Task) -> Verdict | None:
        """The last verdict on this task."""

    def append(self, line: Line) -> None:
        """Keep one line, on disk before returning."""
