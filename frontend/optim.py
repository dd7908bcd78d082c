"""Optimizers, each written once in Tensor operations: for the imperative loop and for compiled steps alike.

Hyperparameters are rank-0 float64 inputs of the recording, so changing one compiles nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from tilegrad._base.errors import UsageError
from tilegrad.frontend import evaluate
from tilegrad.frontend import functions as F
from tilegrad.frontend.groups import Group
from tilegrad.frontend.learning_rates import cosine, exponential, linear, piecewise
from tilegrad.frontend.recording import grad_mode, leaf, usage
from tilegrad.frontend.tensor import Tensor, tensor

__all__ = ["SGD", "Adagrad", "Adam", "AdamW", "Lion", "Optimizer", "RMSprop", "clip_grad_norm_", "clip_grad_value_", "cosine",
           "exponential", "linear", "piecewise"]  # fmt: skip


class Hyper:
    """The numbers of one parameter group as Tensors: ``h.lr`` in a dtype by ``h("lr", dtype)``."""

    def __init__(self, make: Any) -> None:
        self._make = make
        self._made: dict[tuple[str, str], Tensor] = {}

    def __call__(self, name: str, dtype: str = "float64") -> Tensor:
        """The hyperparameter in ``dtype``."""
        hit = self._made.get((name, dtype))
        if hit is None:
            hit = self._make(name) if dtype == "float64" else self(name).astype(dtype)
            self._made[name, dtype] = hit
        return hit


class Optimizer:
    """Base: parameter groups, state, ``step`` and ``zero_grad``.

    Subclasses name their hyperparameters in ``hypers`` and define ``update``. ``param_groups`` is PyTorch's: a list of dicts;
    ``opt.lr`` reads and sets the first group's.
    """

    hypers: tuple[str, ...] = ()
    counts_steps = False

    def __init__(self, params: Iterable[Any], defaults: Mapping[str, Any]) -> None:
        if not isinstance(params, Iterable):
            raise UsageError(
                f"{type(self).__name__}, argument 'params'",
                f"a {type(params).__name__}",
                "parameters",
                "Write module.parameters().",
            )
        given = list(params)
        if not given:
            raise UsageError(f"{type(self).__name__}, argument 'params'", "no parameters", "at least one")
        groups = given if isinstance(given[0], Mapping) else [{"params": given}]
        self.defaults = dict(defaults)
        self.param_groups: list[Group] = []
        self.state: dict[Tensor, dict[str, Tensor]] = {}
        self.count = tensor(0.0, "float64") if self.counts_steps else None
        for g in groups:
            self.add_param_group(g)

    def add_param_group(self, group: Mapping[str, Any]) -> None:
        """Add a dict with 'params' and hyperparameters. Raises UsageError for what is not a leaf Tensor or is there already."""
        params = (
            [group["params"]]
            if isinstance(group["params"], Tensor)
            else [p[1] if isinstance(p, tuple) else p for p in group["params"]]
        )
        known = {id(p) for g in self.param_groups for p in g["params"]}
        for p in params:
            if not isinstance(p, Tensor) or not p.is_leaf:
                raise UsageError(
                    f"{type(self).__name__}, argument 'params'", f"{type(p).__name__}", "Tensors made with requires_grad=True"
                )
            if id(p) in known:
                raise UsageError(f"{type(self).__name__}, argument 'params'", "a parameter twice", "each parameter in one group")
            known.add(id(p))
        group = Group(type(self).__name__, self.hypers, self.defaults, {**self.defaults, **group, "params": params})
        self.param_groups.append(group)

    def __getattr__(self, name: str) -> Any:
        groups: list[Group] = self.__dict__.get("param_groups", [])
        try:
            return groups[0][name]
        except (KeyError, IndexError):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        if "param_groups" in self.__dict__ and (name in self.hypers or name == "betas"):
            for g in self.param_groups:
                g[name] = value
        else:
            object.__setattr__(self, name, value)

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for g in self.param_groups:
            for p in g["params"]:
                p.grad = None

    def step(self) -> None:
        """Record the update of every parameter that has a gradient. At most one step is pending: an earlier one runs now."""
        params = [p for g in self.param_groups for p in g["params"] if p.grad is not None]
        if not params:
            raise usage(f"{type(self).__name__}.step", "no parameter with a gradient", "loss.backward() first")
        if evaluate.step_is_pending(params):
            evaluate.flush()
        self.record(lambda i, name: Tensor(leaf(np.asarray(float(self.param_groups[i][name]), np.float64))), True)

    def record(self, hyper: Any, step: bool) -> None:
        """Record the update; ``hyper(group number, name)`` gives each hyperparameter as a rank-0 float64 Tensor."""
        with grad_mode(False), evaluate.whole():
            if self.count is not None:
                evaluate.assign(self.count, (self.count + 1.0)._node, step)
            for i, group in enumerate(self.param_groups):
                h = Hyper(lambda name, i=i: hyper(i, name))
                for p in group["params"]:
                    if p.grad is None:
                        continue
                    new, states = self.update(p, p.grad, self._state(p), h, group)
                    for name, value in states.items():
                        evaluate.assign(self.state[p][name], value._node, step)
                    evaluate.assign(p, new._node, step)

    def _state(self, p: Tensor) -> dict[str, Tensor]:
        if p not in self.state:
            self.state[p] = self.initial(p)
        return self.state[p]

    def initial(self, p: Tensor) -> dict[str, Tensor]:
        """State of one parameter before the first step."""
        return {}

    def update(self, p: Tensor, g: Tensor, s: dict[str, Tensor], h: Hyper, group: Group) -> tuple[Tensor, dict[str, Tensor]]:
        """(new value, new state) of one parameter."""
        raise NotImplementedError

    # ***** saving *****

    def state_dict(self) -> dict[str, Any]:
        """State arrays per parameter number, and the groups' hyperparameters."""
        params = [p for g in self.param_groups for p in g["params"]]
        groups = [{k: v for k, v in g.items() if k != "params"} for g in self.param_groups]
        state = {i: {k: v.numpy() for k, v in self.state[p].items()} for i, p in enumerate(params) if p in self.state}
        return {"state": state, "param_groups": groups, "count": None if self.count is None else self.count.item()}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """The inverse of ``state_dict``. Raises UsageError when the groups do not correspond."""
        if len(saved["param_groups"]) != len(self.param_groups):
            raise UsageError("load_state_dict", f"{len(saved['param_groups'])} groups", f"{len(self.param_groups)}")
        for own, g in zip(self.param_groups, saved["param_groups"], strict=True):
            own.update({k: v for k, v in g.items() if k != "params"})
        params = [p for g in self.param_groups for p in g["params"]]
        for i, values in saved["state"].items():
            for k, v in values.items():
                self._state(params[int(i)])[k].assign_(v)
        if self.count is not None:
            self.count.assign_(np.asarray(float(saved["count"])))


def _like(p: Tensor, value: float = 0.0) -> Tensor:
    return tensor(np.full(p.shape, value), p.dtype)


class SGD(Optimizer):
    """Gradient descent with momentum, dampening, Nesterov and weight decay, as torch.optim.SGD."""

    hypers = ("lr", "momentum", "dampening", "weight_decay")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        if nesterov and (momentum <= 0 or dampening != 0):
            raise UsageError(
                "SGD, argument 'nesterov'", f"momentum {momentum}, dampening {dampening}", "momentum above 0 and no dampening"
            )
        # dampening does not apply to the very first step, which is therefore counted
        object.__setattr__(self, "counts_steps", dampening != 0)
        super().__init__(
            params, {"lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay, "nesterov": nesterov}
        )

    def initial(self, p: Tensor) -> dict[str, Tensor]:
        return {"momentum_buffer": _like(p)}

    def _state(self, p: Tensor) -> dict[str, Tensor]:
        group = next(g for g in self.param_groups if any(q is p for q in g["params"]))
        return super()._state(p) if group["momentum"] or p in self.state else {}

    def update(self, p: Tensor, g: Tensor, s: dict[str, Tensor], h: Hyper, group: Group) -> tuple[Tensor, dict[str, Tensor]]:
        if group["weight_decay"]:
            g = g + h("weight_decay", p.dtype) * p
        if not s:
            return p - h("lr", p.dtype) * g, {}
        fresh = g
        if self.count is not None:
            fresh = F.where(self.count > 1.0, 1.0 - h("dampening", p.dtype), 1.0) * g
        buffer = h("momentum", p.dtype) * s["momentum_buffer"] + fresh
        step = g + h("momentum", p.dtype) * buffer if group["nesterov"] else buffer
        return p - h("lr", p.dtype) * step, {"momentum_buffer": buffer}


class Adam(Optimizer):
    """Adam (Kingma and Ba 2015), as torch.optim.Adam; weight decay is added to the gradient."""

    hypers = ("lr", "beta1", "beta2", "eps", "weight_decay")
    counts_steps = True
    decoupled = False

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad})

    def initial(self, p: Tensor) -> dict[str, Tensor]:
        names = ["exp_avg", "exp_avg_sq"] + (["max_exp_avg_sq"] if self.param_groups[0]["amsgrad"] else [])
        return {n: _like(p) for n in names}

    def update(self, p: Tensor, g: Tensor, s: dict[str, Tensor], h: Hyper, group: Group) -> tuple[Tensor, dict[str, Tensor]]:
        t, one = p.dtype, 1.0
        old = p
        if group["weight_decay"]:
            if self.decoupled:
                old = p * (one - h("lr") * h("weight_decay")).astype(t)
            else:
                g = g + h("weight_decay", t) * p
        m = s["exp_avg"] + (g - s["exp_avg"]) * (one - h("beta1")).astype(t)
        v = h("beta2", t) * s["exp_avg_sq"] + (one - h("beta2")).astype(t) * g * g
        states = {"exp_avg": m, "exp_avg_sq": v}
        if "max_exp_avg_sq" in s:
            v = states["max_exp_avg_sq"] = F.maximum(s["max_exp_avg_sq"], v)
        size = h("lr") / (one - h("beta1") ** self.count)
        scale = F.rsqrt(one - h("beta2") ** self.count)
        return old - size.astype(t) * m / (F.sqrt(v) * scale.astype(t) + h("eps", t)), states


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019), as torch.optim.AdamW."""

    decoupled = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad)


class RMSprop(Optimizer):
    """Gradients divided by a running root mean square (Hinton 2012), as torch.optim.RMSprop."""

    hypers = ("lr", "alpha", "eps", "weight_decay", "momentum")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
    ) -> None:
        super().__init__(
            params,
            {"lr": lr, "alpha": alpha, "eps": eps, "weight_decay": weight_decay, "momentum": momentum, "centered": centered},
        )

    def initial(self, p: Tensor) -> dict[str, Tensor]:
        group = self.param_groups[0]
        names = ["square_avg"] + ["grad_avg"] * bool(group["centered"]) + ["momentum_buffer"] * bool(group["momentum"])
        return {n: _like(p) for n in names}

    def update(self, p: Tensor, g: Tensor, s: dict[str, Tensor], h: Hyper, group: Group) -> tuple[Tensor, dict[str, Tensor]]:
        t = p.dtype
        if group["weight_decay"]:
            g = g + h("weight_decay", t) * p
        rest = (1.0 - h("alpha")).astype(t)
        v = h("alpha", t) * s["square_avg"] + rest * g * g
        states, spread = {"square_avg": v}, v
        if "grad_avg" in s:
            states["grad_avg"] = s["grad_avg"] + (g - s["grad_avg"]) * rest
            spread = v - states["grad_avg"] * states["grad_avg"]
        step = g / (F.sqrt(spread) + h("eps", t))
        if "momentum_buffer" in s:
            step = states["momentum_buffer"] = h("momentum", t) * s["momentum_buffer"] + step
        return p - h("lr", t) * step, states


class Adagrad(Optimizer):
    """Gradients divided by the root of the sum of their squares (Duchi et al. 2011), as torch.optim.Adagrad."""

    hypers = ("lr", "lr_decay", "weight_decay", "eps")
    counts_steps = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
    ) -> None:
        super().__init__(
            params, {"lr": lr, "lr_decay": lr_decay, "weight_decay": weight_decay, "eps": eps, "start": initial_accumulator_value}
        )

    def initial(self, p: Tensor) -> dict[str, Tensor]:
        return {"sum": _like(p, self.param_groups[0]["start"])}

    def update(self, p: Tensor, g: Tensor, s: dict[str, Tensor], h: Hyper, group: Group) -> tuple[Tensor, dict[str, Tensor]]:
        t = p.dtype
        if group["weight_decay"]:
            g = g + h("weight_decay", t) * p
        total = s["sum"] + g * g
        assert self.count is not None
        lr = (h("lr") / (1.0 + (self.count - 1.0) * h("lr_decay"))).astype(t)
        return p - lr * g / (F.sqrt(total) + h("eps", t)), {"sum": total}


class Lion(Optimizer):
    """The sign of an interpolated momentum (Chen et al. 2023), weight decay decoupled."""

    hypers = ("lr", "beta1", "beta2", "weight_decay")

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-4, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    def initial(self, p: Tensor) -> dict[str, Tensor]:
        return {"exp_avg": _like(p)}

    def update(self, p: Tensor, g: Tensor, s: dict[str, Tensor], h: Hyper, group: Group) -> tuple[Tensor, dict[str, Tensor]]:
        t, m = p.dtype, s["exp_avg"]
        step = F.sign(m * h("beta1", t) + g * (1.0 - h("beta1")).astype(t))
        old = p * (1.0 - h("lr") * h("weight_decay")).astype(t) if group["weight_decay"] else p
        return old - h("lr", t) * step, {"exp_avg": m * h("beta2", t) + g * (1.0 - h("beta2")).astype(t)}


def clip_grad_norm_(params: Iterable[Tensor], max_norm: float) -> Tensor:
    """Scale all gradients so that their joint Euclidean length is at most ``max_norm``; returns the length before."""
    with grad_mode(False):
        ps = [p for p in params if p.grad is not None]
        dtype = "float64" if any(p.dtype == "float64" for p in ps) else "float32"
        gradients = [p.grad.astype(dtype) for p in ps]  # type: ignore[union-attr]
        total = F.sqrt(_total([(g * g).sum() for g in gradients])) if ps else tensor(0.0)
        scale = F.minimum(float(max_norm) / (total + 1e-6), 1.0)
        for p in ps:
            p.grad = p.grad * scale.astype(p.dtype)  # type: ignore[operator]
    return total


def _total(numbers: list[Tensor]) -> Tensor:
    """The sum of numbers that do not wait for each other, as those of a chain of additions would."""
    while len(numbers) > 1:
        numbers = [F.stack(numbers[i : i + 16]).sum() for i in range(0, len(numbers), 16)]
    return numbers[0]


def clip_grad_value_(params: Iterable[Tensor], value: float) -> None:
    """Limit every element of every gradient to [-value, value]."""
    with grad_mode(False):
        for p in params:
            if p.grad is not None:
                p.grad = F.clip(p.grad, -value, value)
