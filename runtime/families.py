"""Families: entries that are one function of several batch sizes, called by the family's name and the batch.

Row ``i`` of a batched port belongs to element ``i`` of the batch; the other ports are the same for every size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilegrad._base.errors import ShapeError, UsageError


@dataclass(frozen=True)
class Family:
    """entries: batch size -> the entry that takes it.

    any_batch: an entry takes every batch from 1 to its size, and the smallest that does is called; otherwise each takes its size.
    """

    entries: Mapping[int, str]
    any_batch: bool = False
    batched: tuple[bool, ...] = ()
    """For every port of a built library, in the entries' order."""

    @property
    def sizes(self) -> list[int]:
        """Largest first."""
        return sorted(self.entries, reverse=True)

    def check(self, name: str, batch: int) -> None:
        """Raises ShapeError that lists the batches there are."""
        if not (1 <= batch <= self.sizes[0] if self.any_batch else batch in self.entries):
            raise ShapeError(f"entry '{name}'", f"a batch of {batch}", self.text())

    def text(self) -> str:
        """Which batches it takes, for a person."""
        if self.any_batch:
            return f"1 to {self.sizes[0]}"
        return " or ".join(", ".join(map(str, sorted(self.entries))).rsplit(", ", 1))


def described(families: Mapping[str, Family], entries: Mapping[str, Any]) -> dict[str, Any]:
    """The families as the manifest has them. Raises UsageError when a family's entries differ in more than the batch."""
    found = {}
    for name, family in families.items():
        where = f"family '{name}'"
        if name in entries:
            raise UsageError(where, "the name of an entry", "another name")
        forms = [entries[family.entries[size]]["ports"] for size in family.sizes]
        rows = _batched(family.sizes, forms)
        plain = [[{**p, "shape": p["shape"][r:]} for p, r in zip(f, rows, strict=False)] for f in forms]
        if any(f != plain[0] for f in plain) or not any(rows):
            raise UsageError(where, f"ports that differ for batches {family.text()}", "the first axis, and it alone, to differ")
        if family.any_batch and (
            fixed := [p["name"] for p, r in zip(forms[0], rows, strict=True) if p["role"] == "output" and not r]
        ):
            raise UsageError(where, f"output '{fixed[0]}' without a row for each element of the batch", "outputs that have one")
        sizes = {str(s): family.entries[s] for s in family.sizes}
        found[name] = {"any_batch": family.any_batch, "entries": sizes, "batched": [bool(r) for r in rows]}
    return found


def _batched(sizes: Sequence[int], forms: Sequence[Any]) -> list[int]:
    """1 for every port whose first axis is the batch in each form, otherwise 0."""
    return [
        int(all(p["role"] in ("input", "output") and p["shape"][:1] == [s] for s, p in zip(sizes, column, strict=True)))
        for column in zip(*forms, strict=False)
    ]


def read(manifest: Mapping[str, Any]) -> dict[str, Family]:
    """A manifest's families."""
    return {
        name: Family({int(s): e for s, e in f["entries"].items()}, bool(f["any_batch"]), tuple(f["batched"]))
        for name, f in manifest["families"].items()
    }
