"""One small network, written in five manners: tilegrad's, micrograd's, PyTorch's, TensorFlow's and JAX's. One table of losses.

python examples/five_manners.py
"""

import numpy as np

import tilegrad as tg

HIDDEN, STEPS, RATE = 6, 12, 0.5
rng = np.random.default_rng(0)
X = rng.uniform(-1, 1, (32, 2)).astype("float32")
Y = (X[:, :1] * X[:, 1:] > 0).astype("float32")
START = {
    "w1": rng.normal(0, 1, (2, HIDDEN)).astype("float32"),
    "b1": np.zeros(HIDDEN, "float32"),
    "w2": rng.normal(0, 1, (HIDDEN, 1)).astype("float32"),
    "b2": np.zeros(1, "float32"),
}


def tilegrads():
    """A whole training step as one library."""
    model = tg.nn.Sequential(tg.nn.Linear(2, HIDDEN), tg.nn.Tanh(), tg.nn.Linear(HIDDEN, 1))
    model.load_state_dict({"0.weight": START["w1"].T, "0.bias": START["b1"], "2.weight": START["w2"].T, "2.bias": START["b2"]})
    step = tg.compile_step(model, tg.nn.functional.mse_loss, tg.optim.SGD(model.parameters(), lr=RATE), [X, Y])
    return [float(step(X, Y)) for _ in range(STEPS)]


def micrograds():
    """Neurons made of single numbers; the update written out."""

    class Neuron:
        def __init__(self, w, b):
            self.w = [tg.tensor(v, requires_grad=True) for v in w]
            self.b = tg.tensor(b, requires_grad=True)

        def __call__(self, x):
            return sum((wi * xi for wi, xi in zip(self.w, x, strict=True)), self.b)

        def parameters(self):
            return [*self.w, self.b]

    hidden = [Neuron(START["w1"][:, j], START["b1"][j]) for j in range(HIDDEN)]
    out = Neuron(START["w2"][:, 0], START["b2"][0])
    parameters = [p for n in [*hidden, out] for p in n.parameters()]
    x, y, losses = list(X.T), Y[:, 0], []
    for _ in range(STEPS):
        loss = ((out([n(x).tanh() for n in hidden]) - y) ** 2).mean()
        for p in parameters:
            p.grad = None
        loss.backward()
        losses.append(loss.item())
        for p in parameters:
            p.assign_(p - RATE * p.grad)
    return losses


def pytorchs():
    """A Module, an optimizer, and a loop."""

    class Net(tg.nn.Module):
        def __init__(self):
            super().__init__()
            self.w1, self.b1, self.w2, self.b2 = (tg.nn.Parameter(v) for v in START.values())

        def forward(self, x):
            return (x @ self.w1 + self.b1).tanh() @ self.w2 + self.b2

    net, x, y, losses = Net(), tg.tensor(X), tg.tensor(Y), []
    optimizer = tg.optim.SGD(net.parameters(), lr=RATE)
    for _ in range(STEPS):
        loss = tg.nn.functional.mse_loss(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def tensorflows():
    """Variables, and a tape that remembers what was done with them."""
    variables = [tg.tensor(v, requires_grad=True) for v in START.values()]
    x, y, losses = tg.tensor(X), tg.tensor(Y), []
    for _ in range(STEPS):
        with tg.GradientTape() as tape:
            w1, b1, w2, b2 = variables
            loss = tg.mean(tg.square(tg.tanh(x @ w1 + b1) @ w2 + b2 - y))
        for v, g in zip(variables, tape.gradient(loss, variables), strict=True):
            v.assign_(v - RATE * g)
        losses.append(loss.item())
    return losses


def jaxs():
    """A pure function of a dict of arrays, its gradient, and new arrays."""

    def loss_of(p, x, y):
        return tg.mean((tg.tanh(x @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"] - y) ** 2)

    gradient_of = tg.value_and_grad(loss_of)
    p, losses = {name: tg.tensor(v) for name, v in START.items()}, []
    for _ in range(STEPS):
        loss, g = gradient_of(p, X, Y)
        p = {name: p[name] - RATE * g[name] for name in p}
        losses.append(loss.item())
    return losses


MANNERS = {"tilegrad": tilegrads, "micrograd": micrograds, "PyTorch": pytorchs, "TensorFlow": tensorflows, "JAX": jaxs}
table = {name: train() for name, train in MANNERS.items()}
print("step " + " ".join(f"{name:>11}" for name in table))
for i, row in enumerate(zip(*table.values(), strict=True)):
    print(f"{i:4} " + " ".join(f"{loss:11.7f}" for loss in row))
