"""ATen's operators by family. Each module registers its rules when imported."""

from __future__ import annotations

from importlib import import_module

FAMILIES = (
    "pointwise",
    "scalar_functions",
    "number",
    "activation",
    "comparison",
    "reduction",
    "movement",
    "creation",
    "indexing",
    "scatter",
    "ordering",
    "histograms",
    "incomplete_gamma",
    "bags",
    "contraction",
    "convolution",
    "pooling",
    "normalisation",
    "attention",
    "loss",
    "resampling",
    "grid_sampling",
    "randomness",
)


def load() -> None:
    """Import every family."""
    for name in FAMILIES:
        import_module(f"{__name__}.{name}")
