"""The walker: what it emits, what it refuses, regions, and whole models against closed forms."""

from __future__ import annotations

import numpy as np
import pytest

from tests.gradients.checker import compile_graph
from tilegrad._base.errors import DTypeError, ShapeError, UnsupportedOperatorError, UsageError
from tilegrad._base.tvm import ir, relax, topi
from tilegrad.relax_ext import ops
from tilegrad.relax_ext.gradient import grad, vjp
from tilegrad.relax_ext.graph import GraphBuilder
from tilegrad.relax_ext.region import checkpoint, custom_vjp
from tilegrad.relax_ext.vjp.expressions import op_name

R = relax.op


def emitted(builder: GraphBuilder, start: int = 0) -> list[str]:
    """Names of the operators bound from ``start`` on."""
    return [
        op_name(e).removeprefix("relax.") if isinstance(e, ir.Call) else type(e).__name__ for _, e in builder.bindings[start:]
    ]


def evaluate(builder: GraphBuilder, results: list[relax.Var], feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Compile and run."""
    for i, r in enumerate(results):
        builder.output(f"r{i}", r)
    out = compile_graph(builder.finish())(feeds)
    return [out[f"r{i}"] for i in range(len(results))]


def test_linear_layer_keeps_transposes_beside_matmul_and_emits_nothing_else() -> None:
    b = GraphBuilder()
    x, w = b.input("x", (8, 4), "float32"), b.input("w", (3, 4), "float32")
    y = b.emit(R.matmul(x, b.emit(R.permute_dims(w))))
    g = b.input("g", (8, 3), "float32")
    start = len(b.bindings)
    gx, gw = vjp(b, [y], [g], [x, w])
    # dx = g w needs no transpose at all; dw = g^T x comes out in w's layout.
    assert sorted(emitted(b, start)) == ["matmul", "matmul", "permute_dims"]
    assert [tuple(map(int, v.ty.shape)) for v in (gx, gw)] == [(8, 4), (3, 4)]


def test_only_requested_gradients_are_emitted() -> None:
    b = GraphBuilder()
    x, w = b.input("x", (8, 4), "float32"), b.input("w", (4, 3), "float32")
    y = b.emit(R.matmul(x, w))
    g = b.input("g", (8, 3), "float32")
    start = len(b.bindings)
    vjp(b, [y], [g], [w])
    assert emitted(b, start) == ["permute_dims", "matmul"]


def test_no_zeros_for_inputs_without_influence_and_integers_stay_out() -> None:
    b = GraphBuilder()
    x, unused = b.input("x", (4,), "float32"), b.input("unused", (4,), "float32")
    k = b.emit(R.astype(x, "int32"))
    y = b.emit(R.add(R.sum(R.exp(x)), R.sum(R.astype(k, "float32"))))
    start = len(b.bindings)
    gx, gu = grad(b, y, [x, unused])
    assert gu is None
    assert "zeros" not in emitted(b, start) and "astype" not in emitted(b, start)
    (value,) = evaluate(b, [gx], {"x": np.arange(4, dtype="float32"), "unused": np.zeros(4, "float32")})
    np.testing.assert_allclose(value, np.exp(np.arange(4)), rtol=1e-6)


def test_work_is_shared_with_the_forward_pass() -> None:
    b = GraphBuilder()
    x = b.input("x", (4,), "float32")
    s = b.emit(R.sigmoid(x))
    y = b.emit(R.sum(R.nn.silu(x)))  # silu's rule needs sigmoid(x), which exists
    start = len(b.bindings)
    grad(b, y, [x])
    assert "sigmoid" not in emitted(b, start)
    assert s is not None


def test_gradient_by_an_intermediate_and_by_what_it_depends_on() -> None:
    b = GraphBuilder()
    x = b.input("x", (3,), "float64")
    h = b.emit(R.multiply(x, x))
    y = b.emit(R.sum(R.multiply(h, h)))  # y = sum x^4
    gh, gx = grad(b, y, [h, x])
    at = np.array([1.0, -2.0, 3.0])
    vh, vx = evaluate(b, [gh, gx], {"x": at})
    np.testing.assert_allclose(vh, 2 * at**2)
    np.testing.assert_allclose(vx, 4 * at**3)


def test_third_order() -> None:
    b = GraphBuilder()
    x = b.input("x", (3,), "float64")
    y = b.emit(R.power(x, relax.const(5.0, "float64")))
    for _ in range(3):
        (y,) = grad(b, b.emit(R.sum(y)), [x])
    at = np.array([1.0, 2.0, 0.5])
    np.testing.assert_allclose(evaluate(b, [y], {"x": at})[0], 60 * at**2)


def test_expression_of_scalars_with_every_kind_of_reuse() -> None:
    # c = a + b; d = a b + b^3; e = c - d; f = e^2; g = f / 2 + 10 / f, with a = -4, b = 2
    b = GraphBuilder()
    p, q = b.input("p", (), "float64"), b.input("q", (), "float64")
    const = lambda v: relax.const(v, "float64")  # noqa: E731
    c = R.add(p, q)
    d = b.emit(R.add(R.multiply(p, q), R.power(q, const(3.0))))
    e = b.emit(R.subtract(c, d))
    f = b.emit(R.multiply(e, e))
    g = b.emit(R.add(R.divide(f, const(2.0)), R.divide(const(10.0), f)))
    gp, gq = grad(b, g, [p, q])
    vp, vq = evaluate(b, [gp, gq], {"p": np.array(-4.0), "q": np.array(2.0)})
    # dg/de = e - 20 / e^3 with e = -2; de/dp = 1 - q = -1; de/dq = 1 - p - 3 q^2 = -7
    dg = -2.0 - 20.0 / -8.0
    np.testing.assert_allclose([vp, vq], [-dg, -7.0 * dg])


def test_every_missing_rule_is_listed_with_its_lines() -> None:
    b = GraphBuilder()
    x = b.input("x", (4,), "float32")
    a = b.emit(relax.Call(ir.Op.get("tilegrad.test_without_rule"), [x]), "model.py:3")
    c = b.emit(relax.Call(ir.Op.get("tilegrad.test_without_rule"), [a]), "model.py:4")
    d = b.emit(relax.Call(ir.Op.get("tilegrad.test_without_rule_either"), [c]), "model.py:9")
    with pytest.raises(UnsupportedOperatorError) as info:
        grad(b, b.emit(R.sum(d)), [x])
    text = str(info.value)
    assert "tilegrad.test_without_rule: 2 call(s), at model.py:3, model.py:4" in text
    assert "tilegrad.test_without_rule_either: 1 call(s), at model.py:9" in text
    assert "@vjp_rule" in text and "custom_vjp" in text


ops.register("tilegrad.test_without_rule", lambda x: x, topi.identity)
ops.register("tilegrad.test_without_rule_either", lambda x: x, topi.identity)


def test_an_operator_without_a_rule_off_the_path_does_no_harm() -> None:
    b = GraphBuilder()
    x, z = b.input("x", (4,), "float32"), b.input("z", (4,), "float32")
    a = b.emit(relax.Call(ir.Op.get("tilegrad.test_without_rule"), [z]))
    assert grad(b, b.emit(R.sum(R.multiply(x, a))), [x])[0] is not None


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda b, x, k: grad(b, b.emit(R.exp(x)), [x]), ShapeError, "a scalar"),
        (lambda b, x, k: grad(b, b.emit(R.sum(x)), [k]), DTypeError, "float tensor"),
        (lambda b, x, k: grad(b, b.emit(R.sum(k)), [x]), DTypeError, "loss"),
        (lambda b, x, k: vjp(b, [b.emit(R.exp(x))], [], [x]), UsageError, "one for each"),
        (lambda b, x, k: vjp(b, [b.emit(R.exp(x))], [b.emit(R.sum(x))], [x]), ShapeError, r"output's shape \(4,\)"),
        (lambda b, x, k: vjp(b, [b.emit(R.exp(x))], [b.emit(R.astype(x, "float64"))], [x]), DTypeError, "float64"),
    ],
    ids=["loss not scalar", "integer target", "integer loss", "too few cotangents", "cotangent's shape", "cotangent's dtype"],
)
def test_bad_input(make, error, words) -> None:
    b = GraphBuilder()
    x, k = b.input("x", (4,), "float32"), b.input("k", (4,), "int32")
    with pytest.raises(error, match=words):
        make(b, x, k)


def test_stop_gradient() -> None:
    b = GraphBuilder()
    x = b.input("x", (3,), "float64")
    y = b.emit(R.sum(R.multiply(x, ops.stop_gradient(R.multiply(x, x)))))
    (gx,) = grad(b, y, [x])
    at = np.array([1.0, -2.0, 3.0])
    np.testing.assert_allclose(evaluate(b, [gx], {"x": at})[0], at**2)


def mlp_block(b: GraphBuilder, w: relax.Var):
    """x -> tanh(tanh(x w) w)."""
    return lambda x: b.emit(R.tanh(R.matmul(R.tanh(R.matmul(x, w)), w)))


@pytest.mark.parametrize("order", [1, 2])
def test_checkpoint_gives_the_same_gradient_and_recomputes(order: int) -> None:
    values = {"x": np.linspace(-1, 1, 12).reshape(3, 4), "w": np.linspace(-0.5, 0.7, 16).reshape(4, 4)}
    found = []
    for wrap in (False, True):
        b = GraphBuilder()
        x, w = b.input("x", (3, 4), "float64"), b.input("w", (4, 4), "float64")
        h = checkpoint(b, mlp_block(b, w), x)[0] if wrap else mlp_block(b, w)(x)
        start = len(b.bindings)
        grads = grad(b, b.emit(R.sum(R.multiply(h, h))), [x, w])
        if order == 2:
            grads = grad(b, b.emit(R.sum(R.exp(grads[1]))), [x, w])
        names = emitted(b, start)
        assert names.count("tilegrad.barrier") == (1 if wrap else 0) or order == 2
        if order == 1:
            assert names.count("tanh") == (2 if wrap else 0)
        found.append(evaluate(b, grads, values))
    for plain, wrapped in zip(*found, strict=True):
        np.testing.assert_allclose(plain, wrapped, rtol=1e-12)


def test_checkpoints_nest_and_keep_the_rules_inside() -> None:
    values = {"x": np.linspace(-1, 1, 12).reshape(3, 4), "w": np.linspace(-0.5, 0.7, 16).reshape(4, 4)}
    found, barriers = [], []
    for depth in (0, 1, 2, 3):
        b = GraphBuilder()
        x, w = b.input("x", (3, 4), "float64"), b.input("w", (4, 4), "float64")

        def tripled(v, b=b):  # exp with another gradient than its own
            return custom_vjp(b, lambda u: b.emit(R.exp(u)), lambda i, o, g: [R.multiply(g[0], relax.const(3.0, "float64"))], v)[
                0
            ]

        def nested(v, level, b=b, w=w, tripled=tripled):
            if level == 0:
                return tripled(mlp_block(b, w)(v))
            return checkpoint(b, lambda u: mlp_block(b, w)(nested(u, level - 1)), v)[0]

        h = nested(x, depth)
        for _ in range(3 - depth):  # the same function at every depth
            h = mlp_block(b, w)(h)
        start = len(b.bindings)
        grads = grad(b, b.emit(R.sum(R.multiply(h, h))), [x, w])
        barriers.append(emitted(b, start).count("tilegrad.barrier"))
        found.append(evaluate(b, grads, values))
    assert barriers == [0, 1, 2, 3]  # one where each level is computed again
    for nest in found[1:]:
        for ours, plain in zip(nest, found[0], strict=True):
            np.testing.assert_allclose(ours, plain, rtol=1e-12)


def test_custom_vjp_replaces_the_gradient_and_hides_what_is_inside() -> None:
    b = GraphBuilder()
    x = b.input("x", (3,), "float64")

    def forward(v):
        return b.emit(relax.Call(ir.Op.get("tilegrad.test_without_rule"), [R.round(v)]))

    def backward(inputs, outputs, cotangents):  # straight through, times 3
        return [R.multiply(cotangents[0], relax.const(3.0, "float64"))]

    (y,) = custom_vjp(b, forward, backward, x)
    (gx,) = grad(b, b.emit(R.sum(R.multiply(y, y))), [x])
    at = np.array([0.4, 1.6, -2.2])
    np.testing.assert_allclose(evaluate(b, [gx], {"x": at})[0], 6.0 * np.round(at))


def test_custom_vjp_checks_what_backward_returns() -> None:
    b = GraphBuilder()
    x = b.input("x", (3,), "float64")
    (y,) = custom_vjp(b, lambda v: b.emit(R.exp(v)), lambda *_: [], x)
    with pytest.raises(UsageError, match="one for each of 1 inputs"):
        grad(b, b.emit(R.sum(y)), [x])
