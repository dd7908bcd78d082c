"""``from_relax``: anybody's Relax function as a Module, differentiable and compilable like one written here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tilegrad._base.errors import ModelImportError, UsageError
from tilegrad.frontend.apply import as_tensor, results
from tilegrad.frontend.nn.module import Module, Parameter
from tilegrad.frontend.recording import FLOATS, Type, fail_line, record
from tilegrad.frontend.recording import from_relax as from_relax_type
from tilegrad.frontend.tensor import tensor

if TYPE_CHECKING:
    from tilegrad.relax_ext.graph import GraphBuilder


class _Inline:
    """The bindings of a Relax function, emitted in place. Compared by identity."""

    def __init__(self, module: Any, entry: str) -> None:
        from tilegrad._base.tvm import relax, tvm

        passes = [relax.transform.Normalize(), relax.transform.ConvertToDataflow(), relax.transform.Normalize()]
        self.module = tvm.transform.Sequential(passes)(module)
        self.entry = entry

    @property
    def function(self) -> Any:
        """The function."""
        return self.module[self.entry]

    def _for(self, types: Sequence[Type]) -> Any:
        """The function with its symbolic extents bound to these types'. Raises UsageError when they do not fit."""
        from tilegrad._base.tvm import relax, tirx

        f = self.function
        sizes: dict[Any, int] = {}
        for p, t in zip(f.params, types, strict=True):
            where = fail_line() + f"from_relax, input '{p.name}'"
            if str(p.ty.dtype) != t.dtype or len(p.ty.shape) != len(t.shape):
                raise UsageError(where, repr(t), str(p.ty))
            for extent, n in zip(p.ty.shape, t.shape, strict=True):
                if isinstance(extent, tirx.IntImm):
                    if int(extent) != n:
                        raise UsageError(where, repr(t), str(p.ty))
                elif sizes.setdefault(extent, n) != n:
                    raise UsageError(where, f"{extent} = {n}", f"{sizes[extent]}, as in another input")
        if not sizes:
            return f
        bound = relax.transform.BindSymbolicVars({str(k.name): v for k, v in sizes.items()}, self.entry)(self.module)
        return relax.transform.Normalize()(bound)[self.entry]

    def infer(self, types: Sequence[Type]) -> tuple[Type, ...]:
        """Types of the results, flattened."""
        flat: list[Type] = []

        def visit(t: Any) -> None:
            if isinstance(t, tuple):
                for x in t:
                    visit(x)
            else:
                flat.append(t)

        visit(from_relax_type(self._for(types).ret_ty))
        return tuple(flat)

    def emit(self, builder: GraphBuilder, args: Sequence[Any]) -> list[Any]:
        """Emit the bindings of ``main`` on ``args``."""
        from tilegrad._base.tvm import relax

        types = [Type.of(tuple(int(d) for d in a.ty.shape), str(a.ty.dtype)) for a in args]
        function = self._for(types)
        copier = _Copier(self.module, builder, dict(zip(function.params, args, strict=True)))
        for block in function.body.blocks:
            for binding in block.bindings:
                if not isinstance(binding, relax.VarBinding):
                    raise ModelImportError("from_relax", f"a {type(binding).__name__}", "ordinary bindings")
                copier.env[binding.var] = builder.emit(copier.copy(binding.value))
        out: list[Any] = []

        def visit(e: Any) -> None:
            if isinstance(e, relax.Tuple):
                for f in e.fields:
                    visit(f)
            elif hasattr(e.ty, "fields"):
                for i in range(len(e.ty.fields)):
                    visit(builder.emit(relax.TupleGetItem(e, i)))
            else:
                out.append(builder.emit(e))

        visit(copier.copy(function.body.body))
        return out


class _Copier:
    """Rewrites expressions of one module for another builder: vars by ``env``, kernels added under new names."""

    def __init__(self, module: Any, builder: GraphBuilder, env: dict[Any, Any]) -> None:
        self.module, self.builder, self.env = module, builder, env
        self._globals: dict[Any, Any] = {}

    def copy(self, e: Any) -> Any:
        """The expression in the new builder."""
        from tilegrad._base.tvm import ir, relax, tirx

        if isinstance(e, relax.Var) and e in self.env:
            return self.env[e]
        if isinstance(e, relax.Tuple):
            return relax.Tuple([self.copy(f) for f in e.fields])
        if isinstance(e, relax.TupleGetItem):
            return relax.TupleGetItem(self.copy(e.tuple_value), e.index)
        if isinstance(e, ir.GlobalVar):
            function = self.module[e]
            if not isinstance(function, tirx.PrimFunc):
                raise ModelImportError(
                    "from_relax", f"a call of the Relax function '{e.name_hint}'", "one function",
                    "Inline it first: relax.transform.InlinePrivateFunctions().",
                )  # fmt: skip
            if any(not isinstance(d, tirx.IntImm) for p in function.params for d in getattr(p.ty, "shape", ())):
                raise ModelImportError(
                    "from_relax", f"the kernel '{e.name_hint}' with symbolic extents", "kernels of static shapes",
                    "Bind them first: relax.transform.BindSymbolicVars, before the operators are legalized.",
                )  # fmt: skip
            if e not in self._globals:
                self._globals[e] = self.builder.block_builder.add_func(function, e.name_hint)
            return self._globals[e]
        if isinstance(e, ir.Call):
            if not isinstance(e.op, ir.Op):
                raise ModelImportError("from_relax", f"a call of {e.op}", "calls of operators and kernels")
            return ir.Call(e.op, [self.copy(a) for a in e.args], e.attrs, e.ty_args)
        if isinstance(e, (relax.If, relax.Function)):
            raise ModelImportError("from_relax", f"a {type(e).__name__}", "straight-line code")
        return e


class RelaxModule(Module):
    """A Relax function as a Module: float weights are parameters, others buffers, under the names they came with."""

    def __init__(self, inline: _Inline, inputs: Sequence[str], weights: Mapping[str, Any]) -> None:
        super().__init__()
        self._inline = inline
        self._order = [*inputs, *weights]
        self.inputs = tuple(inputs)
        for name, value in weights.items():
            array = value.numpy() if hasattr(value, "numpy") else np.asarray(value)
            if array.dtype.name in FLOATS:
                self.register_parameter(name, Parameter(array))
            else:
                self.register_buffer(name, tensor(array))

    def forward(self, *args: Any) -> Any:
        """The function's results: one Tensor, or a tuple."""
        if len(args) != len(self.inputs):
            raise UsageError(
                fail_line() + "from_relax module", f"{len(args)} inputs", f"{len(self.inputs)}: {', '.join(self.inputs)}"
            )
        weights = [getattr(self, n) for n in self._order[len(args) :]]
        nodes = [as_tensor(x)._node for x in [*args, *weights]]
        outs = results(record("call", tuple(nodes), (self._inline,)))
        return outs[0] if len(outs) == 1 else tuple(outs)


def from_relax(mod: Any, params: Mapping[str, Any] | Sequence[Any] | None = None, entry: str = "main") -> RelaxModule:
    """A Module from an IRModule.

    Parameters
    ----------
    mod: an IRModule whose ``entry`` is one straight-line Relax function; symbolic extents are bound at each call.
    params: values of the weights, by name of the function's parameters, or in the order of its last parameters (what
        ``relax.frontend.detach_params`` returns for ``entry`` does too). The other parameters are inputs.

    Raises ModelImportError for functions with control flow or calls of other Relax functions, UsageError for unknown names.
    """
    from tilegrad._base.tvm import relax, tvm

    if isinstance(mod, relax.Function):
        mod = tvm.IRModule({entry: mod.with_attr("global_symbol", entry)})
    if not isinstance(mod, tvm.IRModule) or entry not in [g.name_hint for g in mod.get_global_vars()]:
        raise UsageError("from_relax, argument 'mod'", type(mod).__name__, f"an IRModule with a function '{entry}'")
    inline = _Inline(mod, entry)
    names = [p.name for p in inline.function.params]
    weights = _weights(names, params, entry)
    inputs = [n for n in names if n not in weights]
    if names[: len(inputs)] != inputs:
        raise UsageError(
            "from_relax, argument 'params'", f"weights {sorted(weights)}", "the last parameters of the function, in any order"
        )
    return RelaxModule(inline, inputs, {n: weights[n] for n in names if n in weights})


def _weights(names: Sequence[str], params: Any, entry: str) -> dict[str, Any]:
    if params is None:
        return {}
    if isinstance(params, Mapping) and set(params) == {entry} and entry not in names:
        params = params[entry]
    if isinstance(params, Mapping):
        unknown = [n for n in params if n not in names]
        if unknown:
            raise UsageError("from_relax, argument 'params'", f"unknown {unknown}", f"names among {list(names)}")
        return dict(params)
    values = list(params)
    return dict(zip(names[len(names) - len(values) :], values, strict=True))


__all__ = ["RelaxModule", "from_relax"]
