"""Rules of activations and softmaxes; where the output determines the derivative, the output is what is kept."""

from __future__ import annotations

import math

from tilegrad.relax_ext import ops
from tilegrad.relax_ext.vjp.table import vjp_rule
from tilegrad.relax_ext.vjp.values import F, Node, Value

_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772, 1.0507009873554805  # Klambauer et al. 2017


@vjp_rule("relax.nn.relu")
def relu(n: Node, g: Value):
    """z = max(x, 0): g where z > 0, else 0; 0 at x = 0."""
    return F.where(n.out <= 0.0, 0.0, g)


@vjp_rule("relax.nn.leakyrelu")
def leakyrelu(n: Node, g: Value):
    """z = x if x > 0 else a x: g, or a g; a g at x = 0."""
    return F.where(n.x > 0.0, g, g * n.attr("alpha"))


@vjp_rule("relax.nn.prelu")
def prelu(n: Node, g: Value):
    """z = x if x > 0 else a x with a per channel: (g or a g; the channel's sum of g x over x <= 0)."""
    axis = n.attr("axis") % n.x.ndim
    slope = n.y.reshape([n.y.shape[0] if i == axis else 1 for i in range(n.x.ndim)])
    ga = F.where(n.x > 0.0, 0.0, g * n.x).sum([i for i in range(n.x.ndim) if i != axis])
    return F.where(n.x > 0.0, g, g * slope), ga if n.y.shape[0] > 1 else ga.sum().reshape([1])


@vjp_rule("relax.nn.selu")
def selu(n: Node, g: Value):
    """z = s x if x > 0 else s a (e^x - 1): s g, or g (z + s a)."""
    return F.where(n.out > 0.0, g * _SELU_SCALE, g * (n.out + _SELU_SCALE * _SELU_ALPHA))


@vjp_rule("relax.nn.gelu")
def gelu(n: Node, g: Value):
    """z = x P(x), P the normal distribution: g (P(x) + x p(x)), p its density."""
    x = n.x
    cdf = F.erf(x * math.sqrt(0.5)) * 0.5 + 0.5
    pdf = F.exp(x * x * -0.5) * (1.0 / math.sqrt(2.0 * math.pi))
    return g * (cdf + x * pdf)


@vjp_rule("relax.nn.gelu_tanh")
def gelu_tanh(n: Node, g: Value):
    """z = x (1 + t) / 2, t = tanh(c (x + k x^3)): g ((1 + t) / 2 + x (1 - t^2) c (1 + 3 k x^2) / 2)."""
    x, c, k = n.x, math.sqrt(2.0 / math.pi), 0.044715
    square = x * x
    t = F.tanh(x * (square * k + 1.0) * c)
    return g * ((t + 1.0) * 0.5 + x * (1.0 - t * t) * (square * (3.0 * k) + 1.0) * (0.5 * c))


@vjp_rule("relax.nn.silu")
def silu(n: Node, g: Value):
    """z = x s(x), s the sigmoid: g (s + z (1 - s))."""
    s = F.sigmoid(n.x)
    return g * (s + n.out * (1.0 - s))


@vjp_rule("relax.nn.softplus")
def softplus(n: Node, g: Value):
    """z = log(1 + e^(b x)) / b, x above the threshold: g sigmoid(b x); g above the threshold."""
    scaled = n.x * n.attr("beta")
    return F.where(scaled > n.attr("threshold"), g, g * F.sigmoid(scaled))


@vjp_rule("relax.nn.softmax")
def softmax(n: Node, g: Value):
    """z = e^x / sum e^x: z (g - sum g z)."""
    z = n.out
    gz = g * z
    return gz - z * gz.sum([n.attr("axis") % z.ndim], keepdims=True)


@vjp_rule("relax.nn.log_softmax")
def log_softmax(n: Node, g: Value):
    """z = x - log sum e^x: g - e^z sum g."""
    return g - F.exp(n.out) * g.sum([n.attr("axis") % g.ndim], keepdims=True)


@vjp_rule("relax.nn.dropout")
def dropout(n: Node, g: list[Value | None]):
    """Relax's dropout is the identity (inference); for training there is tilegrad.dropout."""
    return g[0]


@vjp_rule("tilegrad.dropout")
def tilegrad_dropout(n: Node, g: Value):
    """z = x with elements dropped by counter-based random numbers: g with the same elements dropped; no mask is kept."""
    return g.tape.bind(ops.dropout(g.expr, n.y.expr, rate=n.attr("rate")))
