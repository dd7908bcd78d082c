"""The attention template: one kernel each way, the scores never beyond a tile."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tilegrad._base.errors import ScheduleError
from tilegrad._base.target import Target
from tilegrad._base.tvm import te, tirx
from tilegrad.schedules.attention.backward import Backward
from tilegrad.schedules.attention.forward import Forward
from tilegrad.schedules.attention.read import read
from tilegrad.schedules.contraction.define import long
from tilegrad.schedules.contraction.plan import ceildiv, element_bytes, registers
from tilegrad.schedules.contraction.template import short
from tilegrad.schedules.stages import create
from tilegrad.schedules.te import attention as definition
from tilegrad.schedules.template import Config, Scheduled, Workload


class AttentionTemplate:
    """See schedules.template.Template."""

    name = "attention/1"

    def match(self, func: tirx.PrimFunc) -> Workload | None:
        """heads, queries, keys, widths of a query and of a value, diagonal, the bias's dimensions, the type."""
        x = read(func)
        if x is None:
            return None
        fields: dict[str, Any] = {"heads": x.heads, "m": x.queries, "n": x.keys, "d": x.width, "e": x.value_width}
        fields |= {"diagonal": x.diagonal, "bias": None if x.bias is None else list(x.bias), "dtype": short(x.dtype)}
        op = "attention" if x.direction == "forward" else "attention_backward"
        products = (x.width + x.value_width) if op == "attention" else 3 * x.width + 2 * x.value_width
        traffic = sum(math.prod(int(d) for d in p.shape) * element_bytes(str(p.dtype)) for p in func.params)
        return Workload(op, fields, 2 * x.heads * x.queries * x.keys * products, traffic)

    def space(self, workload: Workload, target: Target) -> list[Config]:
        """Micro-tiles that fit the registers, and blocks of keys."""
        f = workload.fields
        lanes = max(1, target.vector_bytes // element_bytes(long(f["dtype"])))
        total = ceildiv(int(f["m"]), lanes)
        out: dict[tuple[int, ...], Config] = {}
        for mr, vectors in {16: [(6, 2), (4, 2), (3, 3), (12, 1)], 32: [(14, 2), (12, 2), (8, 3), (6, 4), (24, 1)]}[
            target.vector_registers
        ]:
            vectors = min(vectors, total)
            mr = min(mr, max(int(f[x]) for x in "nde"))
            for kc in (32, 64, 128, 256, 512):
                kc = min(kc, int(f["n"]))
                if registers(mr, vectors) <= target.vector_registers:
                    out.setdefault((mr, vectors, kc), {"mr": mr, "nr": vectors * lanes, "kc": kc})
        return list(out.values())

    def default(self, workload: Workload, target: Target) -> Config:
        """The cheapest by the model."""
        return min(self.space(workload, target), key=lambda c: self.estimate(workload, c, target))

    def apply(self, func: tirx.PrimFunc, config: Config, target: Target) -> Scheduled:
        """Arrange the kernel. Raises ScheduleError for a config that does not fit it."""
        x = read(func)
        if x is None:
            raise ScheduleError("attention template", "a kernel that is no attention", "one that match accepts")
        bad = [k for k in ("mr", "nr", "kc") if not isinstance(config.get(k), int) or config[k] < 1]
        lanes = max(1, target.vector_bytes // element_bytes(x.dtype))
        if bad or registers(int(config["mr"]), ceildiv(int(config["nr"]), lanes)) > target.vector_registers:
            raise ScheduleError("attention config", repr(config), "mr, nr and kc of at least 1 whose tile fits the registers")
        return (Forward if x.direction == "forward" else Backward)(x, config, target).build(func)

    def estimate(self, workload: Workload, config: Config, target: Target) -> float:
        """Seconds: multiply-adds of whole tiles, loads, the elementwise work, and the traffic of tiles beyond L1."""
        f = workload.fields
        elem = element_bytes(long(f["dtype"]))
        lanes = max(1, target.vector_bytes // elem)
        m, n, heads = int(f["m"]), int(f["n"]), int(f["heads"])
        mr, vectors, kc = int(config["mr"]), max(1, int(config["nr"]) // lanes), int(config["kc"])
        panels = ceildiv(m, vectors * lanes)
        seen = 1.0 if f["diagonal"] is None else min(1.0, 0.5 + 0.5 * vectors * lanes / max(1, n))
        depth = workload.flops / (2 * heads * m * n)
        rows = n / ceildiv(n, mr)
        per_step = max(rows * vectors, 1.25 * (rows + vectors), 5.0) / (rows * vectors)
        elementwise = 30.0 if workload.op == "attention" else 40.0
        blocks = ceildiv(n, kc)
        tile = kc * vectors * lanes * elem * (1 if workload.op == "attention" else 2)
        spill = 0.3 * depth / 8 if tile > 0.6 * target.l1_bytes else 0.0
        resume = (int(f["d"]) + int(f["e"])) * vectors * 3.0 * (blocks - 1)
        cycles = panels * (seen * n * vectors * (depth * per_step + elementwise + spill) + resume + 40 * blocks * rows)
        busy = min(target.threads, heads * panels)
        return cycles * heads / busy / 2.5e9 + 5e-6

    def features(self, workload: Workload, config: Config, target: Target) -> np.ndarray:
        """Sizes and knobs, in logarithms."""
        f = workload.fields
        sizes = [f["heads"], f["m"], f["n"], f["d"], f["e"], config["mr"], config["nr"], config["kc"], target.threads]
        flags = [f["diagonal"] is not None, f["bias"] is not None, workload.op == "attention"]
        return np.array([*(math.log2(1 + int(s)) for s in sizes), *map(float, flags)], dtype=np.float32)

    def define(self, workload: Workload) -> tirx.PrimFunc:
        """An unscheduled kernel with this workload."""
        f = workload.fields
        heads, m, n, d, e = (int(f[x]) for x in ("heads", "m", "n", "d", "e"))
        dtype = long(f["dtype"])
        tensor = lambda name, *s: te.placeholder(s, dtype, name)  # noqa: E731
        q, k, v = tensor("q", heads, m, d), tensor("k", heads, n, d), tensor("v", heads, n, e)
        if f["bias"] is not None and len(f["bias"]) != 3:
            raise ScheduleError("attention define", f"a bias of shape {f['bias']}", "three dimensions")
        bias = [] if f["bias"] is None else [tensor("bias", *map(int, f["bias"]))]
        attrs = {"scale": 1 / math.sqrt(d), "diagonal": f["diagonal"]}
        if workload.op == "attention":
            return create([q, k, v, *bias, *definition.attention(q, k, v, *bias, **attrs)])
        more = [tensor("g", heads, m, e), tensor("lse", heads, m), tensor("delta", heads, m), *bias]
        return create([q, k, v, *more, *definition.attention_backward(q, k, v, *more, **attrs)])


TEMPLATE = AttentionTemplate()
