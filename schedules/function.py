"""What a kernel of stages computes, as a short text for its workload's key: two functions of equal shapes are two workloads."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

from tilegrad._base.tvm import ir, tirx, tvm_ffi
from tilegrad.schedules.stages import Stage, id_of

LETTERS = 8
"""Letters of the digest, 4 bits each."""


def function_of(found: Sequence[Stage]) -> str:
    """The operations, by first appearance, and a digest of the expressions: ``exp add mul kbdhfapc``.

    Names and the values of constants do not count: the same function of another size, or with another factor, has the same
    text, so that the best config of one may serve the other. The digest has no figures, which look-up compares as sizes.
    """
    numbers: dict[int, int] = {}
    text: list[str] = []
    operations: dict[str, None] = {}

    def visit(node: Any) -> None:
        if isinstance(node, ir.Var):
            text.append(f"v{numbers.setdefault(id_of(node), len(numbers))}")
        elif isinstance(node, tirx.IntImm | tirx.FloatImm):
            text.append("c")
        elif isinstance(node, ir.TensorLoad):
            text.append(f"read{len(node.indices)}")
        elif isinstance(node, ir.Call):
            name = str(getattr(node.op, "name", "call")).rpartition(".")[2]
            operations[name] = None
            text.append(f"{name}{len(node.args)} {node.ty.dtype}")
        elif isinstance(node, ir.Expr):
            kind = type(node).__name__.lower()
            operations[kind] = None
            text.append(f"{kind} {node.ty.dtype}")

    for stage in found:
        text.append(f"stage{len(stage.spatial)},{len(stage.reduce)}:")
        for expr in _parts(stage):
            tvm_ffi.structural_walk(expr, (Any, visit))
            text.append(";")
    digest = hashlib.blake2b(" ".join(text).encode(), digest_size=LETTERS // 2).digest()
    return " ".join([*operations, "".join("abcdefghijklmnop"[x] for byte in digest for x in (byte >> 4, byte & 15))])


def _parts(stage: Stage) -> Iterable[Any]:
    """Where the stage is stored, what starts it, and what it computes."""
    yield stage.buffer
    yield from (i.var for i in (*stage.spatial, *stage.reduce))
    yield from [] if stage.init is None else [stage.init]
    yield stage.body
