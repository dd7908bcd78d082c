"""Two small models for tuning tests: run as a script they tune, as a MODEL file they name programs and a target."""

from __future__ import annotations

import sys
from types import SimpleNamespace

from tilegrad._base.target import Target
from tilegrad._base.tvm import te
from tilegrad.schedules.stages import create
from tilegrad.tuner._build_worker import one_call


def chain(n: int, name: str = "y"):
    """y = 2 x + 1 over n elements."""
    x = te.placeholder((n,), "float32", name="x")
    return create([x, te.compute((n,), lambda i: x[i] * 2.0 + 1.0, name=name)])


def model(*sizes: int):
    """One program a size; ``graphs`` marks it as a MODEL."""
    programs = {f"p{n}": one_call(chain(n), 1, f"chain{n}") for n in sizes}
    return SimpleNamespace(programs=programs, target=Target.native(), graphs={})


small = model(4096)
large = model(*(1 << k for k in range(10, 20)))

if __name__ == "__main__":
    from tilegrad import tuner

    print(tuner.tune(large, log=sys.argv[1], effort="full"))
