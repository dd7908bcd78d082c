"""Sums over a window of an image (depthwise convolution): form.py says what matches, gather.py and correlate.py are the loops."""

from tilegrad.schedules.window.template import TEMPLATE

__all__ = ["TEMPLATE"]
