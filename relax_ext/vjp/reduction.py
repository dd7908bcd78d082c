"""Rules of reductions and scans: any axes, with or without keepdims."""

from __future__ import annotations

from math import prod as product

from tilegrad.relax_ext.vjp.table import composition, vjp_rule
from tilegrad.relax_ext.vjp.values import F, Node, Value


def keep(n: Node, v: Value) -> Value:
    """A reduced value with its reduced axes back as axes of length 1."""
    axes = n.axes()
    return v.reshape([1 if i in axes else d for i, d in enumerate(n.x.shape)])


def count(n: Node) -> int:
    """How many elements each result reduces; 1 for none, whose gradient has no elements."""
    return max(1, product(n.x.shape[a] for a in n.axes()))


@vjp_rule("relax.sum")
def sum_(n: Node, g: Value):
    """z = sum x: g to every element."""
    return keep(n, g).broadcast_to(n.x.shape)


@vjp_rule("relax.mean")
def mean(n: Node, g: Value):
    """z = mean x: g / count to every element."""
    return (keep(n, g) * (1.0 / count(n))).broadcast_to(n.x.shape)


@vjp_rule("relax.max", "relax.min")
def extreme(n: Node, g: Value):
    """z = max x or min x: g to the elements that equal z, in equal parts; to the NaNs where z is one and axis is None.

    With axes given, g is NaN throughout a slice that holds a NaN. (PyTorch: max() and amax.)
    """
    hit = n.x.equals(keep(n, n.out))
    if n.attr("axis") is None and "float" in n.x.dtype:
        hit = F.logical_or(hit, F.isnan(n.x))
    hit = hit.astype(g.dtype)
    return hit * (keep(n, g) / hit.sum(n.axes(), keepdims=True))


@composition("relax.variance")
def variance(n: Node):
    """z = mean (x - mean x)^2 (divided by the count, not count - 1): differentiated as that composition."""
    axes = list(n.axes())
    centred = n.x - F.mean(n.x, axes, True)
    return F.mean(centred * centred, axes, n.attr("keepdims"))


@vjp_rule("relax.std")
def std(n: Node, g: Value):
    """z = sqrt(variance x): g (x - mean x) / (count z); 0 where z = 0."""
    centred, z = n.x - F.mean(n.x, list(n.axes()), True), keep(n, n.out)
    return centred * F.where(z.equals(0), 0.0, keep(n, g) / (z * float(count(n))))


@vjp_rule("relax.prod")
def prod(n: Node, g: Value):
    """z = prod x: g times the product of the other elements, by exclusive products from both ends, so zeros are exact."""
    axes = n.axes()
    rest = [i for i in range(n.x.ndim) if i not in axes]
    order = [*rest, *axes]
    flat = n.x.permute(order).reshape([*(n.x.shape[i] for i in rest), product(n.x.shape[a] for a in axes)])
    before = F.cumprod(flat, len(rest), exclusive=True)
    after = F.flip(F.cumprod(F.flip(flat, len(rest)), len(rest), exclusive=True), len(rest))
    others = (before * after).reshape([n.x.shape[i] for i in order])
    return keep(n, g) * others.permute([order.index(i) for i in range(n.x.ndim)])


@vjp_rule("relax.cumsum")
def cumsum(n: Node, g: Value):
    """z = running sums: running sums of g from the other end."""
    axis, exclusive = n.attr("axis"), bool(n.attr("exclusive"))
    if axis is None:
        g, axis = g.reshape((product(n.x.shape),)), 0
    axis %= g.ndim
    return F.flip(F.cumsum(F.flip(g, axis), axis, exclusive=exclusive), axis).reshape(n.x.shape)


@composition("relax.cumprod")
def cumprod(n: Node):
    """z_i = prod over j <= i of x_j (j < i if exclusive): differentiated as a product over a masked square, exact at zeros."""
    axis, x = n.attr("axis"), n.x
    if axis is None:
        x, axis = x.reshape((product(x.shape),)), 0
    axis %= x.ndim
    order = [i for i in range(x.ndim) if i != axis] + [axis]
    length = x.shape[axis]
    rows = x.permute(order)
    rows = rows.reshape([*rows.shape[:-1], 1, length]).broadcast_to([*rows.shape[:-1], length, length])
    ones = F.broadcast_to(x.tape.constant(1.0, x.dtype), (length, length))
    mask = F.tril(ones, -1 if n.attr("exclusive") else 0) > 0.0
    result = F.prod(F.where(mask, rows, 1.0), [rows.ndim - 1], False)
    return result.permute([order.index(i) for i in range(x.ndim)])
