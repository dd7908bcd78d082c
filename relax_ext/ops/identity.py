"""Operators that give their argument back: they speak to gradients and passes, and cost nothing once lowered."""

from __future__ import annotations

from typing import Any

from tilegrad._base.tvm import ir, relax, te
from tilegrad.relax_ext.ops.register import register


def _first(x: relax.Type, *_: relax.Type) -> relax.Type:
    return x


def _barrier(x: te.Tensor, *_: te.Tensor) -> te.Tensor:
    """x, once all further arguments exist; never merged with x. Recomputation starts here."""
    return x


def _stop_gradient(x: te.Tensor) -> te.Tensor:
    """x, as a constant to differentiation."""
    return x


barrier = register("tilegrad.barrier", _first, _barrier)
stop_gradient = register("tilegrad.stop_gradient", _first, _stop_gradient)


def _vanish(_: relax.BlockBuilder, call: ir.Call) -> Any:
    return call.args[0]


for _name in ("tilegrad.barrier", "tilegrad.stop_gradient"):
    ir.register_op_attr(_name, "FLegalize", _vanish, level=11)
