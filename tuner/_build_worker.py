"""A process that compiles candidates for the tuner. Started as ``python -m tilegrad.tuner._build_worker``.

It speaks JSON lines: requests on stdin, answers on the descriptor that was stdout (libraries that print get stderr).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tilegrad._base.errors import ScheduleError
from tilegrad._base.target import Target
from tilegrad.tuner._pipe import serve


def one_call(func: Any, num_outputs: int, kernel: str = "kernel") -> Any:
    """A Program that is one call of ``func`` under the name ``kernel``: ports x0, x1, ... in the kernel's order."""
    from tilegrad.runtime.program import Buffer, Call, Program

    names = [f"x{i}" for i in range(len(func.params))]
    first = len(names) - num_outputs
    buffers = {
        n: Buffer(n, tuple(int(d) for d in p.shape), str(p.dtype), "input" if i < first else "output")
        for i, (n, p) in enumerate(zip(names, func.params, strict=True))
    }
    return Program("run", tuple(names), buffers, (Call(kernel, tuple(names), num_outputs),), {kernel: func})


def outputs_of(func: Any) -> int:
    """How many of the last parameters an unscheduled kernel writes."""
    from tilegrad.schedules.stages import inputs_outputs, stages

    found = stages(func)
    return len(inputs_outputs(func, found)[1]) if found else 1


class Worker:
    """Keeps the kernels it was told about: ``func``, the text of ``ir.save_json``, comes with a key's first request."""

    def __init__(self) -> None:
        self._funcs: dict[str, Any] = {}

    def _func(self, key: str, text: str | None) -> Any:
        from tilegrad._base.tvm import ir

        if text is not None:
            self._funcs[key] = ir.load_json(text)
        return self._funcs[key]

    def build(
        self, key: str, num_outputs: int, target: dict[str, Any], config: dict[str, Any], path: str, func: str | None = None
    ) -> dict[str, Any]:
        """Compile one config. ``path`` becomes a JSON file that says where the library is and what is in it."""
        from tilegrad import runtime, schedules

        kernel, machine = self._func(key, func), Target(**target | {"features": tuple(target["features"])})
        try:
            scheduled = schedules.schedule(kernel, machine, config)
        except ScheduleError as e:
            return {"status": "invalid_config", "error": str(e)}
        library = runtime.build({"run": one_call(kernel, num_outputs)}, {"kernel": scheduled}, machine)
        Path(path).write_text(json.dumps({"library": str(library.path), "manifest": library.manifest}))
        return {"status": "ok"}

    def reference(self, key: str, num_outputs: int, path: str, func: str | None = None) -> dict[str, Any]:
        """Write inputs and the reference results of a kernel to the NPZ file ``path``."""
        from tilegrad.tuner import reference

        reference.write(self._func(key, func), num_outputs, Path(path))
        return {"status": "ok"}


if __name__ == "__main__":
    import tilegrad._base.tvm  # noqa: F401  (before "ready": the import is not part of any trial's time)
    from tilegrad import runtime, schedules

    assert callable(runtime.build) and callable(schedules.schedule)
    worker = Worker()
    serve({"build": worker.build, "reference": worker.reference})
