"""The errors a user can meet. Each message says where, what came, what was expected and what to do."""

from __future__ import annotations


class TilegradError(Exception):
    """Base of every error tilegrad raises on purpose.

    Parameters
    ----------
    where: the operation and argument at fault, e.g. ``"matmul, argument 'other'"``.
    got: what came.
    expected: what would have been accepted.
    hint: what to do next.
    """

    def __init__(self, where: str, got: str = "", expected: str = "", hint: str = "") -> None:
        self.where, self.got, self.expected, self.hint = where, got, expected, hint
        parts = [where]
        if got:
            parts.append(f"got {got}")
        if expected:
            parts.append(f"expected {expected}")
        message = ": ".join(parts[:1]) + (": " + ", ".join(parts[1:]) if len(parts) > 1 else "")
        super().__init__(message + (f". {hint}" if hint else ""))


class ShapeError(TilegradError, ValueError):
    """Shapes that do not fit together or do not fit the operator."""


class DTypeError(TilegradError, TypeError):
    """An element type that the operator or argument does not take."""


class IndexingError(TilegradError, IndexError):
    """An index outside its axis, too many indices, or something that is no index."""


class UnsupportedOperatorError(TilegradError, NotImplementedError):
    """Operators without a rule, all of a model at once."""


class ModelImportError(TilegradError):
    """A model file or foreign module that cannot be brought in."""


class TargetError(TilegradError, ValueError):
    """A target that is unknown or that this machine cannot build for or run."""


class ScheduleError(TilegradError):
    """A config that is illegal for its workload and target."""


class TuningError(TilegradError):
    """Tuning that could not produce anything, or a log that cannot be used."""


class LibraryError(TilegradError):
    """A library that cannot be built, verified, loaded or called."""


class UsageError(TilegradError, ValueError):
    """An argument or a sequence of calls that makes no sense."""
