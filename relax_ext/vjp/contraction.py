"""Rules of contractions. Transposes stay ``permute_dims`` beside ``matmul``, where lowering folds them into the kernel."""

from __future__ import annotations

from math import prod

from tilegrad.relax_ext.vjp.table import composition, vjp_rule
from tilegrad.relax_ext.vjp.values import F, Node, Value


@vjp_rule("relax.matmul")
def matmul(n: Node, g: Value):
    """z = x y: (g y^T, x^T g); vectors count as one row or one column, batch axes broadcast."""
    x, y = n.x, n.y
    if x.ndim == 1 and y.ndim == 1:
        return g * y, g * x
    if x.ndim == 1:
        g, x = g.reshape([*g.shape[:-1], 1, g.shape[-1]]), x.reshape([1, x.shape[0]])
        gx = product(g, y.mT)
        return gx.sum(range(gx.ndim - 2)).reshape(n.x.shape), product(x.mT, g)
    if y.ndim == 1:
        g = g.reshape([*g.shape, 1])
        return product(g, y.reshape([1, y.shape[0]])), product(_rows(x).mT, _rows(g)).reshape(y.shape)
    if y.ndim == 2 and x.ndim > 2:  # one product over all rows in place of a batch of products and their sum
        return product(_rows(g), y.mT).reshape(x.shape), product(_rows(x).mT, _rows(g))
    return product(g, y.mT), product(x.mT, g)


def product(x: Value, y: Value) -> Value:
    """x @ y, accumulated in float32 at least."""
    return F.matmul(x, y, out_dtype="float32") if x.dtype in ("float16", "bfloat16") else F.matmul(x, y)


def _rows(x: Value) -> Value:
    """All leading axes as one."""
    return x.reshape([prod(x.shape[:-1]), x.shape[-1]])


@vjp_rule("relax.outer")
def outer(n: Node, g: Value):
    """z = x y^T: (g y, g^T x)."""
    return product(g, n.y), product(g.mT, n.x)


@composition("relax.einsum")
def einsum(n: Node):
    """z = einsum(spec, *operands): differentiated as transposes, diagonals, sums and batched products."""
    return contract(n.attr("subscripts"), n.x)


def contract(spec: str, operands: list[Value]) -> Value:
    """einsum by pairwise contraction from the left; every index is summed as soon as nobody needs it."""
    inputs, output = _parse(spec, operands)
    terms = list(zip(inputs, operands, strict=True))
    terms = [_diagonal(labels, x) for labels, x in terms]
    labels, x = terms[0]
    labels, x = _sum_out(labels, x, set(output).union(*(t[0] for t in terms[1:])))
    for k, (other, y) in enumerate(terms[1:], 1):
        later = set(output).union(*(t[0] for t in terms[k + 1 :]))
        other, y = _sum_out(other, y, later | set(labels))
        labels, x = _pair(labels, x, other, y, later)
    return x.permute([labels.index(c) for c in output])


def _parse(spec: str, operands: list[Value]) -> tuple[list[str], str]:
    spec = spec.replace(" ", "")
    left, arrow, output = spec.partition("->")
    inputs = left.split(",")
    if "." in left:  # "..." stands for labels of its own, aligned to the right
        free = [c for c in "ZYXWVUTSRQPONMLKJIHGFEDCBA" if c not in spec]
        ranks = [x.ndim - len(i.replace("...", "")) for i, x in zip(inputs, operands, strict=True)]
        shared = "".join(free[: max(ranks)])
        inputs = [i.replace("...", shared[len(shared) - r :]) for i, r in zip(inputs, ranks, strict=True)]
        output = output.replace("...", shared)
    if not arrow:
        every = "".join(inputs)
        output = "".join(sorted(c for c in set(every) if every.count(c) == 1))
    return inputs, output


def _diagonal(labels: str, x: Value) -> tuple[str, Value]:
    """Repeated labels become one, by a mask and a sum."""
    for c in [c for c in dict.fromkeys(labels) if labels.count(c) > 1]:
        while labels.count(c) > 1:
            i, j = labels.index(c), labels.rindex(c)
            size = x.shape[i]
            eye = x.tape.bind(_eye(size, x.dtype)).reshape([size if a in (i, j) else 1 for a in range(x.ndim)])
            x = (x * eye).sum([j])
            labels = labels[:j] + labels[j + 1 :]
    return labels, x


def _eye(size: int, dtype: str):
    from tilegrad._base.tvm import relax

    return relax.op.eye(size, size, 0, dtype)


def _sum_out(labels: str, x: Value, needed: set[str]) -> tuple[str, Value]:
    axes = [i for i, c in enumerate(labels) if c not in needed]
    return "".join(c for c in labels if c in needed), x.sum(axes)


def _pair(a: str, x: Value, b: str, y: Value, later: set[str]) -> tuple[str, Value]:
    """Contract two terms as one batched matrix product."""
    batch = [c for c in a if c in b and c in later]
    inner = [c for c in a if c in b and c not in later]
    rows, cols = [c for c in a if c not in b], [c for c in b if c not in a]
    size = {**dict(zip(b, y.shape, strict=True)), **dict(zip(a, x.shape, strict=True))}

    def group(labels: str, v: Value, first: list[str], second: list[str]) -> Value:
        v = v.permute([labels.index(c) for c in [*batch, *first, *second]])
        return v.reshape([*(size[c] for c in batch), prod(size[c] for c in first), prod(size[c] for c in second)])

    z = product(group(a, x, rows, inner), group(b, y, inner, cols))
    labels = [*batch, *rows, *cols]
    return "".join(labels), z.reshape([size[c] for c in labels]).astype(x.dtype)
