"""Timing scripts: ``python -m benchmarks.NAME --json [--quick]``. Form and harness: benchmarks/common.py."""
