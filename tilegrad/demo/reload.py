"""A fresh process without TVM: load what the demo exported, predict, go on training, predict again.

python -m tilegrad.demo.reload FOLDER STEPS. The parent compares the arrays it writes with its own, bit for bit.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np


def main(folder: str, steps: str) -> None:
    # From here on importing either is an error: nothing below may need a compiler.
    sys.modules["tvm"] = sys.modules["tvm_ffi"] = None  # type: ignore[assignment]
    import tilegrad as tg
    from tilegrad.demo import digits

    path = Path(folder)
    step, infer = tg.load(path / "step"), tg.load(path / "infer")
    train, test = digits.load()
    before = infer(test.images)
    losses = [float(step(x, y)) for x, y in digits.some_batches(train, int(steps))]
    for name, value in infer.states.items():
        value[...] = step.state(name)
    np.savez(path / "reloaded.npz", before=before, losses=np.array(losses), after=infer(test.images))


if __name__ == "__main__":
    main(*sys.argv[1:])
