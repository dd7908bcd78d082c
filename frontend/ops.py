"""The table of operators: how each recorded name becomes one Relax call.

An entry's ``emit`` takes the inputs as Relax expressions, then the attributes that the node carries.
``expects`` is what a person reads when Relax refuses the arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tilegrad._base.tvm import relax
from tilegrad.relax_ext.ops.reshape import reshape

R = relax.op
NN = relax.op.nn


@dataclass(frozen=True)
class OpSpec:
    """One operator."""

    emit: Callable[..., Any]
    expects: str


OPS: dict[str, OpSpec] = {}


def _add(expects: str, **emits: Callable[..., Any]) -> None:
    OPS.update({name: OpSpec(emit, expects) for name, emit in emits.items()})


def _unary(names: str, module: Any, expects: str) -> None:
    _add(expects, **{name: getattr(module, name) for name in names.split()})


# ***** elementwise *****
_unary(
    "exp log sqrt rsqrt tanh sigmoid sin cos tan sinh cosh asin acos atan asinh acosh atanh erf",
    R,
    "an array of floats",
)
_unary("abs negative sign floor ceil round trunc square isnan isinf isfinite", R, "an array of numbers")
_unary("logical_not bitwise_not", R, "an array of booleans or whole numbers")
_unary("relu gelu gelu_tanh silu", NN, "an array of floats")
_add(
    "an array of floats",
    softplus=lambda x, beta, threshold: NN.softplus(x, beta, threshold),
    leaky_relu=NN.leakyrelu,
    prelu=NN.prelu,
)
_unary(
    "add subtract multiply divide power maximum minimum floor_divide floor_mod mod atan2 "
    "equal not_equal less less_equal greater greater_equal "
    "logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor left_shift right_shift",
    R,
    "two arrays of one dtype whose shapes broadcast together",
)
_add("a boolean array and two arrays of one dtype, all of shapes that broadcast together", where=R.where)
_add("an array and a dtype", astype=R.astype)
_add("an array of numbers and two bounds", clip=lambda x, low, high: R.clip(x, _prim(low), _prim(high)))


def _prim(value: float | int) -> Any:
    return relax.prim_value(value)


# ***** reductions *****
_add(
    "an array and axes it has",
    **{
        name: (lambda f: lambda x, axes, keepdims: f(x, None if axes is None else list(axes), keepdims))(getattr(R, name))
        for name in "sum mean max min prod variance std".split()
    },
    argmax=lambda x, axis, keepdims: R.argmax(x, axis, keepdims),
    argmin=lambda x, axis, keepdims: R.argmin(x, axis, keepdims),
    cumsum=lambda x, axis: R.cumsum(x, axis),
    cumprod=lambda x, axis: R.cumprod(x, axis),
    softmax=lambda x, axis: NN.softmax(x, axis),
    log_softmax=lambda x, axis: NN.log_softmax(x, axis),
    sort=lambda x, axis, descending: R.sort(x, axis, descending),
    argsort=lambda x, axis, descending: R.argsort(x, axis, descending, "int64"),
    topk=lambda x, k, axis, largest: R.topk(x, k, axis, "both", largest, "int64"),
)

# ***** shape and data movement *****
_add(
    "a shape with as many elements as the array",
    reshape=reshape,
)
_add("a shape that the array broadcasts to", broadcast_to=lambda x, shape: R.broadcast_to(x, shape))
_add("every axis of the array exactly once", permute_dims=lambda x, axes: R.permute_dims(x, list(axes)))
_add(
    "arrays of one dtype whose shapes agree but for the joined axis",
    concat=lambda *a: R.concat(list(a[:-1]), a[-1]),
    stack=lambda *a: R.stack(list(a[:-1]), a[-1]),
)
_add(
    "an array and axes it has",
    split=lambda x, where, axis: R.split(x, where if isinstance(where, int) else list(where), axis),
    flip=lambda x, axis: R.flip(x, axis),
    tile=lambda x, repeats: R.tile(x, list(repeats)),
    repeat=lambda x, repeats, axis: R.repeat(x, repeats, axis),
    tril=lambda x, k: R.tril(x, k),
    triu=lambda x, k: R.triu(x, k),
    pad=lambda x, widths, mode, value: NN.pad(x, list(widths), mode, value),
    strided_slice=lambda x, axes, begin, end, strides: R.strided_slice(x, list(axes), list(begin), list(end), list(strides)),
)
_add(
    "an array, whole-number indices into it and an axis it has",
    take=lambda x, i, axis: R.take(x, i, axis, mode="clip"),
    gather_elements=lambda x, i, axis: R.gather_elements(x, i, axis),
    gather_nd=lambda x, i, batch_dims: R.gather_nd(x, i, batch_dims),
    scatter_elements=lambda x, i, u, axis, reduction: R.scatter_elements(x, i, u, axis, reduction),
    one_hot=lambda i, depth, axis, dtype: R.one_hot(i, _number(1, dtype), _number(0, dtype), depth, axis),
)
_add(
    "a shape and a dtype",
    full=lambda shape, value, dtype: R.full(shape, relax.const(value, dtype), dtype),
    arange=lambda start, stop, step, dtype: R.arange(start, stop, step, dtype),
)


def _number(value: int, dtype: str) -> Any:
    from tilegrad._base.tvm import tirx

    return tirx.FloatImm(dtype, value) if "float" in dtype else tirx.IntImm(dtype, value)


# ***** contractions *****
_add("two arrays of one dtype, the last axis of the first as long as the last but one of the second", matmul=R.matmul)


def _conv(rank: int, transposed: bool) -> Callable[..., Any]:
    name = f"conv{rank}d" + ("_transpose" if transposed else "")
    f = getattr(NN, name)
    if transposed:
        return lambda x, w, stride, padding, output_padding, dilation, groups: f(
            x, w, list(stride), list(padding) * 2, list(output_padding), list(dilation), groups
        )
    return lambda x, w, stride, padding, dilation, groups: f(x, w, list(stride), list(padding) * 2, list(dilation), groups)


for _rank in (1, 2, 3):
    _add(
        f"an image batch[channels x {_rank}-D] and a kernel [out, in/groups x {_rank}-D] of one dtype",
        **{f"conv{_rank}d": _conv(_rank, False), f"conv{_rank}d_transpose": _conv(_rank, True)},
        **{
            f"{kind}_pool{_rank}d": (
                lambda f: (
                    lambda x, size, stride, padding, dilation, ceil, count: f(
                        x, list(size), list(stride), list(padding) * 2, list(dilation), ceil, count
                    )
                )
            )(getattr(NN, f"{kind}_pool{_rank}d"))
            for kind in ("max", "avg")
        },
        **{f"adaptive_avg_pool{_rank}d": (lambda f: lambda x, size: f(x, list(size)))(getattr(NN, f"adaptive_avg_pool{_rank}d"))},
    )

# ***** operators of our own *****


def _own(name: str, *names: str) -> Callable[..., Any]:
    """An operator of ``relax_ext.ops``; the last ``len(names)`` arguments are its attributes."""

    def emit(*args: Any) -> Any:
        from tilegrad.relax_ext import ops

        at = len(args) - len(names)
        return getattr(ops, name)(*args[:at], **dict(zip(names, args[at:], strict=True)))

    return emit


_add("a state int64[2]", random_key=_own("random_key", "stream"))
_add("a key and a shape", random_uniform=_own("random_uniform", "shape", "dtype"))
_add("an array of floats and a key", dropout=_own("dropout", "rate"))
_add(
    "arrays [..., m, d], [..., n, d], [..., n, e] of one dtype and leading shape, and perhaps [..., m, n] to add",
    attention=_own("attention", "scale", "diagonal"),
)
_add("an array", stop_gradient=_own("stop_gradient"))
