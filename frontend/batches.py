"""The batch sizes that one compiled object is made for: which types its inputs have, what its entries are called."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilegrad._base.errors import UsageError
from tilegrad.frontend.recording import Type
from tilegrad.frontend.tracing import Signature
from tilegrad.runtime.families import Family


@dataclass(frozen=True)
class Batches:
    """sizes: largest first. any_batch: every batch up to the largest, by the entry for the smallest size that holds it; otherwise
    these only.

    The batch is the first axis of the first input, and of every other input whose first axis is as long in the example.
    """

    sizes: tuple[int, ...]
    any_batch: bool = False

    @staticmethod
    def of(
        batch_sizes: Iterable[int] | None, max_batch: int | Iterable[int] | None, example: Sequence[np.ndarray], what: str
    ) -> Batches | None:
        """From the arguments of ``compile``; None when neither is given. Raises UsageError for what cannot be."""
        if batch_sizes is None and max_batch is None:
            return None
        if batch_sizes is not None and max_batch is not None:
            raise UsageError(f"{what}, arguments 'batch_sizes' and 'max_batch'", "both", "one of them")
        if not example or not example[0].shape or not example[0].shape[0]:
            first = "no inputs" if not example else f"a first input of shape {example[0].shape}"
            raise UsageError(f"{what}, argument 'example_inputs'", first, "a first input whose first axis is the batch")
        name = "max_batch" if batch_sizes is None else "batch_sizes"
        got: Any = max_batch if batch_sizes is None else batch_sizes
        given: list[Any] = list(got) if isinstance(got, Iterable) else [got] if batch_sizes is None else []
        if (
            not given
            or any(isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 1 for n in given)
            or len(set(given)) < len(given)
        ):
            one = "a whole number or several " if batch_sizes is None else ""
            raise UsageError(f"{what}, argument '{name}'", repr(got), f"{one}distinct whole numbers of at least 1")
        sizes = tuple(sorted(map(int, given), reverse=True))
        if max_batch is None:
            return Batches(sizes)
        batch = example[0].shape[0]
        for n, a in enumerate(example):
            if a.shape and a.shape[0] != batch and a.shape[0] in sizes:
                got = f"input {n} of shape {a.shape}, which has no row for each of the {batch} elements of the example's batch"
                raise UsageError(f"{what}, argument 'example_inputs'", got, f"no such input as long as max_batch, {max_batch}")
        return Batches(sizes, True)

    def types(self, example: Signature, size: int) -> Signature:
        """The inputs' types for a batch of ``size``."""
        batch = example[0].shape[0]
        return tuple(Type.of((size, *t.shape[1:]), t.dtype) if t.shape[:1] == (batch,) else t for t in example)

    def form(self, example: Signature, given: Signature) -> int | None:
        """The batch of ``given`` (for the first of the inputs); None when it is not among them or other axes differ."""
        size = given[0].shape[0] if given[0].shape else 0
        return size if self.takes(size) and self.types(example, size)[: len(given)] == given else None

    def takes(self, size: int) -> bool:
        """Whether a batch of ``size`` is among them."""
        return 1 <= size <= self.sizes[0] if self.any_batch else size in self.sizes

    def families(self, names: Iterable[str]) -> dict[str, Family]:
        """For every function its entries: ``name_8`` for a batch of 8."""
        return {name: Family({n: f"{name}_{n}" for n in self.sizes}, self.any_batch) for name in names}


def forms(batches: Batches | None, example: Signature) -> list[tuple[str, Signature]]:
    """(what entries' names end with, the inputs' types) of every form to compile."""
    if batches is None:
        return [("", example)]
    return [(f"_{n}", batches.types(example, n)) for n in batches.sizes]
