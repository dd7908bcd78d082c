"""Scaled dot-product attention and its gradients, as the stages that one kernel computes tile by tile.

Scores lie as [key, query]: sums over keys then run down columns, and a tile of them is the next product's operand. The
``attention`` annotation of a stage names its part; ``schedules/attention`` reads the stages by it.
"""

from __future__ import annotations

from typing import Any

from tilegrad._base.tvm import te, tirx
from tilegrad.schedules.te.matmul import dims


def attention(
    q: te.Tensor, k: te.Tensor, v: te.Tensor, bias: te.Tensor | None = None, *, scale: float, diagonal: int | None = None
) -> list[te.Tensor]:
    """softmax(q k^T scale + bias) v, and each row's log sum of exponentials (+inf where a row sees nothing: its result is 0).

    q ``[..., m, d]``, k ``[..., n, d]``, v ``[..., n, e]`` with equal leading dimensions; bias ``[..., m, n]``, each of its
    dimensions full or 1, is added. ``diagonal``: query i sees key j where j <= i + diagonal. Results ``[..., m, e]``
    and ``[..., m]``.
    """
    *lead, m, _ = dims(q)
    n, e = dims(v)[-2:]
    dtype = str(q.dtype)
    logits = _logits(q, k, bias, scale, diagonal, "forward")
    rows = [te.reduce_axis((0, n), name=f"k{x}") for x in range(3)]
    high = te.compute((*lead, m), lambda *i: te.max(logits(*i[:-1], rows[0], i[-1]), axis=rows[0]), name="attention_max")
    floor = te.min_value(dtype)

    def exponential(*i: Any) -> Any:
        *b, y, x = i
        return tirx.exp(logits(*i) - tirx.max(high(*b, x), floor))

    weights = te.compute((*lead, n, m), exponential, name="attention_exp", attrs=_part("weights"))
    total = te.compute((*lead, m), lambda *i: te.sum(weights(*i[:-1], rows[1], i[-1]), axis=rows[1]), name="attention_sum")

    def weighted(*i: Any) -> Any:
        *b, c, x = i
        return te.sum(v(*b, rows[2], c) * weights(*b, rows[2], x), axis=rows[2])

    mixed = te.compute((*lead, e, m), weighted, name="attention_mix", attrs=_part("mix"))
    zero, one, inf = (tirx.const(x, dtype) for x in (0, 1, float("inf")))

    def divided(*i: Any) -> Any:
        *b, x, c = i
        t = total(*b, x)
        return mixed(*b, c, x) / tirx.Select(t == zero, one, t)

    out = te.compute((*lead, m, e), divided, name="attention", attrs=_part("out"))

    def logarithm(*i: Any) -> Any:
        t = total(*i)
        blind = t == zero
        return tirx.Select(blind, inf, tirx.max(high(*i), floor) + tirx.log(tirx.Select(blind, one, t)))

    lse = te.compute((*lead, m), logarithm, name="attention_lse", attrs=_part("lse"))
    return [out, lse]


def attention_backward(
    q: te.Tensor, k: te.Tensor, v: te.Tensor, g: te.Tensor, lse: te.Tensor, delta: te.Tensor, bias: te.Tensor | None = None,
    *, scale: float, diagonal: int | None = None,
) -> list[te.Tensor]:  # fmt: skip
    """The cotangents of attention's q, k and v from ``g``, that of its result.

    Each weight is computed again as exp(logit - lse); ``delta [..., m]`` is the sum of g times the result over its last axis.
    """
    *lead, m, d = dims(q)
    n, e = dims(v)[-2:]
    logits = _logits(q, k, bias, scale, diagonal, "backward")
    weights = te.compute(
        (*lead, n, m), lambda *i: tirx.exp(logits(*i) - lse(*i[:-2], i[-1])), name="attention_exp", attrs=_part("weights")
    )
    c = te.reduce_axis((0, e), name="c")
    queries = [te.reduce_axis((0, m), name=f"i{x}") for x in range(2)]
    keys = te.reduce_axis((0, n), name="j")

    def product(shape: tuple[int, ...], name: str, part: str, term: Any, axis: Any) -> te.Tensor:
        body = lambda *i: te.sum(term(*i[:-2], i[-2], i[-1]), axis=axis)  # noqa: E731
        return te.compute((*lead, *shape), body, name=name, attrs=_part(part))

    dw = product((n, m), "attention_dweights", "dweights", lambda *i: v(*i[:-1], c) * g(*i[:-2], i[-1], c), c)

    def slopes(*i: Any) -> Any:
        return weights(*i) * (dw(*i) - delta(*i[:-2], i[-1])) * tirx.const(scale, q.dtype)

    ds = te.compute((*lead, n, m), slopes, name="attention_dscores", attrs=_part("dscores"))
    dq_t = product((d, m), "attention_dq_t", "dq_t", lambda *i: k(*i[:-2], keys, i[-2]) * ds(*i[:-2], keys, i[-1]), keys)
    x, y = queries
    dk = product((n, d), "attention_dk", "dk", lambda *i: ds(*i[:-1], x) * q(*i[:-2], x, i[-1]), x)
    dv = product((n, e), "attention_dv", "dv", lambda *i: weights(*i[:-1], y) * g(*i[:-2], y, i[-1]), y)
    dq = te.compute((*lead, m, d), lambda *i: dq_t(*i[:-2], i[-1], i[-2]), name="attention_dq", attrs=_part("dq"))
    return [dq, dk, dv]


def _part(name: str) -> dict[str, str]:
    return {"attention": name}


def _logits(q: te.Tensor, k: te.Tensor, bias: te.Tensor | None, scale: float, diagonal: int | None, direction: str) -> te.Tensor:
    """[..., key, query]: scaled, biased, minus infinity above the diagonal."""
    *lead, m, d = dims(q)
    n = dims(k)[-2]
    c = te.reduce_axis((0, d), name="d")

    def score(*i: Any) -> Any:
        *b, y, x = i
        return te.sum(k(*b, y, c) * q(*b, x, c), axis=c)

    scores = te.compute((*lead, n, m), score, name="attention_scores", attrs=_part("scores") | {"direction": direction})

    def logit(*i: Any) -> Any:
        *b, y, x = i
        value = scores(*i) * tirx.const(scale, q.dtype)
        if bias is not None:
            at = [0 if extent == 1 else p for extent, p in zip(dims(bias), (*b, x, y), strict=True)]
            value = value + bias(*at)
        return value if diagonal is None else tirx.Select(y <= x + diagonal, value, tirx.const(float("-inf"), q.dtype))

    attrs = _part("logits") | ({} if diagonal is None else {"diagonal": diagonal})
    return te.compute((*lead, n, m), logit, name="attention_logits", attrs=attrs)
