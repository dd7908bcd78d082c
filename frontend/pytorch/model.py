"""``from_torch``: a PyTorch module as a tilegrad Module with the same parameter names."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from tilegrad._base.errors import ModelImportError, ShapeError, UsageError
from tilegrad.frontend import random
from tilegrad.frontend.apply import as_tensor, node_of, wrap
from tilegrad.frontend.nn.module import Module, Parameter
from tilegrad.frontend.pytorch.importer import Imported, import_exported
from tilegrad.frontend.pytorch.lowering import RandomState
from tilegrad.frontend.pytorch.replay import Program
from tilegrad.frontend.pytorch.tensors import to_numpy, to_torch
from tilegrad.frontend.tensor import Tensor, tensor

Signature = tuple[bool, tuple[tuple[tuple[int, ...], str], ...]]


class TorchModel(Module):
    """A PyTorch module inside tilegrad: callable on Tensors, trainable, compilable; ``state_dict`` has PyTorch's names.

    ``train()`` and ``eval()`` choose the mode that is exported (batch norm, dropout). The module is exported once for each
    mode and input shapes, on first use. Weights are copies: ``read_from`` and ``write_back`` move them.
    """

    def __init__(self, module: torch.nn.Module, example_inputs: Sequence[Any], training: bool | None = None) -> None:
        super().__init__()
        self._module = module
        self._programs: dict[Signature, tuple[Imported, Program, Any]] = {}
        self.training = module.training if training is None else training
        self._add_states(module)
        self._example = [torch.as_tensor(x) if not isinstance(x, torch.Tensor) else x for x in example_inputs]
        self._program(self._example)

    # states ----------------------------------------------------------------------------------------------------------
    def _add_states(self, module: torch.nn.Module) -> None:
        for name, p in module.named_parameters():
            if not p.is_floating_point():
                raise ModelImportError(f"from_torch, parameter '{name}'", str(p.dtype), "float parameters")
            home, last = self._home(name)
            setattr(home, last, Parameter(tensor(to_numpy(p), str(p.dtype)[6:]), p.requires_grad))
        for name, b in module.named_buffers():
            home, last = self._home(name)
            persistent = last not in module.get_submodule(name.rpartition(".")[0])._non_persistent_buffers_set
            home.register_buffer(last, tensor(to_numpy(b), str(b.dtype)[6:]), persistent)

    def _home(self, name: str) -> tuple[Module, str]:
        """The Module that holds a dotted name, made if need be."""
        *path, last = name.split(".")
        home: Module = self
        for part in path:
            if part not in home._modules:
                home._modules[part] = Module()
            home = home._modules[part]
        return home, last

    def _states(self) -> dict[str, Tensor]:
        return {**dict(self.named_parameters()), **dict(self.named_buffers())}

    def read_from(self, module: torch.nn.Module | None = None) -> TorchModel:
        """Take the values of a PyTorch module's parameters and buffers (default: the one imported). Returns self."""
        source = module if module is not None else self._module
        ours = self._states()
        for name, t in [*source.named_parameters(), *source.named_buffers()]:
            if name in ours:
                ours[name].assign_(np.array(to_numpy(t)))
        return self

    def write_back(self, module: torch.nn.Module | None = None) -> torch.nn.Module:
        """Copy parameters and buffers into a PyTorch module (default: the one imported) and return it."""
        target = module if module is not None else self._module
        theirs = {**dict(target.named_parameters()), **dict(target.named_buffers())}
        with torch.no_grad():
            for name, t in self._states().items():
                if name not in theirs or tuple(theirs[name].shape) != tuple(t.shape):
                    raise ShapeError(
                        f"write_back, '{name}'", "no such tensor" if name not in theirs else f"shape {tuple(theirs[name].shape)}",
                        f"shape {tuple(t.shape)}",
                    )  # fmt: skip
                theirs[name].copy_(to_torch(t.numpy(), t.dtype))
        return target

    # calls -----------------------------------------------------------------------------------------------------------
    def _program(self, tensors: Sequence[torch.Tensor]) -> tuple[Imported, Program, Any]:
        key = (self.training, tuple((tuple(t.shape), str(t.dtype)) for t in tensors))
        if key not in self._programs:
            ep = exported(self._module, tensors, self.training)
            imported = import_exported(ep)
            self._programs[key] = imported, Program(imported.graph), ep.call_spec.out_spec
        return self._programs[key]

    def imported(self) -> Imported:
        """The Graph for the example inputs in the present mode."""
        return self._program(self._example)[0]

    def forward(self, *inputs: Any) -> Any:
        """The module's result, in its own structure. Batch-norm statistics and random state advance."""
        args = [as_tensor(x) for x in inputs]
        fake = [torch.empty(tuple(a.shape), dtype=getattr(torch, a.dtype), device="meta") for a in args]
        key = (self.training, tuple((tuple(t.shape), str(t.dtype)) for t in fake))
        if key not in self._programs:
            self._program([torch.zeros(tuple(t.shape), dtype=t.dtype) for t in fake])
        imported, program, spec = self._programs[key]
        if len(args) != len(imported.inputs):
            raise UsageError("model from PyTorch", f"{len(args)} inputs", f"{len(imported.inputs)}: {', '.join(imported.inputs)}")
        states = {**self._states(), RandomState.NAME: random.state()}
        ports = {name: node_of(a) for name, a in zip(imported.inputs, args, strict=True)}
        ports |= {name: node_of(states[name]) for name in imported.states}
        found = program.record(ports)
        for port in program.outputs:
            if port.updates is not None:
                states[port.updates].assign_(wrap(found[port.name]))
        return pytree.tree_unflatten([wrap(found[name]) for name in imported.outputs], spec)

    def verify(self, *inputs: Any, **tolerances: float) -> Any:
        """``verify``: compare with PyTorch operator by operator, on these inputs or the examples."""
        from tilegrad.frontend.pytorch.verification import verify

        self.write_back()
        return verify(self._module, inputs or self._example, training=self.training, **tolerances)


def exported(module: torch.nn.Module, tensors: Sequence[torch.Tensor], training: bool) -> torch.export.ExportedProgram:
    """``torch.export`` in a mode; the module is left in its own. Raises ModelImportError when PyTorch cannot export it."""
    before = {m: m.training for m in module.modules()}
    try:
        if training != module.training:
            module.train(training)
        with warnings.catch_warnings():  # PyTorch's own LSTM and GRU keep their weights twice
            warnings.filterwarnings("ignore", message=r"The tensor attributes? .*_flat_weights", category=UserWarning)
            return torch.export.export(module, tuple(tensors), strict=False)
    except Exception as e:
        first = next(iter(str(e).strip().splitlines()), "")
        raise ModelImportError(
            "from_torch", f"a module that torch.export cannot take ({type(e).__name__}: {first})", "an exportable module",
            "Avoid control flow that depends on tensors' values, or use torch.compile(model, backend='tilegrad').",
        ) from e  # fmt: skip
    finally:
        for m, mode in before.items():
            m.training = mode


def from_torch(module: torch.nn.Module, example_inputs: Sequence[Any]) -> TorchModel:
    """A PyTorch module as a tilegrad Module, imported through ``torch.export``.

    Parameters
    ----------
    module: its present mode (``train()`` or ``eval()``) is what the Module starts in.
    example_inputs: tensors or arrays, the positional arguments; shapes and dtypes count.

    Raises UnsupportedOperatorError (all unsupported operators at once, with counts and the lines they come from),
    ModelImportError (what torch.export refuses, shapes that depend on values, inputs that are written), DTypeError.
    """
    if not isinstance(module, torch.nn.Module):
        raise UsageError("from_torch, argument 'module'", type(module).__name__, "a torch.nn.Module")
    if isinstance(example_inputs, torch.Tensor):
        example_inputs = (example_inputs,)
    return TorchModel(module, example_inputs)
