"""Relax operators -> call_tir of TE kernels. In: any Relax module. Out: main calls PrimFuncs only.

Contractions and the operators whose upstream legalization is slow or departs from PyTorch's values
use the project's own TE definitions; everything else keeps upstream's (topi).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tilegrad._base.tvm import ir, relax, te, tirx, topi, tvm, tvm_ffi
from tilegrad.relax_ext import vjp  # noqa: F401  (registers our operators and their lowerings)
from tilegrad.relax_ext.vjp.expressions import scalar_constant
from tilegrad.schedules.te.concat import join
from tilegrad.schedules.te.conv import conv
from tilegrad.schedules.te.matmul import matmul

Legalize = Callable[[relax.BlockBuilder, relax.Call], relax.Expr]


def _ints(values: Any) -> tuple[int, ...]:
    return tuple(int(v) for v in values)


def _clip(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Bounds in the tensor's own type; upstream's are float32."""
    dtype = str(call.ty.dtype)
    low, high = (tirx.const(float(b.value) if "float" in dtype else int(b.value), dtype) for b in call.args[1:])

    def clip(x: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda *i: tirx.min(tirx.max(x(*i), low), high), name="clip")

    return bb.call_te(clip, call.args[0], primfunc_name_hint="clip")


def _matmul(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    return bb.call_te(matmul, call.args[0], call.args[1], out_dtype=str(call.ty.dtype), primfunc_name_hint="matmul")


def _concat(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    parts = list(call.args[0].fields) if isinstance(call.args[0], relax.Tuple) else []
    axis = int(call.attrs.axis) % len(call.ty.shape) if call.attrs.axis is not None else 0
    if any(d != 1 for d in _ints(call.ty.shape)[:axis]) or len(parts) < 2:
        return call.op.get_attr("FLegalize")(bb, call)
    return bb.call_te(join, parts, axis, primfunc_name_hint="concatenate")


def _conv(layout: str) -> Legalize:
    """Relax conv attributes -> te.conv; other layouts than NC* keep upstream's legalization."""

    def legalize(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        a = call.attrs
        if str(a.data_layout) != layout or str(a.kernel_layout) != "OI" + layout[2:]:
            return call.op.get_attr("FLegalize")(bb, call)
        n = len(layout) - 2
        pad = _ints(a.padding)
        before, after = pad[:n], pad[n:]

        def te_conv(x: te.Tensor, w: te.Tensor) -> te.Tensor:
            return conv(x, w, _ints(a.strides), tuple(zip(before, after, strict=True)), _ints(a.dilation), int(a.groups))

        return bb.call_te(te_conv, call.args[0], call.args[1], primfunc_name_hint=f"conv{n}d")

    return legalize


def _by_zero(op: str, compute: Callable[[te.Tensor, te.Tensor], te.Tensor]) -> Legalize:
    """Keep a constant zero a tensor: upstream writes it into the definition, where 0 x becomes 0 for any x."""

    def legalize(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        if not any(scalar_constant(a) == 0 for a in call.args):
            return call.op.get_attr("FLegalize")(bb, call)
        return bb.call_te(compute, *call.args, primfunc_name_hint=op)

    return legalize


LEGALIZE: dict[str, Legalize] = {
    "relax.multiply": _by_zero("multiply", topi.multiply),
    "relax.divide": _by_zero("divide", topi.divide),
    "relax.clip": _clip,
    "relax.concat": _concat,
    "relax.matmul": _matmul,
    "relax.nn.conv1d": _conv("NCW"),
    "relax.nn.conv2d": _conv("NCHW"),
    "relax.nn.conv3d": _conv("NCDHW"),
}


def legalize(mod: tvm.IRModule) -> tvm.IRModule:
    """Every operator call of ``main`` becomes a ``call_tir``. Calls that differ in their arguments' values alone share a kernel
    that is defined once."""
    ops = {b.value.op for block in mod["main"].body.blocks for b in block.bindings if isinstance(b.value, relax.Call)}
    rules = {o.name: LEGALIZE.get(o.name) or o.get_attr("FLegalize") for o in ops if isinstance(o, ir.Op)}
    kept: dict[Any, _Kernel] = {}
    return relax.transform.LegalizeOps({name: _once(rule, kept) for name, rule in rules.items() if rule is not None})(mod)


@dataclass(frozen=True)
class _Kernel:
    """A legalized call without its arguments: which of the operator's they are, by position."""

    call: relax.Call
    positions: tuple[int, ...]

    def of(self, args: Sequence[relax.Expr]) -> relax.Call:
        """The kernel called with these arguments of an operator."""
        c = self.call
        return ir.Call(c.op, [c.args[0], relax.Tuple([args[i] for i in self.positions]), *c.args[2:]], c.attrs, c.ty_args)


def _once(rule: Legalize, kept: dict[Any, _Kernel]) -> Legalize:
    """``rule``, which runs once for calls of one operator, attributes and argument types."""

    def legalize(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        args = _flat(call.args)
        given = [a for a in args if isinstance(a, relax.Var)]
        repeats = [given.index(a) for a in given]
        key = tvm_ffi.StructuralKey([call.op, call.attrs, [a.ty if isinstance(a, relax.Var) else a for a in args], repeats])
        if (kernel := kept.get(key)) is not None:
            return kernel.of(args)
        new = rule(bb, call)
        if isinstance(new, relax.Call) and getattr(new.op, "name", "") == "relax.call_tir":
            places = [next((i for i, a in enumerate(args) if a.same_as(f)), None) for f in new.args[1].fields]
            if None not in places:
                kept[key] = _Kernel(new, tuple(p for p in places if p is not None))
        return new

    return legalize


def _flat(args: Iterable[relax.Expr]) -> list[relax.Expr]:
    """Arguments with tuples spread out."""
    return [f for a in args for f in (_flat(a.fields) if isinstance(a, relax.Tuple) else [a])]
