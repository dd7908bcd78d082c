"""Rules of operators that move, repeat or pick out elements at places known when the graph is built."""

from __future__ import annotations

from math import prod

from tilegrad.relax_ext.ops.register import plain
from tilegrad.relax_ext.vjp.expressions import permutation
from tilegrad.relax_ext.vjp.table import composition, vjp_rule
from tilegrad.relax_ext.vjp.values import F, Node, Value


@vjp_rule("relax.reshape", "relax.squeeze", "relax.expand_dims", "relax.flatten", "relax.nn.batch_flatten")
def reshape(n: Node, g: Value):
    """z has the elements of x in another shape: g in the shape of x."""
    return g.reshape(n.x.shape)


@vjp_rule("relax.permute_dims")
def permute_dims(n: Node, g: Value):
    """z = x with axes permuted: g permuted back."""
    axes = permutation(n.call)
    return g.permute([axes.index(i) for i in range(len(axes))])


@vjp_rule("relax.broadcast_to")
def broadcast_to(n: Node, g: Value):
    """z repeats x along axes: g summed over them (by the walker)."""
    return g


@vjp_rule("relax.collapse_sum_to", "relax.collapse_sum_like")
def collapse_sum(n: Node, g: Value):
    """z sums x down to a shape it broadcasts from: g broadcast back."""
    return g.broadcast_to(n.x.shape)


@vjp_rule("relax.concat")
def concat(n: Node, g: Value):
    """z = the parts one after another: the pieces of g."""
    axis = n.attr("axis")
    axis = 0 if axis is None else axis % g.ndim
    pieces, at = [], 0
    for part in n.x:
        pieces.append(piece(g, axis, at, at + part.shape[axis]))
        at += part.shape[axis]
    return (pieces,)


def piece(x: Value, axis: int, begin: int, end: int, step: int = 1) -> Value:
    """x[..., begin:end:step, ...]."""
    return F.strided_slice(x, [axis], [begin], [end], [step])


@vjp_rule("relax.split")
def split(n: Node, g: list[Value | None]):
    """The parts of x: their cotangents one after another, zeros where a part has none."""
    axis = n.attr("axis") % n.x.ndim
    outs = n.call.ty.fields
    parts = [p if p is not None else n.tape.zeros([int(d) for d in t.shape], n.x.dtype) for p, t in zip(g, outs, strict=True)]
    return F.concat(parts, axis)


@vjp_rule("relax.stack")
def stack(n: Node, g: Value):
    """z = the parts along a new axis: the slices of g."""
    axis = n.attr("axis")
    axis = 0 if axis is None else axis % g.ndim
    return ([piece(g, axis, i, i + 1).reshape(part.shape) for i, part in enumerate(n.x)],)


@vjp_rule("relax.meshgrid")
def meshgrid(n: Node, g: list[Value | None]):
    """z_i repeats x_i along every other axis: each cotangent summed over them."""
    swapped = n.attr("indexing") == "xy" and len(g) > 1
    grads = []
    for i, part in enumerate(g):
        axis = 1 - i if swapped and i < 2 else i
        grads.append(None if part is None else part.sum([a for a in range(part.ndim) if a != axis]))
    return (grads,)


@vjp_rule("relax.tile")
def tile(n: Node, g: Value):
    """z = copies of x side by side: the sum of the copies' cotangents."""
    repeats, shape = list(n.attr("repeats")), list(n.x.shape)
    rank = max(len(repeats), len(shape))
    repeats, shape = [1] * (rank - len(repeats)) + repeats, [1] * (rank - len(shape)) + shape
    split_shape = [d for pair in zip(repeats, shape, strict=True) for d in pair]
    return g.reshape(split_shape).sum([2 * i for i in range(rank)]).reshape(n.x.shape)


@vjp_rule("relax.repeat")
def repeat(n: Node, g: Value):
    """z = each element r times in a row: the sum of each run of g."""
    axis, r = n.attr("axis"), n.attr("repeats")
    shape = [prod(n.x.shape)] if axis is None else list(n.x.shape)
    axis = 0 if axis is None else axis % n.x.ndim
    return g.reshape([*shape[: axis + 1], r, *shape[axis + 1 :]]).sum([axis + 1]).reshape(n.x.shape)


@vjp_rule("relax.flip")
def flip(n: Node, g: Value):
    """z = x reversed along an axis: g reversed."""
    return F.flip(g, n.attr("axis"))


@vjp_rule("relax.reverse_sequence")
def reverse_sequence(n: Node, g: Value):
    """z = x with the start of each sequence reversed: g treated alike, since it is its own inverse."""
    return F.reverse_sequence(g, n.y, n.attr("seq_axis"), n.attr("batch_axis"))


@vjp_rule("relax.strided_slice")
def strided_slice(n: Node, g: Value):
    """z = x[begin:end:step]: g at the places it came from, zeros elsewhere."""
    placed = g
    for axis, (start, step) in _slices(n).items():
        placed = spread(placed, axis, n.x.shape[axis], start, step)
    return placed


def _slices(n: Node) -> dict[int, tuple[int, int]]:
    """axis -> (first index, step), with negative and out-of-range bounds resolved as NumPy does."""
    axes, begin, end = ([plain(v) for v in arg] for arg in n.args[1:4])
    steps = [plain(v) for v in n.args[4]] if len(n.args) > 4 else [1] * len(axes)
    found = {}
    for axis, b, e, s in zip(axes, begin, end, steps, strict=True):
        start, _, step = slice(b, e, s).indices(n.x.shape[axis % n.x.ndim])
        found[axis % n.x.ndim] = (start, step)
    return found


def spread(g: Value, axis: int, extent: int, start: int, step: int) -> Value:
    """An array with ``g`` at start, start + step, ... along ``axis`` and zeros elsewhere."""
    length = g.shape[axis]
    if length == 0:
        return g.tape.zeros([*g.shape[:axis], extent, *g.shape[axis + 1 :]], g.dtype)
    if step < 0:
        g, start, step = F.flip(g, axis), start + (length - 1) * step, -step
    if step > 1:  # one element and step - 1 zeros for each, the last zeros cut off again
        rows = g.reshape([*g.shape[: axis + 1], 1, *g.shape[axis + 1 :]])
        rows = pad(rows, axis + 1, 0, step - 1)
        g = rows.reshape([*g.shape[:axis], length * step, *g.shape[axis + 1 :]])
        g = piece(g, axis, 0, (length - 1) * step + 1)
    return pad(g, axis, start, extent - start - g.shape[axis])


def pad(x: Value, axis: int, before: int, after: int) -> Value:
    """Zeros before and after along one axis."""
    if before == 0 and after == 0:
        return x
    widths = [w for i in range(x.ndim) for w in ((before, after) if i == axis else (0, 0))]
    return F.pad(x, tuple(widths))


@vjp_rule("relax.nn.pad")
def nn_pad(n: Node, g: Value):
    """z = x with a border: the middle of g, plus what the border's copies received (reflect, replicate, circular)."""
    widths, mode = n.attr("pad_width"), n.attr("pad_mode")
    for axis, extent in enumerate(n.x.shape):
        before, after = widths[2 * axis : 2 * axis + 2]
        if before == 0 and after == 0:
            continue
        middle = piece(g, axis, before, before + extent)
        if mode != "constant":
            left, right = piece(g, axis, 0, before), piece(g, axis, before + extent, before + extent + after)
            middle = _fold(middle, left, right, axis, mode, before, after)
        g = middle
    return g


def _fold(g: Value, left: Value, right: Value, axis: int, mode: str, before: int, after: int) -> Value:
    """Add the borders' cotangents where their elements were copied from."""
    extent = g.shape[axis]
    if before:
        if mode == "reflect":
            g = g + pad(F.flip(left, axis), axis, 1, extent - 1 - before)
        elif mode == "replicate":
            g = g + pad(left.sum([axis], True), axis, 0, extent - 1)
        else:
            g = g + pad(left, axis, extent - before, 0)
    if after:
        if mode == "reflect":
            g = g + pad(F.flip(right, axis), axis, extent - 1 - after, 1)
        elif mode == "replicate":
            g = g + pad(right.sum([axis], True), axis, extent - 1, 0)
        else:
            g = g + pad(right, axis, 0, extent - after)
    return g


@vjp_rule("relax.tril", "relax.triu")
def triangle(n: Node, g: Value):
    """z = x with one triangle set to zero: g with the same triangle set to zero."""
    return (F.tril if n.op == "relax.tril" else F.triu)(g, n.y)


@composition("relax.nn.pixel_shuffle")
def pixel_shuffle(n: Node):
    """z = blocks of channels as pixels: a reshape, a transpose and a reshape."""
    r, lead = n.attr("upscale_factor"), list(n.x.shape[:-3])
    c, h, w = n.x.shape[-3:]
    k = len(lead)
    split = n.x.reshape([*lead, c // (r * r), r, r, h, w])
    moved = split.permute([*range(k), k, k + 3, k + 1, k + 4, k + 2])
    return moved.reshape([*lead, c // (r * r), h * r, w * r])


@vjp_rule("relax.slice_scatter")
def slice_scatter(n: Node, g: Value):
    """z = x with x[start:end:step] = y: g with zeros there; g's slice."""
    axis = n.attr("axis") % n.x.ndim
    start, end, step = slice(*(plain(v) for v in n.args[2:5])).indices(n.x.shape[axis])
    gy = piece(g, axis, start, end, step)
    mask = spread(gy.zeros_like() + 1.0, axis, n.x.shape[axis], start, step)
    return F.where(mask > 0.0, 0.0, g), gy


@vjp_rule("relax.layout_transform")
def layout_transform(n: Node, g: Value):
    """z = x laid out by an index map: g laid out by its inverse, padding cut off."""
    inverse, _ = n.call.attrs.index_map.non_surjective_inverse(list(n.x.shape))
    g = F.layout_transform(g, inverse)
    for axis, extent in enumerate(n.x.shape):
        g = piece(g, axis, 0, extent) if g.shape[axis] != extent else g
    return g
