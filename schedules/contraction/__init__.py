"""Contractions: see canonical.py for the form, nest.py for the loops, model.py for the choice."""

from tilegrad.schedules.contraction.template import TEMPLATE

__all__ = ["TEMPLATE"]
