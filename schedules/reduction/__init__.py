"""Reductions, softmax, norms, losses."""

from tilegrad.schedules.reduction.template import TEMPLATE

__all__ = ["TEMPLATE"]
