"""Function transforms against closed forms and PyTorch."""

import dataclasses

import numpy as np
import pytest

import tilegrad as tg
from tests.frontend.many import virtual_machine
from tilegrad.frontend import evaluate
from tilegrad.frontend.gradients import to_arrays
from tilegrad.relax_ext import driver

X = np.array([0.5, -1.0, 2.0])


@pytest.fixture
def vm():
    """Values by TVM's virtual machine: the recording is tested, not the kernels."""
    with virtual_machine():
        yield


def f64(a):
    return tg.tensor(np.asarray(a, "float64"))


def test_grad_to_third_order():
    g = tg.grad(lambda x: (x**4).sum())
    first = g(f64(X))
    second = tg.grad(lambda x: g(x).sum())(f64(X))
    third = tg.grad(lambda x: tg.grad(lambda y: g(y).sum())(x).sum())(f64(X))
    for ours, closed in zip(to_arrays([first, second, third]), [4 * X**3, 12 * X**2, 24 * X], strict=True):
        np.testing.assert_allclose(ours, closed, rtol=1e-12)


def test_containers_argnums_and_aux(vm):
    def f(params, x):
        y = x @ params["w"] + params["b"][0]
        return (y * y).sum(), y

    w, b, x = np.ones((2, 1)), np.array([0.5]), np.array([[1.0, 2.0]])
    (value, y), (gp, gx) = tg.value_and_grad(f, argnums=(0, 1), has_aux=True)({"w": f64(w), "b": [f64(b)]}, f64(x))
    np.testing.assert_allclose(value.numpy(), 3.5**2)
    np.testing.assert_allclose(y.numpy(), [[3.5]])
    np.testing.assert_allclose(gp["w"].numpy(), 7 * x.T)
    np.testing.assert_allclose(gp["b"][0].numpy(), [7.0])
    np.testing.assert_allclose(gx.numpy(), 7 * w.T)


def test_a_closure_on_the_argument_is_a_constant(vm):
    """No confusion of perturbations: the inner derivative must not see the outer use of x."""
    x = f64(3.0)
    assert tg.grad(lambda y: x * y)(x).item() == 3.0
    outer = tg.grad(lambda x: x * tg.grad(lambda y: x * y)(x))
    assert outer(f64(3.0)).item() == pytest.approx(6.0)


def test_vjp_and_jvp_are_transposes(vm):
    a = np.random.default_rng(0).standard_normal((3, 2))

    def f(x):
        return tg.tanh(x @ f64(a)) * x.sum()

    v, w = np.array([1.0, -2.0, 0.5]), np.array([0.3, 0.7])
    out, pull = tg.vjp(f, f64(X))
    _, push = tg.jvp(f, (f64(X),), (f64(v),))
    (g,) = pull(f64(w))
    y = np.tanh(X @ a)
    jacobian = (1 - y**2)[:, None] * a.T * X.sum() + y[:, None]
    np.testing.assert_allclose(out.numpy(), y * X.sum(), rtol=1e-12)
    np.testing.assert_allclose(push.numpy(), jacobian @ v, rtol=1e-10)
    np.testing.assert_allclose(g.numpy(), jacobian.T @ w, rtol=1e-10)


def test_jacobian_and_hessian_compile_one_row(vm):
    def f(x):
        return tg.stack([(x**3).sum(), x[0] * x[1], tg.exp(x[2])])

    def total(x):
        return (x**3).sum() * x[0]

    J = tg.jacobian(f)(f64(X))
    expected = np.array([3 * X**2, [X[1], X[0], 0], [0, 0, np.exp(X[2])]])
    np.testing.assert_allclose(J.numpy(), expected, rtol=1e-12)
    H = tg.hessian(total)(f64(X)).numpy()
    closed = np.diag(6 * X * X[0])
    closed[0] += 3 * X**2
    closed[:, 0] += 3 * X**2
    np.testing.assert_allclose(H, closed, rtol=1e-12)
    before = evaluate.compiles
    tg.jacobian(f)(f64(X + 1)).numpy()
    tg.hessian(total)(f64(X + 1)).numpy()
    assert evaluate.compiles == before


def test_the_number_of_kernels_does_not_depend_on_the_dimension(monkeypatch, tmp_path):
    monkeypatch.setenv("TILEGRAD_CACHE_DIR", str(tmp_path))
    built = []
    build = driver.runtime.build

    def counting(programs, scheduled, *args, **kwargs):
        built.append(len(scheduled))
        return build(programs, scheduled, *args, **kwargs)

    monkeypatch.setattr(driver.runtime, "build", counting)

    def kernels(n):
        built.clear()
        x = np.linspace(0.5, 1.5, n)
        a = np.random.default_rng(0).standard_normal((n, n))
        J = tg.jacobian(lambda v: tg.tanh(v @ f64(a)))(f64(x)).numpy()
        H = tg.hessian(lambda v: (v @ f64(a) * v).sum() * v[0])(f64(x)).numpy()
        np.testing.assert_allclose(J, (1 - np.tanh(x @ a) ** 2)[:, None] * a.T, rtol=1e-10)
        g = (a + a.T) @ x
        closed = (a + a.T) * x[0]
        closed[0] += g
        closed[:, 0] += g
        np.testing.assert_allclose(H, closed, rtol=1e-10)
        return list(built)

    few, many = kernels(3), kernels(9)
    assert few == many and few, (few, many)


def test_tape(vm):
    w, v = tg.tensor(2.0, requires_grad=True), tg.tensor(5.0)
    with tg.GradientTape() as tape:
        tape.watch(v)
        y = w * w * v
    gw, (gv, none) = tape.gradient(y, [w, [v, tg.tensor(1.0)]])
    assert (gw.item(), gv.item(), none) == (20.0, 4.0, None)
    with pytest.raises(tg.errors.UsageError, match="tape that has been used"):
        tape.gradient(y, w)


def test_persistent_tape_serves_again_and_again(vm):
    x = tg.tensor(3.0, requires_grad=True)
    with tg.GradientTape(persistent=True) as tape:
        y = x * x
        z = y * y
    assert tape.gradient(z, x).item() == 108.0
    assert tape.gradient(y, x).item() == 6.0
    assert tape.gradient(z, {"y": y})["y"].item() == 18.0


@dataclasses.dataclass
class Layer:
    w: tg.Tensor
    b: tuple[tg.Tensor, ...]


def test_gradients_come_in_the_structure_of_dataclasses(vm):
    layers = {"first": Layer(f64([[2.0]]), (f64([1.0]),)), "rest": [Layer(f64([[3.0]]), ())]}

    def f(p, x):
        return ((x @ p["first"].w + p["first"].b[0]) @ p["rest"][0].w).sum()

    g = tg.grad(f)(layers, f64([[5.0]]))
    assert isinstance(g["first"], Layer) and isinstance(g["rest"][0], Layer) and g["rest"][0].b == ()
    assert [v.item() for v in (g["first"].w, g["first"].b[0], g["rest"][0].w)] == [15.0, 3.0, 11.0]


def test_no_grad_and_stop_gradient(vm):
    x = tg.tensor([1.0, 2.0], requires_grad=True)
    with tg.no_grad():
        target = x * 3
    assert not target.requires_grad
    ((x * x - target) ** 2 + tg.stop_gradient(x) * x).sum().backward()
    a = np.array([1.0, 2.0])
    np.testing.assert_allclose(x.grad.numpy(), 2 * (a * a - 3 * a) * 2 * a + a, rtol=1e-6)


def test_accumulation_and_create_graph(vm):
    x = tg.tensor(3.0, requires_grad=True)
    (x * x).backward()
    (x * x).backward()
    assert x.grad.item() == 12.0
    x.grad = None
    (x**3).backward(create_graph=True)
    g = x.grad
    x.grad = None
    (g * g).backward()  # d/dx (3 x^2)^2 = 36 x^3
    assert x.grad.item() == pytest.approx(36 * 27)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: tg.grad(lambda x: x * 2)(f64(X)), tg.errors.ShapeError, "single element"),
        (lambda: tg.grad(lambda x: x)(tg.tensor(1)), tg.errors.DTypeError, "floats"),
        (lambda: tg.grad(lambda x: x, argnums=2)(f64(1.0)), tg.errors.UsageError, "argnums"),
        (lambda: tg.vjp(lambda x: x, f64(X))[1](f64([1.0])), tg.errors.ShapeError, "cotangent of shape"),
        (lambda: tg.jvp(lambda x: x, (f64(X),), ()), tg.errors.UsageError, "0 tangents"),
        (lambda: tg.tensor(1.0).backward(), tg.errors.UsageError, "requires_grad"),
    ],
)
def test_refusals(call, error, message):
    with pytest.raises(error, match=message) as e:
        call()
    assert "test_transforms.py" in str(e.value)
