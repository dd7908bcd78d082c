"""Attention: see read.py for the form, kernel.py, forward.py and backward.py for the loops."""

from tilegrad.schedules.attention.template import TEMPLATE

__all__ = ["TEMPLATE"]
