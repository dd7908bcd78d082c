"""Elementwise chains and data movement."""

from tilegrad.schedules.elementwise.template import TEMPLATE

__all__ = ["TEMPLATE"]
