"""Convolutions of known networks against PyTorch (oneDNN): forward, by data, by weight.

    python -m benchmarks.conv --json [--quick] [--log my.jsonl] [--only depthwise ...]

A shape is [images, channels, height = width, channels out, kernel, stride, padding, groups]; ``unet_up`` are transposed
convolutions. Images are NCHW, outputs float32; what either side rearranges is inside the timed call. ``ours`` takes
configs from ``--log`` (default: your log, then the shipped ones), ``untuned`` the analytic default. ``--only`` takes
groups of shapes, kinds, ``depthwise``, ``pointwise``, ``strided``; given twice or more, a row must satisfy all of them.
Rates are GFLOP/s of the convolution as it is defined.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import Arena, Contestant, arguments, emit, machine
from tilegrad.runtime.arrays import aligned, empty

SHAPES: dict[str, list[list[int]]] = json.loads(Path(__file__).with_name("shapes.json").read_text())["conv"]
KINDS = ("forward", "by_data", "by_weight")


@dataclass(frozen=True)
class Case:
    """One row: a layer and which of its three computations. For a transposed layer ``size`` is its input's."""

    n: int
    c: int
    size: int
    o: int
    k: int
    stride: int
    pad: int
    groups: int
    transposed: bool
    kind: str

    @property
    def plain(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], str]:
        """(image, weights, result) of the convolution, and which of its computations this is, by its own names."""
        up = (self.size - 1) * self.stride - 2 * self.pad + self.k
        down = (self.size + 2 * self.pad - self.k) // self.stride + 1
        if self.transposed:
            image, result = (self.n, self.o, up, up), (self.n, self.c, self.size, self.size)
            kind = {"forward": "by_data", "by_data": "forward"}.get(self.kind, self.kind)
        else:
            image, result = (self.n, self.c, self.size, self.size), (self.n, self.o, down, down)
            kind = self.kind
        return image, (result[1], image[1] // self.groups, self.k, self.k), result, kind

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        _, w, y, _ = self.plain
        return 2 * math.prod(y) * math.prod(w[1:])

    @property
    def traits(self) -> set[str]:
        """What ``--only`` may name, besides the group."""
        shape = {"depthwise": 1 < self.groups == self.c, "pointwise": self.k == 1, "strided": self.stride > 1}
        return {self.kind, *(name for name, holds in shape.items() if holds)}

    def arrays(self) -> tuple[tuple[np.ndarray, np.ndarray], tuple[int, ...]]:
        """The two inputs, in the order of the TE definition of the plain computation, and the result's shape."""
        image, w, y, kind = self.plain
        first, second, out = {"forward": (image, w, y), "by_data": (y, w, image), "by_weight": (y, image, w)}[kind]
        rng = np.random.default_rng(0)
        return (aligned(rng.standard_normal(first, np.float32)), aligned(rng.standard_normal(second, np.float32))), out


QUICK = [  # group, number in the group, kind
    ("resnet_224", 0, "forward"), ("resnet_224", 2, "forward"), ("resnet_224", 2, "by_weight"), ("resnet_224", 5, "by_data"),
    ("resnet_224", 11, "forward"), ("resnet_224", 15, "forward"), ("cifar_16", 3, "by_data"), ("cifar_16", 4, "by_weight"),
    ("mobilenet", 1, "forward"), ("mobilenet", 4, "by_data"), ("mobilenet", 10, "forward"), ("unet_up", 2, "forward"),
]  # fmt: skip


def kernel(case: Case) -> Any:
    """The unscheduled kernel."""
    from tilegrad._base.tvm import te
    from tilegrad.schedules.stages import create
    from tilegrad.schedules.te.conv import conv, conv_by_data, conv_by_weight

    image, w, _, kind = case.plain
    (first, second), _ = case.arrays()
    a, b = te.placeholder(first.shape, "float32", "a"), te.placeholder(second.shape, "float32", "b")
    args = (case.stride, case.pad, 1, case.groups)
    if kind == "forward":
        out = conv(a, b, *args)
    elif kind == "by_data":
        out = conv_by_data(a, b, image, *args)
    else:
        out = conv_by_weight(a, b, w, *args)
    return create([a, b, out])


def ours(threads: int, logs: list[str] | None) -> Callable[..., Callable[[], Any]]:
    """One kernel, called as a compiled program calls it."""
    from tilegrad import runtime, tuning_logs
    from tilegrad._base.target import Target
    from tilegrad.runtime.program import Buffer, Call, Program
    from tilegrad.schedules import schedule, task_of

    target, records = Target.native(threads), tuning_logs.Records.load(logs)

    def prepare(**fields: Any) -> Callable[[], Any]:
        case = Case(**fields)
        func = kernel(case)
        config = records.choose(*task_of(func), target).config
        (a, b), out = case.arrays()
        arrays = {"a": a, "b": b, "c": empty(out, np.dtype(np.float32))}
        buffers = {x: Buffer(x, v.shape, "float32", "output" if x == "c" else "input") for x, v in arrays.items()}
        program = Program("main", tuple(arrays), buffers, (Call("kernel", tuple(arrays)),), {"kernel": func})
        library = runtime.build({"main": program}, {"kernel": schedule(func, target, config)}, target)
        return library.context(threads).prepare("main", arrays)

    return prepare


def torch_conv(threads: int) -> Callable[..., Callable[[], Any]]:
    """PyTorch; gradients are one call of its backward with the other gradients masked out."""
    import torch

    torch.set_num_threads(threads)

    def prepare(**fields: Any) -> Callable[[], Any]:
        case = Case(**fields)
        image, w, result, kind = case.plain
        a, b = map(torch.from_numpy, case.arrays()[0])
        step, pad = [case.stride] * 2, [case.pad] * 2
        if case.transposed and kind == "by_data":
            return lambda: torch.nn.functional.conv_transpose2d(a, b, None, step, pad, groups=case.groups)
        if kind == "forward":
            return lambda: torch.nn.functional.conv2d(a, b, None, step, pad, groups=case.groups)
        x, wt = (torch.zeros(image), b) if kind == "by_data" else (b, torch.zeros(w))
        mask = [kind == "by_data", kind == "by_weight", False]
        backward = torch.ops.aten.convolution_backward
        return lambda: backward(a, x, wt, None, step, pad, [1, 1], False, [0, 0], case.groups, mask)

    return prepare


def case_of(group: str, shape: Sequence[int], kind: str) -> Case:
    """The case of a shape of a group."""
    n, c, size, o, k, stride, pad, groups = shape
    return Case(n, c, size, o, k, stride, pad, groups, group == "unet_up", kind)


def cases(only: Sequence[str]) -> list[tuple[str, Case]]:
    """(group, case) of all rows that have every trait in ``only``."""
    rows = [(group, case_of(group, shape, kind)) for group, shapes in SHAPES.items() for shape in shapes for kind in KINDS]
    return [(group, case) for group, case in rows if set(only) <= {group, *case.traits}]


def race(arena: Arena, group: str, case: Case, quick: bool) -> dict[str, Any]:
    """One row."""
    result = arena.race(rounds=4 if quick else 5, turn_s=0.03 if quick else 0.3, unit=asdict(case))
    torch = "torch" in result.seconds
    return {
        "group": group,
        **asdict(case),
        "gflops": {name: round(1e-6 * case.flops / ms, 2) for name, ms in result.ms.items()},
        "spread": {name: result.spread(name) for name in result.ms},
        "ratio_vs_best": result.ratio("ours", "torch") if torch else None,
        "untuned_ratio_vs_best": result.ratio("untuned", "torch") if torch else None,
    }


def main() -> None:
    """Print a row a computation and the summary."""
    traits = sorted({*SHAPES, *KINDS, "depthwise", "pointwise", "strided"})
    options: dict[str, dict[str, Any]] = {
        "log": {"action": "append", "help": "tuning log for `ours`; may repeat"},
        "only": {"action": "append", "choices": traits, "default": [], "help": "only rows with this trait; may repeat"},
    }
    args = arguments(str(__doc__), **options)
    chosen = cases(args.only)
    if args.quick and not args.only:
        chosen = [(g, case_of(g, SHAPES[g][i], kind)) for g, i, kind in QUICK]
    contestants = [
        Contestant("ours", "benchmarks.conv:ours", {"threads": args.threads, "logs": args.log}, many=True),
        Contestant("untuned", "benchmarks.conv:ours", {"threads": args.threads, "logs": []}, many=True),
        Contestant("torch", "benchmarks.conv:torch_conv", {"threads": args.threads}, many=True),
    ]
    rows = []
    with Arena(contestants, args.threads) as arena:
        for group, case in chosen:
            rows.append(race(arena, group, case, args.quick))
            emit(rows[-1], args.json)
        missing = arena.missing
    summary = {
        **_extremes("", [r for r in rows if r["ratio_vs_best"]], "ratio_vs_best"),
        **_extremes("untuned_", [r for r in rows if r["untuned_ratio_vs_best"]], "untuned_ratio_vs_best"),
        "missing": missing,
        "threads": args.threads,
        "machine": machine(),
    }
    emit({"summary": summary}, args.json)


def _extremes(prefix: str, rows: Sequence[dict[str, Any]], ratio: str) -> dict[str, Any]:
    """The geometric mean of a ratio, its least value, and the three rows where it is least."""
    values = [r[ratio] for r in rows]
    worst = sorted(rows, key=lambda r: r[ratio])[:3]
    return {
        f"{prefix}geomean_vs_best": round(math.exp(sum(map(math.log, values)) / len(values)), 3) if values else None,
        f"{prefix}worst_vs_best": min(values, default=None),
        f"{prefix}worst_rows": [
            [r["group"], *(r[x] for x in ("n", "c", "size", "o", "k", "stride", "pad", "groups", "kind")), r[ratio]]
            for r in worst
        ],
    }


if __name__ == "__main__":
    main()
