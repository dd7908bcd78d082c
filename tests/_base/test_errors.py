"""Errors say where, got, expected and what to do, and are the built-in kinds that callers catch."""

import pickle

import pytest

from tilegrad._base import errors
from tilegrad._base.errors import ShapeError, TilegradError


def test_message_has_every_part() -> None:
    e = ShapeError("matmul, argument 'other'", "(3, 4)", "(4, n)", "Transpose it.")
    assert str(e) == "matmul, argument 'other': got (3, 4), expected (4, n). Transpose it."
    assert (e.where, e.got, e.expected, e.hint) == ("matmul, argument 'other'", "(3, 4)", "(4, n)", "Transpose it.")


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("no compiler",), "no compiler"),
        (("x", "1"), "x: got 1"),
        (("x", "", "2"), "x: expected 2"),
        (("x", "", "", "Do y."), "x. Do y."),
    ],
)
def test_absent_parts_leave_no_trace(args: tuple[str, ...], text: str) -> None:
    assert str(TilegradError(*args)) == text


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [("ShapeError", ValueError), ("DTypeError", TypeError), ("UnsupportedOperatorError", NotImplementedError)]
    + [("TargetError", ValueError), ("UsageError", ValueError)],
)
def test_kinds_are_also_the_builtin_kind(kind: str, builtin: type[Exception]) -> None:
    assert issubclass(getattr(errors, kind), (TilegradError, builtin))
    assert issubclass(getattr(errors, kind), builtin)


def test_errors_survive_pickling() -> None:
    """Workers of the tuner send them between processes."""
    e = pickle.loads(pickle.dumps(ShapeError("a", "b", "c", "d")))
    assert isinstance(e, ShapeError)
    assert str(e) == "a: got b, expected c. d"
