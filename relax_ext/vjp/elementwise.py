"""Rules of elementwise operators, in the order of Relax's list: arithmetic, selection, mathematics."""

from __future__ import annotations

import math

from tilegrad.relax_ext.vjp.expressions import scalar_constant
from tilegrad.relax_ext.vjp.table import vjp_rule
from tilegrad.relax_ext.vjp.values import F, Node, Value

# --- arithmetic ---


@vjp_rule("relax.add")
def add(n: Node, g: Value):
    """z = x + y: (g, g)."""
    return g, g


@vjp_rule("relax.subtract")
def subtract(n: Node, g: Value):
    """z = x - y: (g, -g)."""
    return g, -g


@vjp_rule("relax.multiply")
def multiply(n: Node, g: Value):
    """z = x y: (g y, g x)."""
    return g * n.y, g * n.x


@vjp_rule("relax.divide")
def divide(n: Node, g: Value):
    """z = x / y: (g / y, -g z / y)."""
    gx = g / n.y
    return gx, -(gx * n.out)


@vjp_rule("relax.negative")
def negative(n: Node, g: Value):
    """z = -x: -g."""
    return -g


@vjp_rule("relax.power")
def power(n: Node, g: Value):
    """z = x^y: (g y x^(y-1), g z log x). The first is 0 where y = 0; the second is 0 where x = 0 and y >= 0."""
    x, y = n.x, n.y
    c = scalar_constant(y)
    if c is not None:
        return g * power_of(x, c - 1) * c if c != 0 else x.zeros_like()
    zero_y = y.equals(0)
    gx = F.where(zero_y, 0.0, g * y * x ** F.where(zero_y, 1.0, y - 1))
    flat = F.logical_and(x.equals(0), y >= 0)
    return gx, F.where(flat, 0.0, g * n.out * F.log(F.where(flat, 1.0, x)))


def power_of(x: Value, c: float) -> Value | float:
    """x^c in the cheapest form."""
    if c == 0:
        return 1.0
    return x if c == 1 else x * x if c == 2 else x ** float(c)


@vjp_rule("relax.mod")
def mod(n: Node, g: Value):
    """z = x - trunc(x / y) y: (g, -g trunc(x / y))."""
    return g, -(g * F.trunc(n.x / n.y))


@vjp_rule("relax.floor_mod")
def floor_mod(n: Node, g: Value):
    """z = x - floor(x / y) y: (g, -g floor(x / y))."""
    return g, -(g * F.floor(n.x / n.y))


@vjp_rule("relax.ewise_fma")
def ewise_fma(n: Node, g: Value):
    """w = x y + z: (g y, g x, g)."""
    return g * n.y, g * n.x, g


@vjp_rule("relax.atan2")
def atan2(n: Node, g: Value):
    """z = atan2(x, y): (g y, -g x) / (x^2 + y^2)."""
    scaled = g / (n.x * n.x + n.y * n.y)
    return scaled * n.y, -(scaled * n.x)


@vjp_rule("relax.log_add_exp")
def log_add_exp(n: Node, g: Value):
    """z = log(e^x + e^y): (g e^(x-z), g e^(y-z))."""
    return g * F.exp(n.x - n.out), g * F.exp(n.y - n.out)


# --- selection ---


@vjp_rule("relax.where")
def where(n: Node, g: Value):
    """z = x where c, else y: (none, g where c else 0, 0 where c else g)."""
    return None, F.where(n.x, g, 0.0), F.where(n.x, 0.0, g)


@vjp_rule("relax.maximum")
def maximum(n: Node, g: Value):
    """z = max(x, y): g to the larger; half to each at a tie."""
    return select_extreme(n, g, n.x < n.y, n.x > n.y)


@vjp_rule("relax.minimum")
def minimum(n: Node, g: Value):
    """z = min(x, y): g to the smaller; half to each at a tie."""
    return select_extreme(n, g, n.x > n.y, n.x < n.y)


def select_extreme(n: Node, g: Value, lost: Value, won: Value) -> tuple[Value, Value]:
    """Nothing to an argument that lost, half of g to each at a tie; all of it to both where one is NaN."""
    shared = F.where(n.x.equals(n.y), g * 0.5, g)
    return F.where(lost, 0.0, shared), F.where(won, 0.0, shared)


@vjp_rule("relax.clip")
def clip(n: Node, g: Value):
    """z = min(max(x, a), b): g where a <= x <= b (bounds included), else 0."""
    low, high = (float(b.value) for b in n.args[1:])
    return F.where(F.logical_and(n.x >= low, n.x <= high), g, 0.0)


@vjp_rule("relax.abs")
def absolute(n: Node, g: Value):
    """z = |x|: g sign(x); 0 at x = 0."""
    return g * F.sign(n.x)


# --- mathematics ---


@vjp_rule("relax.exp")
def exp(n: Node, g: Value):
    """z = e^x: g z."""
    return g * n.out


@vjp_rule("relax.log")
def log(n: Node, g: Value):
    """z = log x: g / x."""
    return g / n.x


@vjp_rule("relax.sqrt")
def sqrt(n: Node, g: Value):
    """z = sqrt(x): g / (2 z)."""
    return g / (n.out * 2.0)


@vjp_rule("relax.rsqrt")
def rsqrt(n: Node, g: Value):
    """z = x^(-1/2): -g z^3 / 2, which needs only the output."""
    z = n.out
    return g * (z * z * z) * -0.5


@vjp_rule("relax.square")
def square(n: Node, g: Value):
    """z = x^2: 2 g x."""
    return g * n.x * 2.0


@vjp_rule("relax.sigmoid")
def sigmoid(n: Node, g: Value):
    """z = 1 / (1 + e^-x): g z (1 - z)."""
    return g * n.out * (1.0 - n.out)


@vjp_rule("relax.tanh")
def tanh(n: Node, g: Value):
    """z = tanh x: g (1 - z^2)."""
    return g * (1.0 - n.out * n.out)


@vjp_rule("relax.sin")
def sin(n: Node, g: Value):
    """z = sin x: g cos x."""
    return g * F.cos(n.x)


@vjp_rule("relax.cos")
def cos(n: Node, g: Value):
    """z = cos x: -g sin x."""
    return -(g * F.sin(n.x))


@vjp_rule("relax.tan")
def tan(n: Node, g: Value):
    """z = tan x: g (1 + z^2)."""
    return g * (n.out * n.out + 1.0)


@vjp_rule("relax.asin")
def asin(n: Node, g: Value):
    """z = asin x: g / sqrt(1 - x^2)."""
    return g * F.rsqrt(1.0 - n.x * n.x)


@vjp_rule("relax.acos")
def acos(n: Node, g: Value):
    """z = acos x: -g / sqrt(1 - x^2)."""
    return -(g * F.rsqrt(1.0 - n.x * n.x))


@vjp_rule("relax.atan")
def atan(n: Node, g: Value):
    """z = atan x: g / (1 + x^2)."""
    return g / (n.x * n.x + 1.0)


@vjp_rule("relax.sinh")
def sinh(n: Node, g: Value):
    """z = sinh x: g cosh x."""
    return g * F.cosh(n.x)


@vjp_rule("relax.cosh")
def cosh(n: Node, g: Value):
    """z = cosh x: g sinh x."""
    return g * F.sinh(n.x)


@vjp_rule("relax.asinh")
def asinh(n: Node, g: Value):
    """z = asinh x: g / sqrt(x^2 + 1)."""
    return g * F.rsqrt(n.x * n.x + 1.0)


@vjp_rule("relax.acosh")
def acosh(n: Node, g: Value):
    """z = acosh x: g / sqrt(x^2 - 1)."""
    return g * F.rsqrt(n.x * n.x - 1.0)


@vjp_rule("relax.atanh")
def atanh(n: Node, g: Value):
    """z = atanh x: g / (1 - x^2)."""
    return g / (1.0 - n.x * n.x)


@vjp_rule("relax.erf")
def erf(n: Node, g: Value):
    """z = erf x: g 2 / sqrt(pi) e^(-x^2)."""
    return g * F.exp(-(n.x * n.x)) * (2.0 / math.sqrt(math.pi))


@vjp_rule("relax.astype")
def astype(n: Node, g: Value):
    """z = x in another float type: g, cast back by the walker; integers and booleans carry no gradient."""
    return g
