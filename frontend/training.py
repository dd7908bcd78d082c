"""``compile_step``: model, loss, backward and optimizer as one entry of one library, over the model's own parameters."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilegrad._base.errors import UsageError
from tilegrad.frontend import evaluate
from tilegrad.frontend.batches import Batches, forms
from tilegrad.frontend.calling import as_array
from tilegrad.frontend.compiled import Artifact, Options, fits
from tilegrad.frontend.gradients import unflatten
from tilegrad.frontend.optim import Optimizer
from tilegrad.frontend.recording import Node, grad_mode, placeholder
from tilegrad.frontend.tensor import Tensor
from tilegrad.frontend.tracing import Signature, States, build_graph, examples, named_outputs, placeholders, signature
from tilegrad.relax_ext.driver import Logs
from tilegrad.relax_ext.graph import Graph

log = logging.getLogger(__name__)

Clip = Callable[[Sequence[Tensor]], Any]


class TrainStep(Artifact):
    """``step(x, y) -> loss``: returned by ``compile_step``.

    Entries: ``step`` (one update), ``evaluate`` (loss and prediction, in evaluation mode), ``predict``. The parameters are the
    model's own arrays, so the model shows every update at once; the learning rate and other hyperparameters are read from the
    optimizer at each call. Other batch sizes compile further libraries over the same states, cached.
    """

    NAMES = ("step", "evaluate", "predict")

    def __init__(
        self,
        model: Any,
        loss_fn: Callable[..., Any],
        optimizer: Optimizer,
        example: Sequence[np.ndarray],
        options: Options,
        states: States | None = None,
        before_update: Clip | None = None,
    ) -> None:
        self.model, self.loss_fn, self.optimizer, self.before_update = model, loss_fn, optimizer, before_update
        self._params = [p for g in optimizer.param_groups for p in g["params"]]
        states = states or _states_of(model, optimizer, self._params)
        graphs: dict[str, Graph] = {}
        for suffix, types in forms(options.batches, signature(example)):
            traced, self._spec = _trace(self, types, states)
            graphs |= {f"{name}{suffix}": traced[name] for name in self.NAMES}
        self._written = [states.tensors[p.updates] for p in traced["step"].outputs if p.updates]
        self._hyper = {name: np.zeros((), np.float64) for name in states.hypers}
        self._compiled_for = self._conditions()
        super().__init__(graphs, states, example, options)
        self._variants: dict[Signature, TrainStep] = {} if options.batches else {signature(example): self}
        self._last: dict[str, float] = {}

    def __call__(self, *batch: Any) -> np.ndarray:
        """One training step; returns the loss, a rank-0 array (``float(loss)``)."""
        return self._run("step", batch)[0]

    def evaluate(self, *batch: Any) -> tuple[np.ndarray, Any]:
        """(loss, prediction) in evaluation mode; nothing is updated."""
        loss, *rest = self._run("evaluate", batch)
        return loss, unflatten(rest, self._spec)

    def predict(self, *inputs: Any) -> Any:
        """The prediction in evaluation mode. Takes the batch without the target."""
        return unflatten(self._run("predict", inputs), self._spec)

    def _run(self, entry: str, inputs: Sequence[Any]) -> list[np.ndarray]:
        arrays = [x if x.__class__ is np.ndarray else as_array(x) for x in inputs]
        wanted = len(self._example) - (entry == "predict" and len(self._example) > 1)
        if len(arrays) != wanted:
            raise UsageError(f"entry '{entry}'", f"{len(arrays)} inputs", f"{wanted}")
        me, size = self._for(arrays, entry)
        if entry == "step":
            self._check_conditions()
            self._update_hypers(me)
            if evaluate.pending.live or evaluate.pending.updates:
                evaluate.protect(me._written)
        elif evaluate.pending.updates:
            evaluate.flush()
        return me.bound(entry, size)(*arrays)

    def _conditions(self) -> tuple[Any, ...]:
        """What the step's operations depend on beside the inputs' types."""
        return [g.shape() for g in self.optimizer.param_groups], [p.requires_grad for p in self._params]

    def _check_conditions(self) -> None:
        (groups, trained), (groups_then, trained_then) = self._conditions(), self._compiled_for
        if trained != trained_then:
            at = next(i for i, (now, then) in enumerate(zip(trained, trained_then, strict=True)) if now != then)
            got, expected = f"requires_grad={trained[at]} of parameter {at}", f"{trained_then[at]}, as when it was compiled"
            raise UsageError("compiled step", got, expected, "Call compile_step again.")
        if groups != groups_then:
            raise UsageError(
                "compiled step", "another flag, or a momentum or weight decay that is zero now or was zero then",
                "those of compile_step", "Call compile_step again; numbers other than zero may change at any time.",
            )  # fmt: skip

    def _update_hypers(self, me: TrainStep) -> None:
        groups = self.optimizer.param_groups
        for name, (group, key) in self._states.hypers.items():
            me._hyper[name][()] = groups[group][key]

    def _for(self, arrays: Sequence[np.ndarray], entry: str) -> tuple[TrainStep, int | None]:
        """What takes these shapes, and as which batch."""
        batches = self.options.batches
        if batches is None and fits(arrays, self._example):
            return self, None
        types = signature(arrays)
        if batches is not None and (size := batches.form(signature(self._example), types)) is not None:
            return self, size
        for known, variant in self._variants.items():
            if known[: len(types)] == types:
                return variant, None
        example = [np.zeros(t.shape, t.dtype) for t in types]
        if entry == "predict" and len(self._example) > 1:  # the target's batch follows the first input's
            target = self._example[-1]
            shape = target.shape
            if shape and shape[0] == self._example[0].shape[0]:
                shape = (types[0].shape[0], *shape[1:])
            example.append(np.zeros(shape, target.dtype))
        log.info("compiling another step for inputs %s", types)
        options = replace(self.options, batches=None)
        variant = TrainStep(self.model, self.loss_fn, self.optimizer, example, options, self._states, self.before_update)
        self._variants[signature(example)] = variant
        return variant, None

    def _bound(self) -> dict[str, np.ndarray]:
        self._update_hypers(self)
        return self._states.arrays() | self._hyper

    def recompile(self, logs: Logs = None) -> TrainStep:
        """The same step over the same states with configs from other logs."""
        options = replace(self.options, logs=logs)
        return TrainStep(self.model, self.loss_fn, self.optimizer, self._example, options, self._states, self.before_update)


def _states_of(model: Any, optimizer: Optimizer, params: Sequence[Tensor]) -> States:
    """Names for parameters, buffers, optimizer state and hyperparameters."""
    states = States()
    if hasattr(model, "named_parameters"):
        states.add_module(model)
    names = {id(t): n for n, t in states.tensors.items()}
    for i, p in enumerate(params):
        if id(p) not in names:
            names[id(p)] = f"parameter{i}"
            states.tensors[names[id(p)]] = p
        for slot, t in optimizer._state(p).items():
            states.tensors[f"optimizer.{slot}.{names[id(p)]}"] = t
    if optimizer.count is not None:
        states.tensors["optimizer.count"] = optimizer.count
    for i in range(len(optimizer.param_groups)):
        for key in optimizer.hypers:
            states.hypers[key if i == 0 else f"{key}.{i}"] = (i, key)
    return states


def _trace(step: TrainStep, types: Signature, states: States) -> tuple[dict[str, Graph], Any]:
    """The three graphs and the structure of the prediction."""
    names = _names(step, len(types))
    mode = getattr(step.model, "training", True)
    grads = [(p, p.grad) for p in step._params]
    try:
        set_mode(step.model, True)
        step_graph = _step_graph(step, types, names, states)
        set_mode(step.model, False)
        eval_graph, predict_graph, spec = _eval_graphs(step, types, names, states)
    finally:
        set_mode(step.model, mode)
        for p, g in grads:
            p.grad = g
    return {"step": step_graph, "evaluate": eval_graph, "predict": predict_graph}, spec


def set_mode(model: Any, training: bool) -> None:
    """train() or eval() where the model knows the difference."""
    if hasattr(model, "train"):
        model.train(training)


def _names(step: TrainStep, count: int) -> list[str]:
    from tilegrad.frontend.tracing import input_names

    if count == 1:
        return input_names(step.model, 1)
    names = input_names(step.model, count - 1)
    return [*names, "target" if "target" not in names else "y"]


def _step_graph(step: TrainStep, types: Signature, names: list[str], states: States) -> Graph:
    with evaluate.tracing() as updates, grad_mode(True):
        args = placeholders(types)
        for p in step._params:
            p.grad = None
        loss, _ = _loss(step, args)
        loss.backward()
        if step.before_update is not None:
            step.before_update(step._params)
        hypers: dict[str, Node] = {name: placeholder((), "float64") for name in states.hypers}
        by_key = {pair: hypers[name] for name, pair in states.hypers.items()}
        step.optimizer.record(lambda group, key: Tensor(by_key[group, key]), True)
        inputs = dict(zip(names, [a._node for a in args], strict=True))
        return build_graph(inputs, {"loss": loss}, list(updates.values()), states, hypers)


def _eval_graphs(step: TrainStep, types: Signature, names: list[str], states: States) -> tuple[Graph, Graph, Any]:
    with evaluate.tracing(), grad_mode(False):
        args = placeholders(types)
        loss, prediction = _loss(step, args)
        outputs, spec = named_outputs(prediction, "prediction")
        inputs = dict(zip(names, [a._node for a in args], strict=True))
        both = build_graph(inputs, {"loss": loss, **outputs}, [], states, {})
        alone = dict(list(inputs.items())[: len(inputs) - (len(inputs) > 1)])
        return both, build_graph(alone, outputs, [], states, {}), spec


def _loss(step: TrainStep, args: Sequence[Tensor]) -> tuple[Tensor, Any]:
    """The last input is the target, unless there is only one."""
    inputs, target = (args[:-1], args[-1:]) if len(args) > 1 else (args, [])
    prediction = step.model(*inputs)
    loss = step.loss_fn(prediction, *target)
    if not isinstance(loss, Tensor) or loss.size != 1:
        got = f"shape {loss.shape}" if isinstance(loss, Tensor) else type(loss).__name__
        raise UsageError("compile_step, argument 'loss_fn'", f"a result of {got}", "a Tensor with one element")
    return loss.reshape(()), prediction


def compile_step(
    model: Any,
    loss_fn: Callable[..., Any],
    optimizer: Optimizer,
    example_inputs: Sequence[Any],
    target: Any = "native",
    logs: Logs = None,
    num_threads: int | None = None,
    before_update: Clip | None = None,
    batch_sizes: Sequence[int] | None = None,
) -> TrainStep:
    """Compile a whole training step: ``loss_fn(model(*inputs), target)``, its gradients and the optimizer's update.

    Parameters
    ----------
    model: a Module, or a function of Tensors.
    example_inputs: list of arrays, the target last; only shapes and dtypes count.
    before_update: called with the parameters between backward and update, e.g. to clip gradients.
    target, logs, num_threads, batch_sizes: as for ``compile``.

    Raises UsageError, ShapeError and DTypeError at the user's line, UnsupportedOperatorError (all operators without a gradient
    rule at once), TargetError, LibraryError (no C compiler).
    """
    if not callable(loss_fn):
        raise UsageError("compile_step, argument 'loss_fn'", f"a {type(loss_fn).__name__}", "a function of prediction and target")
    if not callable(model):
        raise UsageError("compile_step, argument 'model'", f"a {type(model).__name__}", "a Module, or a function of Tensors")
    if not isinstance(optimizer, Optimizer):
        raise UsageError("compile_step, argument 'optimizer'", f"a {type(optimizer).__name__}", "one of tilegrad.optim")
    arrays = examples(example_inputs, "compile_step")
    options = Options.of(target, logs, num_threads, Batches.of(batch_sizes, None, arrays, "compile_step"))
    return TrainStep(model, loss_fn, optimizer, arrays, options, None, before_update)
