"""Both benchmarks of the tuner in one: replayed sweeps (``tuner_replay``), then live tuning (``tuner_live``).

    python -m benchmarks.tuner --json [--quick]

The summary holds the keys of both.
"""

from __future__ import annotations

from typing import Any

from benchmarks import tuner_live, tuner_replay
from benchmarks.common import arguments, emit, machine


def main() -> None:
    """Command line."""
    args = arguments(__doc__ or "")
    summary: dict[str, Any] = {}
    for rows in (tuner_replay.run(3 if args.quick else 20), tuner_live.run(15.0 if args.quick else 60.0, args.threads)):
        for row in rows[:-1]:
            emit(row, args.json)
        part = rows[-1]["summary"]
        summary |= part | {"missing": [*summary.get("missing", []), *part["missing"]]}
    emit({"summary": summary | {"machine": machine()}}, args.json)


if __name__ == "__main__":
    main()
