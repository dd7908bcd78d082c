"""Table rows: elementwise operators and reductions."""

from __future__ import annotations

import numpy as np

from tests.gradients.checker import Arg, Case
from tilegrad._base.tvm import relax, tirx

R = relax.op
S = (3, 4)


def unary(name: str, domain: str = "normal", **kw) -> Case:
    """One tensor in, one out."""
    return Case(
        f"relax.{name}",
        getattr(R, name.removeprefix("nn."), None) or getattr(R.nn, name.removeprefix("nn.")),
        (Arg(S, domain),),
        **kw,
    )


def binary(name: str, a: str = "normal", b: str = "normal", **kw) -> list[Case]:
    """Two tensors: equal shapes, and broadcast both ways."""
    f = getattr(R, name)
    return [
        Case(f"relax.{name}", f, (Arg(S, a), Arg(S, b)), **kw),
        Case(f"relax.{name}", f, (Arg((3, 1), a), Arg((4,), b)), note="broadcast", **kw),
    ]


MASK = np.array([[True, False, True, False]] * 3)

CASES: list[Case] = [
    *binary("add"),
    *binary("subtract"),
    *binary("multiply"),
    *binary("divide", b="away"),
    unary("negative"),
    *binary("power", "positive"),
    *binary("mod", "positive", "positive"),
    *binary("floor_mod", "fraction", "positive"),
    Case("relax.power", lambda x: R.power(x, relax.const(3.0, "float64")), (Arg(S),), note="cube"),
    Case("relax.ewise_fma", R.ewise_fma, (Arg(S), Arg(S), Arg(S))),
    *binary("atan2", "away", "away"),
    *binary("log_add_exp"),
    *binary("maximum"),
    *binary("minimum"),
    Case("relax.where", lambda c, x, y: R.where(c, x, y), (Arg((), values=MASK), Arg(S), Arg((4,)))),
    Case(
        "relax.where", lambda c, x, y: R.where(c, x, y), (Arg((), values=MASK[:, :1]), Arg((4,)), Arg((3, 1))), note="broadcast"
    ),
    Case("relax.clip", lambda x: R.clip(x, tirx.FloatImm("float64", -0.5), tirx.FloatImm("float64", 0.7)), (Arg(S),)),
    unary("abs", "away"),
    unary("exp"),
    unary("log", "positive"),
    unary("sqrt", "positive"),
    unary("rsqrt", "positive"),
    unary("square"),
    unary("sigmoid"),
    unary("tanh"),
    unary("sin"),
    unary("cos"),
    unary("tan", "unit"),
    unary("asin", "unit"),
    unary("acos", "unit"),
    unary("atan"),
    unary("sinh"),
    unary("cosh"),
    unary("asinh"),
    unary("acosh", "above1"),
    unary("atanh", "unit"),
    unary("erf"),
    Case("relax.astype", lambda x: R.astype(R.astype(x, "float32"), "float64"), (Arg(S),), tol=1e-3, eps=1e-2),
    unary("nn.relu", "away"),
    unary("nn.leakyrelu", "away"),
    unary("nn.selu", "away"),
    unary("nn.gelu"),
    unary("nn.gelu_tanh"),
    unary("nn.silu"),
    Case("relax.nn.softplus", lambda x: R.nn.softplus(x, 2.0, 3.0), (Arg(S),)),
    Case("relax.nn.prelu", lambda x, a: R.nn.prelu(x, a, 1), (Arg((2, 3, 2), "away"), Arg((3,)))),
    Case("relax.nn.prelu", lambda x, a: R.nn.prelu(x, a, 1), (Arg((2, 3, 2), "away"), Arg((1,))), note="shared"),
    unary("nn.softmax"),
    Case("relax.nn.softmax", lambda x: R.nn.softmax(x, 0), (Arg((3, 4, 2)),), note="axis 0"),
    unary("nn.log_softmax"),
    Case("relax.nn.log_softmax", lambda x: R.nn.log_softmax(x, 1), (Arg((3, 4, 2)),), note="axis 1"),
    Case("relax.nn.dropout", lambda x: relax.TupleGetItem(R.nn.dropout(x, 0.3), 0), (Arg(S),)),
]


def _reductions() -> list[Case]:
    rows: list[Case] = []
    for name, domain in [("sum", "normal"), ("mean", "normal"), ("max", "distinct"), ("min", "distinct"), ("variance", "normal"),
                         ("std", "normal"), ("prod", "away")]:  # fmt: skip
        f = getattr(R, name)
        for note, axis, keep in [("all", None, False), ("axes 0 2, kept", [0, 2], True), ("axis -2", [-2], False)]:
            rows.append(Case(f"relax.{name}", lambda x, f=f, a=axis, k=keep: f(x, a, k), (Arg((2, 3, 4), domain),), note=note))
    for name in ("cumsum", "cumprod"):
        f = getattr(R, name)
        rows.append(Case(f"relax.{name}", lambda x, f=f: f(x, 1), (Arg((2, 4)),)))
        rows.append(Case(f"relax.{name}", lambda x, f=f: f(x, 0, exclusive=True), (Arg((3, 2)),), note="exclusive"))
        rows.append(Case(f"relax.{name}", lambda x, f=f: f(x), (Arg((2, 2)),), note="flat"))
    return rows


CASES += _reductions()
