"""The one table of ATen operators: overload -> function that writes it in Relax.

A rule is ``rule(k, *args, **kwargs)`` with the arguments of the ATen schema: tensors as ``Value``, the rest as
plain Python. ``k`` is the ``Lowering`` of the node. It returns a Value, or a list of them (None for a result
that nobody can read) where the operator has several results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Rule = Callable[..., Any]

RULES: dict[str, Rule] = {}
"""``add.Tensor`` -> rule."""

REFUSED: dict[str, str] = {}
"""Operators that have no rule on purpose, with what the user can do."""


def aten(*overloads: str) -> Callable[[Rule], Rule]:
    """Register a rule for ATen overloads such as ``add.Tensor`` (``.default`` may be left out)."""

    def decorate(rule: Rule) -> Rule:
        for name in overloads:
            RULES[name if "." in name else f"{name}.default"] = rule
        return rule

    return decorate


def refuse(hint: str, *overloads: str) -> None:
    """Declare that these have no rule, and what to do instead."""
    for name in overloads:
        REFUSED[name if "." in name else f"{name}.default"] = hint


def load_rules() -> dict[str, Rule]:
    """The table with every family imported."""
    from tilegrad.frontend.pytorch import aten as families

    families.load()
    return RULES


def overload_name(target: Any) -> str | None:
    """``add.Tensor`` for ``torch.ops.aten.add.Tensor``; ``namespace::add.Tensor`` outside ATen; None for no operator."""
    schema = getattr(target, "_schema", None)
    if schema is None:
        return None
    namespace, name = schema.name.split("::")
    name = f"{name}.{schema.overload_name or 'default'}"
    return name if namespace == "aten" else f"{namespace}::{name}"
