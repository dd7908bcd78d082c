"""Function transforms: ``grad``, ``vjp``, ``jvp``, ``jacobian``, ``hessian`` and the tape. All compose, to any order."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilegrad._base.errors import ShapeError
from tilegrad.frontend import evaluate
from tilegrad.frontend import functions as F
from tilegrad.frontend.apply import as_tensor
from tilegrad.frontend.arguments import check_all
from tilegrad.frontend.elementwise import detach
from tilegrad.frontend.gradients import argument, cotangent_for, flatten, ones_for, unflatten, vjp_nodes
from tilegrad.frontend.recording import fail_line, grad_mode, ordered, state, usage
from tilegrad.frontend.tensor import Tensor, tensor, zeros

stop_gradient = detach

Fn = Callable[..., Any]


def grad(f: Fn, argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Fn:
    """The gradient of ``f`` by one argument, or by several.

    ``f`` returns a single float element (with ``has_aux``, a pair of it and anything). Arguments may be nested containers;
    the gradient has the same structure. Raises ShapeError when the result has more than one element.
    """
    both = value_and_grad(f, argnums, has_aux)

    @functools.wraps(f)
    def gradient(*args: Any, **kwargs: Any) -> Any:
        value, g = both(*args, **kwargs)
        return (g, value[1]) if has_aux else g

    return gradient


def value_and_grad(f: Fn, argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Fn:
    """``(f(...), gradient)`` in one go; see ``grad``."""

    @functools.wraps(f)
    def both(*args: Any, **kwargs: Any) -> Any:
        with grad_mode(True):
            variables, call = _with_variables(f, args, kwargs, argnums)
            out = call()
            loss = as_tensor(out[0] if has_aux else out)
            wrt = [v._node for v, _ in variables[1]]
            grads = vjp_nodes([loss._node], [ones_for(loss, "grad")], wrt, True)
        return out, _regroup(grads, variables[0], argnums)

    return both


def _with_variables(f: Fn, args: Sequence[Any], kwargs: dict[str, Any], argnums: int | Sequence[int]) -> Any:
    """Replace the leaves of the chosen arguments by fresh variables."""
    chosen = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    if any(not -len(args) <= i < len(args) for i in chosen):
        raise usage("differentiation, argument 'argnums'", f"{argnums} for {len(args)} arguments", "positions of arguments")
    new = list(args)
    specs: list[tuple[int, Any]] = []
    variables: list[tuple[Tensor, Any]] = []
    for i in chosen:
        leaves, spec = flatten(args[i])
        fresh = [argument(x) for x in leaves]
        new[i] = unflatten(fresh, spec)
        specs.append((len(leaves), spec))
        variables += [(v, None) for v in fresh]

    def call() -> Any:
        state.transforms += 1
        try:
            return f(*new, **kwargs)
        finally:
            state.transforms -= 1

    return (specs, variables), call


def _regroup(grads: Sequence[Any], specs: Sequence[tuple[int, Any]], argnums: int | Sequence[int]) -> Any:
    out, at = [], 0
    for n, spec in specs:
        out.append(unflatten(grads[at : at + n], spec))
        at += n
    return out[0] if isinstance(argnums, int) else tuple(out)


def vjp(f: Fn, *primals: Any) -> tuple[Any, Fn]:
    """``(f(*primals), pull)``; ``pull(cotangent)`` gives one gradient per primal, a tuple."""
    with grad_mode(True):
        (specs, variables), call = _with_variables(f, primals, {}, tuple(range(len(primals))))
        out = call()
    outs, _ = flatten(out)
    outs = [as_tensor(o) for o in outs]

    def pull(cotangent: Any) -> tuple[Any, ...]:
        given, _ = flatten(cotangent)
        if len(given) != len(outs):
            raise usage("vjp", f"{len(given)} cotangents", f"{len(outs)}, one per result")
        cots = [cotangent_for(o, g, "vjp") for o, g in zip(outs, given, strict=True)]
        with grad_mode(True):
            grads = vjp_nodes([o._node for o in outs], cots, [v._node for v, _ in variables], True)
        return tuple(_regroup(grads, specs, list(range(len(primals)))))

    return out, pull


def jvp(f: Fn, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """``(f(*primals), J @ tangents)``: the derivative along a direction, as the vjp of the vjp by its cotangent."""
    for name, given in (("primals", primals), ("tangents", tangents)):
        if not isinstance(given, (tuple, list)):
            raise usage(
                f"jvp, argument '{name}'", f"a {type(given).__name__}", "a tuple, one element for each argument of the function"
            )
    flat_t, flat_p = ([as_tensor(x) for x in flatten(tuple(given))[0]] for given in (tangents, primals))
    if len(flat_t) != len(flat_p):
        raise usage("jvp", f"{len(flat_t)} tangents", f"{len(flat_p)}, one per primal")
    for p, t in zip(flat_p, flat_t, strict=True):
        if p.shape != t.shape:
            raise ShapeError(
                f"{fail_line()}jvp, argument 'tangents'", f"a tangent of shape {t.shape}", f"the primal's shape {p.shape}"
            )
    with grad_mode(True):
        (_, variables), call = _with_variables(f, tuple(primals), {}, tuple(range(len(primals))))
        out = call()
        flat, spec = flatten(out)
        outs = [as_tensor(o) for o in flat]
        # pull is linear in its cotangent u; its own vjp, at any u, applied to the tangents is J @ tangents
        cots = [argument(tensor(np.zeros(o.shape), o.dtype)) for o in outs]
        wrt = [v._node for v, _ in variables]
        pulled = vjp_nodes([o._node for o in outs], [c._node for c in cots], wrt, True)
        directions = [cotangent_for(p, t, "jvp") for p, t in zip(pulled, flat_t, strict=True)]
        pushed = vjp_nodes([p._node for p in pulled], directions, [c._node for c in cots], True)
    return out, unflatten(pushed, spec)


def jacobian(f: Fn, argnums: int = 0) -> Fn:
    """All derivatives of ``f``'s result by one argument: shape result + argument.

    One compiled row, called once per element of the result, so the number of kernels does not depend on the extents.
    """

    if not isinstance(argnums, int):
        raise usage("jacobian or hessian, argument 'argnums'", repr(argnums), "the position of one argument")

    @functools.wraps(f)
    def rows(*args: Any) -> Tensor:
        with grad_mode(True):
            (_, variables), call = _with_variables(f, args, {}, argnums)
            out = call()
            if not isinstance(out, Tensor):
                raise usage("jacobian", f"a result of type {type(out).__name__}", "one Tensor")
            if len(variables) != 1:
                raise usage("jacobian", f"an argument of {len(variables)} arrays", "one array")
            x = variables[0][0]
            return _rows(out, x)

    return rows


def _rows(out: Tensor, x: Tensor) -> Tensor:
    """Row by row when the values are known now; stacked into one recording while tracing or inside another transform."""
    leaves = [n for n in ordered([out._node], lambda n: n.inputs) if n.op in ("leaf", "argument")]
    known = not state.transforms and all(n.value is not None for n in leaves)
    if not out.size:
        return zeros((*out.shape, *x.shape), x.dtype)
    cells = []
    for i in range(out.size):
        seed = tensor(np.arange(out.size) == i, out.dtype).reshape(out.shape)
        (g,) = vjp_nodes([out._node], [seed._node], [x._node], True)
        if known:
            evaluate.value_of(g._node)
        cells.append(g)
    return F.stack(cells).reshape(*out.shape, *x.shape)


def hessian(f: Fn, argnums: int = 0) -> Fn:
    """Second derivatives of a single element by one argument: shape argument + argument."""
    return jacobian(grad(f, argnums), argnums)


class GradientTape:
    """``with GradientTape() as tape: ...; tape.gradient(loss, [W])``, as in TensorFlow.

    Tensors with requires_grad are watched; ``watch`` adds others. A tape serves one ``gradient`` unless ``persistent``.
    """

    def __init__(self, persistent: bool = False) -> None:
        self.persistent = persistent
        self._used = False
        self._mode: Any = None
        self._watched: list[Tensor] = []

    def __enter__(self) -> GradientTape:
        self._mode = grad_mode(True)
        self._mode.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._mode.__exit__(*exc)

    def watch(self, x: Tensor) -> None:
        """Differentiate by ``x`` too, from here on."""
        if not x.requires_grad:
            x.requires_grad_()

    def gradient(self, target: Tensor, sources: Any, output_gradients: Any = None) -> Any:
        """Gradients of ``target`` (summed if it has more than one element) in the structure of ``sources``; None for those
        it does not depend on. Raises UsageError for a second call on a tape that is not persistent."""
        if self._used and not self.persistent:
            raise usage(
                "GradientTape.gradient",
                "a tape that has been used",
                "one gradient per tape",
                "Use GradientTape(persistent=True).",
            )
        self._used = True
        leaves, spec = flatten(sources)
        reached = set(ordered([target._node], lambda n: n.inputs))
        cotangent = (
            cotangent_for(target, output_gradients, "gradient")
            if output_gradients is not None
            else F.broadcast_to(tensor(1.0, target.dtype), target.shape)._node
        )
        known = [x for x in leaves if x._node in reached and x.requires_grad]
        if not known:
            return unflatten([None] * len(leaves), spec)
        grads = iter(vjp_nodes([target._node], [cotangent], [x._node for x in known], True))
        return unflatten([next(grads) if any(x is k for k in known) else None for x in leaves], spec)


check_all(globals(), "grad value_and_grad vjp jvp jacobian hessian".split())
