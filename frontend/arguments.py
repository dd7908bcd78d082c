"""Checks of arguments by their annotations: what a public function says it takes is what it accepts.

``checked(f)`` is ``f`` with every parameter annotated as a number, flag, axis, shape or list of those converted to plain Python
numbers, or refused by a UsageError that names function and parameter. Parameters annotated ``Any`` are arrays; ``as_tensor``
refuses what is none.
"""

from __future__ import annotations

import functools
import inspect
import operator
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from tilegrad._base.errors import UsageError
from tilegrad.frontend.apply import as_tensor
from tilegrad.frontend.recording import fail_line

Rule = Callable[[Any], Any]
Function = TypeVar("Function", bound=Callable[..., Any])


class _Wrong(Exception):
    """What was expected."""


def _whole(value: Any) -> int:
    if isinstance(value, (bool, np.bool_, str)) or getattr(value, "dtype", None) == "bool":
        raise _Wrong("a whole number")
    try:
        return operator.index(value)
    except TypeError:
        raise _Wrong("a whole number") from None


def _number(value: Any) -> Any:
    if isinstance(value, (int, float)):
        return value
    if isinstance(value, (np.number, np.bool_)) and not isinstance(value, np.complexfloating):
        return value.item()
    if (
        (isinstance(value, np.ndarray) or hasattr(value, "_node"))
        and value.shape == ()
        and not str(value.dtype).startswith("complex")
    ):
        return value.item()
    raise _Wrong("a number")


def _flag(value: Any) -> bool:
    if isinstance(value, (bool, np.bool_)) or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    raise _Wrong("True or False")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _Wrong("a string")
    return value


def _list(what: str, of: Rule) -> Rule:
    def rule(value: Any) -> tuple[Any, ...]:
        if isinstance(value, (str, dict, set)) or not isinstance(value, Iterable) or getattr(value, "shape", None) == ():
            raise _Wrong(what)
        try:
            return tuple(of(v) for v in value)
        except _Wrong:
            raise _Wrong(what) from None

    return rule


def _pair(value: Any) -> tuple[int, ...]:
    found = _list("", _whole)(value)
    if len(found) != 2:
        raise _Wrong("")
    return found


def _sequence(value: Any) -> Any:
    if isinstance(value, (str, dict)) or not isinstance(value, Iterable) or getattr(value, "shape", None) == ():
        raise _Wrong("a list or tuple of arrays")
    return value if hasattr(value, "shape") else list(value)


def _function(value: Any) -> Any:
    if not callable(value):
        raise _Wrong("a function")
    return value


def _tensor(value: Any) -> Any:
    if value is None or isinstance(value, str):
        raise _Wrong("an array")
    return as_tensor(value)


def _module(value: Any) -> Any:
    if not hasattr(value, "named_modules"):
        raise _Wrong("a Module")
    return value


def _modules(value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise _Wrong("Modules by name")
    return value


def _either(what: str, *rules: Rule) -> Rule:
    def rule(value: Any) -> Any:
        for r in rules:
            try:
                return r(value)
            except _Wrong:
                pass
        raise _Wrong(what)

    return rule


def _or_none(rule: Rule) -> Rule:
    return lambda value: None if value is None else rule(value)


_WHOLES = _list("whole numbers", _whole)
_ONE_OR_MORE = _either("a whole number, or a list of them", _whole, _WHOLES)
_RULES: dict[str, Rule] = {
    "int": _whole,
    "float": _number,
    "float | int | bool": _number,
    "bool": _flag,
    "str": _text,
    "Reduction": _text,
    "Axes": _or_none(_ONE_OR_MORE),
    "Shape": _ONE_OR_MORE,
    "Size": _ONE_OR_MORE,
    "Size | str": lambda value: value if isinstance(value, str) else _ONE_OR_MORE(value),
    "Sequence[int]": _WHOLES,
    "int | Sequence[int]": _ONE_OR_MORE,
    "Sequence[int] | int": _ONE_OR_MORE,
    "Sequence[tuple[int, int]]": _list("pairs (before, after) of whole numbers, one for each axis", _pair),
    "Sequence[Any]": _sequence,
    "Tensor": _tensor,
    "Callable[..., Any]": _function,
    "Fn": _function,
    "Module": _module,
    "Iterable[Module]": _list("Modules", _module),
    "Mapping[str, Module]": _modules,
}
_RULES |= {f"{name} | None": _or_none(rule) for name, rule in _RULES.items()}

_LEAST = dict.fromkeys(
    "n m seed steps repeats depth padding output_padding size shape in_features out_features normalized_shape".split(), 0
)
_LEAST |= dict.fromkeys(
    (
        "stride dilation groups in_channels out_channels kernel_size hidden_size input_size num_layers num_heads nhead embed_dim "
        "d_model dim_feedforward num_embeddings embedding_dim num_features num_groups num_channels num_parameters"
    ).split(),
    1,
)
"""The least whole number that a parameter of this name takes."""

_PROBABILITIES = ("p", "dropout")
"""Parameters from 0 to 1."""

_MINUS_ONE = ("reshape", "expand")
"""Functions in whose shapes -1 has a meaning."""


def checked(function: Function) -> Function:
    """``function`` with its arguments checked; itself where there is nothing to check."""
    rules: list[tuple[int, str, Rule]] = []
    for i, (name, p) in enumerate(inspect.signature(function).parameters.items()):
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            continue
        kind = str(p.annotation).replace("builtins.", "")
        rule = _text if kind.startswith("Literal[") else _RULES.get(kind)
        if rule is not None:
            least = -1 if name == "shape" and function.__name__ in _MINUS_ONE else _LEAST.get(name)
            place = i if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) else sys.maxsize  # by keyword alone
            rule = _probability if name in _PROBABILITIES else rule if least is None else _at_least(rule, least)
            rules.append((place, name, rule))
    if not rules:
        return function

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = list(args)
        for i, name, rule in rules:
            try:
                if i < len(given):
                    given[i] = rule(given[i])
                elif name in kwargs:
                    kwargs[name] = rule(kwargs[name])
            except _Wrong as e:
                value = given[i] if i < len(given) else kwargs[name]
                title = type(args[0]).__name__ if function.__name__ == "__init__" else function.__name__
                raise UsageError(f"{fail_line()}{title}, argument '{name}'", _shown(value), str(e)) from None
        return function(*given, **kwargs)

    return call  # type: ignore[return-value]


def _at_least(rule: Rule, least: int) -> Rule:
    def bounded(value: Any) -> Any:
        value = rule(value)
        if value is not None and not isinstance(value, str):
            if any(v < least for v in (value if isinstance(value, tuple) else (value,))):
                raise _Wrong(f"{least} or more")
        return value

    return bounded


def _probability(value: Any) -> Any:
    value = _number(value)
    if not 0 <= value <= 1:
        raise _Wrong("a probability, from 0 to 1")
    return value


def _shown(value: Any) -> str:
    text = repr(value) if not hasattr(value, "shape") else f"an array of {getattr(value, 'dtype', '')}{list(value.shape)}"
    return text if len(text) < 80 else text[:77] + "..."


def check_all(namespace: dict[str, Any], names: Iterable[str]) -> None:
    """Replace the functions of these names in a module's namespace by their checked forms, and the constructors of classes."""
    for name in names:
        found = namespace.get(name)
        if inspect.isfunction(found) and not hasattr(found, "__wrapped__"):
            namespace[name] = checked(found)
        elif inspect.isclass(found) and "__init__" in vars(found) and not hasattr(found.__init__, "__wrapped__"):
            setattr(found, "__init__", checked(found.__init__))  # noqa: B010  (mypy takes no plain assignment to a method)


__all__: Sequence[str] = ("check_all", "checked")
