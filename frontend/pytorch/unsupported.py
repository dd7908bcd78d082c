"""One error for everything a model needs that has no rule: operator, count, places, what to do."""

from __future__ import annotations

import re
from typing import Any

import torch

from tilegrad._base.errors import UnsupportedOperatorError
from tilegrad.frontend.pytorch.table import REFUSED

_PLACES_SHOWN = 3
_INSIDE_TORCH = re.compile(r"[\\/]torch[\\/]")


class Unsupported:
    """Collects nodes, then raises once."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], list[str]] = {}

    def add(self, name: str, node: torch.fx.Node, reason: str = "") -> None:
        """Note one node; ``reason`` when it is the arguments that are refused."""
        reason = reason or REFUSED.get(name, "")
        self._found.setdefault((name, reason), []).append(user_line(node) or f"node '{node.name}'")

    def raise_if_any(self) -> None:
        """Raise UnsupportedOperatorError when something was noted."""
        if not self._found:
            return
        lines = [_line(name, reason, places) for (name, reason), places in sorted(self._found.items())]
        raise UnsupportedOperatorError(
            "from_torch",
            f"{len(lines)} unsupported operator(s):\n" + "\n".join(lines) + "\n",
            "the operators of docs/pytorch.md",
            "Rewrite those lines, or add a rule: @aten('<operator>') from tilegrad.frontend.pytorch.table",
        )


def _line(name: str, reason: str, places: list[str]) -> str:
    seen = list(dict.fromkeys(places))
    more = f" and {len(seen) - _PLACES_SHOWN} more" if len(seen) > _PLACES_SHOWN else ""
    return f"  {name}: {len(places)} use(s), at {', '.join(seen[:_PLACES_SHOWN])}{more}" + (f": {reason}" if reason else "")


def user_line(node: torch.fx.Node) -> str | None:
    """``file.py:12 (module path)`` of the user's code that a node comes from; PyTorch's own files are skipped."""
    place = _frame(node.meta.get("stack_trace"))
    modules: dict[str, Any] = node.meta.get("nn_module_stack") or {}
    path = next((str(entry[0]) for entry in reversed(list(modules.values())) if entry and entry[0]), "")
    path = re.sub(r"^L\['self'\]\.?", "", path)
    if place and path:
        return f"{place} (module {path})"
    return place or (f"module {path}" if path else None)


def _frame(trace: str | None) -> str | None:
    found = re.findall(r'File "([^"]+)", line (\d+)', trace or "")
    own = [f for f in found if not _INSIDE_TORCH.search(f[0])] or found
    return f"{own[-1][0]}:{own[-1][1]}" if own else None
