"""Relax extensions: gradient, passes and lowering from Graph to Program and Library."""
