"""The one table of reverse-mode rules: which operator has a rule, and which has none and why.

A rule is a function ``rule(node, g)``: ``node`` is the call to differentiate (``values.Node``), ``g`` the
cotangent of its result (a list with possible ``None`` for an operator with several results). It returns one
cotangent per argument, in order, ``None`` where there is none; a lone value stands for the first argument.
Cotangents may have the result's broadcast shape and dtype: the walker sums and casts them back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["vjp", "composition"]


@dataclass(frozen=True)
class Rule:
    """``kind`` 'vjp': ``function(node, g)`` gives the cotangents; 'composition': ``function(node)`` rewrites the
    operator in others that have rules, and those are differentiated."""

    op: str
    kind: Kind
    function: Callable[..., Any]

    @property
    def doc(self) -> str:
        """What the rule computes, in maths, and its conventions."""
        return " ".join((self.function.__doc__ or "").split())

    @property
    def family(self) -> str:
        """The module that holds the rule, e.g. ``elementwise``."""
        return self.function.__module__.rsplit(".", 1)[-1]


RULES: dict[str, Rule] = {}

# Operators whose derivative is zero wherever it exists: their results carry no gradient and nothing is emitted.
ZERO: dict[str, str] = {}

# Operators with float results and no rule, on purpose. Meeting one on a path to be differentiated is an error.
WITHOUT: dict[str, str] = {}


def vjp_rule(*ops: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register ``function(node, g)`` as the vector-Jacobian product of each operator in ``ops``."""
    return _register("vjp", ops)


def composition(*ops: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register ``function(node) -> value or list of values``: the operator written in differentiable operators."""
    return _register("composition", ops)


def zero_derivative(reason: str, *ops: str) -> None:
    """Declare that each operator's derivative is zero wherever it exists."""
    ZERO.update(dict.fromkeys(ops, reason))


def without_rule(reason: str, *ops: str) -> None:
    """Declare that each operator stands without a rule, and why."""
    WITHOUT.update(dict.fromkeys(ops, reason))


def _register(kind: Kind, ops: tuple[str, ...]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for op in ops:
            RULES[op] = Rule(op, kind, function)
        return function

    return decorate
