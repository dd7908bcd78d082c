"""A parameter group of an optimizer: PyTorch's dict, whose hyperparameters are checked whenever they are set."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from tilegrad._base.errors import UsageError

_SWITCHES = ("weight_decay", "momentum", "dampening")
"""Hyperparameters whose terms are left out of an update when they are zero."""


class Group(dict[str, Any]):
    """``params``, hyperparameters (finite numbers of 0 or more, betas below 1), the optimizer's flags, and perhaps a ``name``.

    Where the optimizer has beta1 and beta2, ``group["betas"]`` reads and sets both. Raises UsageError for other keys and values.
    """

    def __init__(self, optimizer: str, hypers: Iterable[str], known: Iterable[str], values: Mapping[str, Any]) -> None:
        super().__init__()
        self._optimizer, self._hypers = optimizer, frozenset(hypers)
        self._known = {*self._hypers, *known, "params", "name"} | ({"betas"} if "beta1" in self._hypers else set())
        self.update(values)

    def __setitem__(self, key: str, value: Any) -> None:
        if key not in self._known:
            raise UsageError(
                f"{self._optimizer}, parameter group", f"the key '{key}'", f"one of {', '.join(sorted(self._known))}"
            )
        if key == "betas":
            if isinstance(value, str) or not hasattr(value, "__len__") or len(value) != 2:
                raise UsageError(f"{self._optimizer}, 'betas'", repr(value), "a pair: two numbers")
            self["beta1"], self["beta2"] = value
        else:
            super().__setitem__(key, self._checked(key, value) if key in self._hypers else value)

    def _checked(self, key: str, value: Any) -> Any:
        try:
            number = math.nan if isinstance(value, (str, bytes)) else float(value)
        except (TypeError, ValueError):
            number = math.nan
        limit = 1.0 if key.startswith("beta") else math.inf
        if not 0 <= number < limit:
            expected = "a number from 0 to below 1" if limit == 1 else "a finite number of 0 or more"
            raise UsageError(f"{self._optimizer}, '{key}'", repr(value), expected)
        return value

    def __missing__(self, key: str) -> Any:
        if key == "betas" and key in self._known:
            return self["beta1"], self["beta2"]
        raise KeyError(key)

    def update(self, *others: Any, **values: Any) -> None:
        """Set several."""
        for key, value in dict(*others, **values).items():
            self[key] = value

    def shape(self) -> tuple[Any, ...]:
        """What decides which operations an update consists of: flags, and whether these hyperparameters are zero."""
        return tuple(
            bool(v) if k in _SWITCHES else v
            for k, v in self.items()
            if k not in ("params", "name") and (k not in self._hypers or k in _SWITCHES)
        )
