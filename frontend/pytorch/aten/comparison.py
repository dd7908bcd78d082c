"""Comparisons, logic and bits."""

from __future__ import annotations

from typing import Any

from tilegrad.frontend.pytorch.aten.pointwise import Operand
from tilegrad.frontend.pytorch.lowering import Cannot, Lowering
from tilegrad.frontend.pytorch.table import aten
from tilegrad.relax_ext.vjp.values import F, Value

_INTEGER_LIMITS = {"uint8": (0, 255), "int8": (-128, 127), "int16": (-(2**15), 2**15 - 1), "int32": (-(2**31), 2**31 - 1)}


def _comparison(name: str, op: str, of_bools: str | None = None) -> None:
    @aten(f"{name}.Tensor", f"{name}.Scalar")
    def rule(k: Lowering, x: Operand, y: Operand) -> Value:
        dtype = k.promoted(x, y)
        if dtype == "bool":
            dtype = "uint8"
        if (
            not isinstance(y, Value)
            and dtype in _INTEGER_LIMITS
            and not _INTEGER_LIMITS[dtype][0] <= y <= _INTEGER_LIMITS[dtype][1]
        ):
            dtype = "int64"
        return getattr(F, op)(k.value(x, dtype), k.value(y, dtype))


for _name, _op in (
    ("eq", "equal"), ("ne", "not_equal"), ("lt", "less"), ("le", "less_equal"), ("gt", "greater"), ("ge", "greater_equal"),
):  # fmt: skip
    _comparison(_name, _op)


@aten("logical_not")
def logical_not(k: Lowering, x: Value) -> Value:
    return F.logical_not(k.value(x, "bool"))


@aten("logical_and")
def logical_and(k: Lowering, x: Value, y: Value) -> Value:
    return F.logical_and(k.value(x, "bool"), k.value(y, "bool"))


@aten("logical_or")
def logical_or(k: Lowering, x: Value, y: Value) -> Value:
    return F.logical_or(k.value(x, "bool"), k.value(y, "bool"))


@aten("logical_xor")
def logical_xor(k: Lowering, x: Value, y: Value) -> Value:
    return F.logical_xor(k.value(x, "bool"), k.value(y, "bool"))


def _bits(name: str) -> None:
    @aten(f"bitwise_{name}.Tensor", f"bitwise_{name}.Scalar", f"bitwise_{name}.Scalar_Tensor")
    def rule(k: Lowering, x: Operand, y: Operand) -> Value:
        dtype = k.out.dtype
        op = getattr(F, f"logical_{name}" if dtype == "bool" else f"bitwise_{name}")
        return op(k.value(x, dtype), k.value(y, dtype))


for _name in ("and", "or", "xor"):
    _bits(_name)


@aten("bitwise_not")
def bitwise_not(k: Lowering, x: Value) -> Value:
    return F.logical_not(x) if x.dtype == "bool" else F.bitwise_not(x)


def _shift(name: str, op: str) -> None:
    @aten(*(f"bitwise_{name}_shift.{o}" for o in ("Tensor", "Tensor_Scalar", "Scalar_Tensor")), f"__{name[0]}shift__.Tensor",
          f"__{name[0]}shift__.Scalar")  # fmt: skip
    def rule(k: Lowering, x: Operand, y: Operand) -> Value:
        """PyTorch defines shifts by too many places: 0 to the left, the sign to the right."""
        dtype = k.out.dtype
        if "float" in dtype:
            raise Cannot("shifts of floats")
        a, n = k.value(x, dtype), k.value(y, dtype)
        bits = int(dtype.lstrip("uint"))
        legal = F.logical_and(F.greater_equal(n, k.number(0, dtype)), F.less(n, k.number(bits, dtype)))
        shifted = getattr(F, op)(a, F.where(legal, n, k.number(bits - 1, dtype)))
        if op == "left_shift":
            shifted = F.where(legal, shifted, k.number(0, dtype))
        return shifted.broadcast_to(k.out.shape)


_shift("left", "left_shift")
_shift("right", "right_shift")


def _classify(name: str, of_whole: bool) -> Any:
    @aten(name)
    def rule(k: Lowering, x: Value) -> Value:
        if "float" not in x.dtype:
            return k.full(x.shape, of_whole, "bool")
        return getattr(F, name)(k.wide(x) if x.dtype in ("float16", "bfloat16") else x)


_classify("isnan", False)
_classify("isinf", False)
_classify("isfinite", True)
