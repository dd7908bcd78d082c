"""Rules of Relax's losses, as compositions: targets are compared with class numbers, so no gather is needed."""

from __future__ import annotations

from math import prod

from tilegrad._base.tvm import relax
from tilegrad.relax_ext.vjp.table import composition
from tilegrad.relax_ext.vjp.values import F, Node, Value


@composition("relax.nn.nll_loss")
def nll_loss(n: Node):
    """z = -w[t] x[t], none, summed, or averaged by weight; targets equal to ignore_index count for nothing."""
    x, t, *weights = n.args
    axis = 1 if x.ndim > 1 else 0
    hot = chosen(x, t, axis, n.attr("ignore_index"))
    weight = [w.reshape([w.shape[0] if i == axis else 1 for i in range(x.ndim)]) for w in weights]
    per = -F.where(hot, x * weight[0] if weight else x, 0.0).sum([axis])
    if n.attr("reduction") == "none":
        return per
    if n.attr("reduction") == "sum":
        return per.sum()
    if not weight and n.attr("ignore_index") < 0 and n.attr("ignore_index") != -1:
        valid = (t.equals(int(n.attr("ignore_index")))).astype(x.dtype).sum()
        return per.sum() / (float(prod(t.shape)) - valid)
    total = F.where(hot, weight[0] if weight else x.tape.constant(1.0, x.dtype), 0.0).sum()
    return per.sum() / total


def chosen(x: Value, t: Value, axis: int, ignore_index: int) -> Value:
    """True at each target's class, and nowhere for ignored targets."""
    classes = x.tape.bind(relax.op.arange(0, x.shape[axis], 1, t.dtype))
    classes = classes.reshape([x.shape[axis] if i == axis else 1 for i in range(x.ndim)])
    target = t.reshape([*t.shape[:axis], 1, *t.shape[axis:]])
    hot = classes.equals(target)
    if 0 <= ignore_index < x.shape[axis]:
        hot = F.logical_and(hot, F.not_equal(target, int(ignore_index)))
    return hot


@composition("relax.nn.cross_entropy_with_logits")
def cross_entropy_with_logits(n: Node):
    """z = -sum(x y) / batch: differentiated in both."""
    total = -(n.x * n.y).sum()
    return total * (1.0 / n.x.shape[0]) if n.x.ndim > 1 else total
