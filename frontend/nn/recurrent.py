"""LSTM and GRU, unrolled over time, with PyTorch's names, gate order and defaults."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tilegrad._base.errors import UsageError
from tilegrad.frontend import functions as F
from tilegrad.frontend import init
from tilegrad.frontend.apply import as_tensor
from tilegrad.frontend.arguments import check_all
from tilegrad.frontend.nn.module import Module, Parameter
from tilegrad.frontend.nn.normalisation import dropout
from tilegrad.frontend.tensor import Tensor, zeros

State = tuple[Tensor, ...]


class _Recurrent(Module):
    gates = 0
    states = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
    ) -> None:
        super().__init__()
        self.input_size, self.hidden_size, self.num_layers, self.bias = input_size, hidden_size, num_layers, bias
        self.batch_first, self.dropout, self.bidirectional = batch_first, dropout, bidirectional
        bound = 1 / math.sqrt(hidden_size)
        rows = self.gates * hidden_size
        for layer in range(num_layers):
            width = input_size if layer == 0 else hidden_size * (1 + bidirectional)
            for end in self._ends(layer):
                shapes: dict[str, tuple[int, ...]] = {"weight_ih": (rows, width), "weight_hh": (rows, hidden_size)}
                shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)} if bias else {}
                for name, shape in shapes.items():
                    values = init.generator().uniform(-bound, bound, shape).astype(np.float32)
                    setattr(self, f"{name}_{end}", Parameter(values))

    def _ends(self, layer: int) -> list[str]:
        return [f"l{layer}", f"l{layer}_reverse"] if self.bidirectional else [f"l{layer}"]

    def _weights(self, end: str) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        get = self._parameters.get
        return get(f"weight_ih_{end}"), get(f"weight_hh_{end}"), get(f"bias_ih_{end}"), get(f"bias_hh_{end}")  # type: ignore[return-value]

    def cell(self, xi: Tensor, state: State, w: Tensor, b: Tensor | None) -> State:
        """One step: ``xi`` the input's share of the gates, ``w`` and ``b`` the recurrent weights. The new state, output first."""
        raise NotImplementedError

    def _run(self, x: Any, initial: list[Tensor] | None) -> tuple[Tensor, list[list[Tensor]]]:
        x = as_tensor(x)
        if x.ndim != 3:
            raise UsageError(type(self).__name__, f"an input of {x.ndim} axes", "three: length, batch, features (or batch first)")
        x = x.permute(1, 0, 2) if self.batch_first else x
        ends = 1 + self.bidirectional
        start = initial or [zeros((self.num_layers * ends, x.shape[1], self.hidden_size), x.dtype)] * self.states
        last: list[list[Tensor]] = [[] for _ in range(self.states)]
        for layer in range(self.num_layers):
            sides = []
            for i, end in enumerate(self._ends(layer)):
                outs, state = self._direction(x, tuple(s[layer * ends + i] for s in start), end, i == 1)
                sides.append(F.stack(outs))
                for slot, s in zip(last, state, strict=True):
                    slot.append(s)
            x = sides[0] if len(sides) == 1 else F.concat(sides, -1)
            if layer < self.num_layers - 1:
                x = dropout(x, self.dropout, self.training)
        return (x.permute(1, 0, 2) if self.batch_first else x), last

    def _direction(self, x: Tensor, state: State, end: str, reverse: bool) -> tuple[list[Tensor], State]:
        w_ih, w_hh, b_ih, b_hh = self._weights(end)
        shares = x @ w_ih.T
        shares = shares if b_ih is None else shares + b_ih
        outs: list[Tensor] = []
        for t in range(x.shape[0] - 1, -1, -1) if reverse else range(x.shape[0]):
            state = self.cell(shares[t], state, w_hh, b_hh)
            outs.append(state[0])
        return (outs[::-1] if reverse else outs), state


class LSTM(_Recurrent):
    """Long short-term memory (Hochreiter and Schmidhuber 1997): ``(output, (h, c))``."""

    gates, states = 4, 2

    def forward(self, x: Any, hx: tuple[Any, Any] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        if hx is not None and (not isinstance(hx, (tuple, list)) or len(hx) != 2):
            raise UsageError("LSTM, argument 'hx'", f"a {type(hx).__name__}", "a pair: the output's state and the cell's")
        out, last = self._run(x, None if hx is None else [as_tensor(s) for s in hx])
        return out, (F.stack(last[0]), F.stack(last[1]))

    def cell(self, xi: Tensor, state: State, w: Tensor, b: Tensor | None) -> State:
        h, c = state
        g = xi + h @ w.T
        i, f, n, o = F.chunk(g if b is None else g + b, 4, -1)
        c = F.sigmoid(f) * c + F.sigmoid(i) * F.tanh(n)
        return F.sigmoid(o) * F.tanh(c), c


class GRU(_Recurrent):
    """Gated recurrent unit (Cho et al. 2014): ``(output, h)``."""

    gates = 3

    def forward(self, x: Any, hx: Any = None) -> tuple[Tensor, Tensor]:
        out, last = self._run(x, None if hx is None else [as_tensor(hx)])
        return out, F.stack(last[0])

    def cell(self, xi: Tensor, state: State, w: Tensor, b: Tensor | None) -> State:
        (h,) = state
        g = h @ w.T
        hr, hz, hn = F.chunk(g if b is None else g + b, 3, -1)
        ir, iz, in_ = F.chunk(xi, 3, -1)
        r, z = F.sigmoid(ir + hr), F.sigmoid(iz + hz)
        n = F.tanh(in_ + r * hn)
        return ((1.0 - z) * n + z * h,)


check_all(globals(), [name for name, v in globals().items() if isinstance(v, type) and v.__module__ == __name__])
