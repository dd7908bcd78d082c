"""What the backward pass keeps from the forward pass, per node, in bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from tilegrad._base.tvm import ir, relax
from tilegrad.relax_ext.vjp.expressions import op_name, used_vars

if TYPE_CHECKING:
    from tilegrad.relax_ext.graph import GraphBuilder

_VIEWS = ("relax.reshape", "relax.flatten", "relax.squeeze", "relax.expand_dims", "relax.nn.batch_flatten", "tilegrad.barrier",
          "tilegrad.stop_gradient")  # fmt: skip


@dataclass(frozen=True)
class Saved:
    """A forward node whose value lives on into the backward pass; ``readers`` are the operators that read it there."""

    var: relax.Var
    op: str
    bytes: int
    where: str
    readers: tuple[str, ...]


def saved_for_backward(builder: GraphBuilder, forward: int) -> list[Saved]:
    """The forward values that later bindings read, largest first.

    ``forward`` is the number of bindings that are forward (``len(builder.bindings)`` before ``vjp`` was called).
    Parameters of the graph are not counted: they live anyway. A view counts as the value it is a view of.
    """
    made = {v: e for v, e in builder.bindings[:forward]}
    readers: dict[relax.Var, list[str]] = {}
    for _, expr in builder.bindings[forward:]:
        for var in used_vars(expr):
            owner = _owner(var, made)
            if owner in made:
                readers.setdefault(owner, []).append(_name(expr))
    found = [
        Saved(v, _name(made[v]), size(v.ty), builder.where.get(v, ""), tuple(dict.fromkeys(ops))) for v, ops in readers.items()
    ]
    return sorted(found, key=lambda s: -s.bytes)


def size(ty: relax.Type) -> int:
    """Bytes of a tensor, or of a tuple of them."""
    if isinstance(ty, relax.TupleType):
        return sum(map(size, ty.fields))
    dtype = str(ty.dtype)
    item = 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize
    return prod(int(d) for d in ty.shape) * item


def _name(expr: relax.Expr) -> str:
    return op_name(expr) if isinstance(expr, ir.Call) else type(expr).__name__


def _owner(var: relax.Var, made: dict[relax.Var, relax.Expr]) -> relax.Var:
    while isinstance(expr := made.get(var), ir.Call) and op_name(expr) in _VIEWS and isinstance(expr.args[0], relax.Var):
        var = expr.args[0]
    return var


def report(saved: Sequence[Saved]) -> str:
    """A table for people."""
    lines = [f"{s.bytes:>12}  {s.op:28}  read by {', '.join(s.readers)}  {s.where}".rstrip() for s in saved]
    return "\n".join([*lines, f"{sum(s.bytes for s in saved):>12}  in all"])
