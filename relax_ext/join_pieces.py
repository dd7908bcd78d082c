"""Sums of arrays that are zero outside pieces become one concatenation where the pieces make up the whole.

In: a Relax module. Out: the gradients of slices of one value, each padded with zeros to the value's size and added up, are
joined instead. Sums of pieces that overlap or leave gaps are untouched.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilegrad._base.tvm import relax, tvm
from tilegrad.relax_ext.rewrite import Scope, rewrite


@dataclass(frozen=True)
class _Pieces:
    """Arrays at their places along ``axis``, which has ``extent``; zeros between them."""

    axis: int
    extent: int
    at: tuple[tuple[int, relax.Expr], ...]

    @staticmethod
    def of(call: relax.Call) -> _Pieces | None:
        """What a call of ``pad`` places, when it pads one axis with zeros."""
        a = call.attrs
        widths = [int(w) for w in a.pad_width]
        padded = [d for d in range(len(widths) // 2) if widths[2 * d] or widths[2 * d + 1]]
        if str(a.pad_mode) != "constant" or float(a.pad_value) or len(padded) != 1 or min(widths) < 0:
            return None
        (axis,) = padded
        return _Pieces(axis, int(call.ty.shape[axis]), ((widths[2 * axis], call.args[0]),))

    def plus(self, other: _Pieces) -> _Pieces | None:
        """Both together; None when they overlap."""
        if (self.axis, self.extent) != (other.axis, other.extent):
            return None
        both = sorted((*self.at, *other.at), key=lambda p: p[0])
        if any(begin + self._length(x) > after for (begin, x), (after, _) in zip(both, both[1:], strict=False)):
            return None
        return _Pieces(self.axis, self.extent, tuple(both))

    @property
    def complete(self) -> bool:
        """Whether nothing is left zero."""
        return sum(self._length(x) for _, x in self.at) == self.extent

    def _length(self, x: relax.Expr) -> int:
        return int(x.ty.shape[self.axis])


def join_pieces(mod: tvm.IRModule) -> tvm.IRModule:
    """The gradient of ``split`` by slices is then one pass, or none where the pieces can be written into their places."""
    known: dict[relax.Expr, _Pieces] = {}

    def rule(scope: Scope, _: relax.Var, call: relax.Call) -> relax.Expr | None:
        name = getattr(call.op, "name", "")
        if name == "relax.nn.pad" and (pieces := _Pieces.of(call)) is not None:
            known[var := scope.emit(call)] = pieces
            return var
        if name != "relax.add" or any(a not in known for a in call.args):
            return None
        both = known[call.args[0]].plus(known[call.args[1]])
        if both is None:
            return None
        if both.complete:
            return relax.op.concat([x for _, x in both.at], both.axis)
        known[var := scope.emit(call)] = both
        return var

    return rewrite(mod, rule)
