"""Below the framework: what the two lines ``y = x @ W`` and ``loss.backward()`` become on the way to the machine.

python examples/below_the_framework.py
tilegrad tasks examples/below_the_framework.py:step
tilegrad compile examples/below_the_framework.py:step -o out
"""

import numpy as np

import tilegrad as tg
from tilegrad import nn, schedules

rng = np.random.default_rng(0)
images = rng.standard_normal((128, 784), dtype=np.float32)
labels = rng.integers(0, 16, 128)


class Linear(nn.Module):
    """One matrix: the smallest model there is."""

    def __init__(self) -> None:
        super().__init__()
        self.W = nn.Parameter(0.01 * rng.standard_normal((784, 16), dtype=np.float32))

    def forward(self, x: tg.Tensor) -> tg.Tensor:
        y = x @ self.W
        return y


model = Linear()
optimizer = tg.optim.SGD(model.parameters(), lr=0.1)
step = tg.compile_step(model, nn.functional.cross_entropy, optimizer, [images, labels])


def show(title: str, text: str) -> None:
    """A heading and what belongs under it."""
    print(f"\n{'=' * 20} {title} {'=' * 20}\n{text.rstrip()}")


def main() -> None:
    """Every stage, from the two lines to numbers."""
    # The two lines, as a user runs them.
    x, W = tg.tensor(images), model.W
    y = x @ W
    loss = nn.functional.cross_entropy(y, tg.tensor(labels))
    loss.backward()
    assert W.grad is not None

    show("y = x @ W: the Relax graph", tg.compile(model, [images]).graphs["run"].text())
    show("loss.backward(), then the update: forward, backward and SGD in one graph", step.graphs["step"].text())

    program = step.programs["step"]
    show("the program: kernel calls over planned buffers", program.text())

    # The kernel of y = x @ W. The other product, the gradient of W, has the update fused into it.
    name = next(call.kernel for call in program.calls if call.args[:2] == ("x", "W"))
    kernel = program.kernels[name]
    template, workload = schedules.task_of(kernel)
    show(f"kernel {name} before scheduling, {workload.flops / 1e6:.1f} MFLOP", kernel.script())
    config = template.default(workload, step.target)
    show(
        f"the same kernel scheduled by {template.name} with {config}",
        schedules.schedule(kernel, step.target, config).func.script(),
    )

    losses = [float(step(images, labels)) for _ in range(5)]
    numbers = f"loss of the two lines      {loss.item():.6f}\nlosses of five whole steps {', '.join(f'{v:.6f}' for v in losses)}"
    show(
        "the numbers",
        f"{numbers}\ngradient of W, first row    {np.array2string(W.grad.numpy()[0], precision=5)}\n{step.verify()}",
    )


if __name__ == "__main__":
    main()
