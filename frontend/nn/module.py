"""Module: parameters, buffers and submodules by name, with PyTorch's names in ``state_dict``."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from tilegrad._base.errors import DTypeError, ShapeError, UsageError
from tilegrad.frontend.dtypes import to_numpy, to_storage
from tilegrad.frontend.recording import FLOATS, Node
from tilegrad.frontend.tensor import Tensor, tensor


class Parameter(Tensor):
    """A Tensor with requires_grad that a Module lists among its parameters."""

    __slots__ = ()

    def __init__(self, data: Any, requires_grad: bool = True) -> None:
        t = data.detach() if isinstance(data, Tensor) else tensor(data)
        node: Node = t._node
        node.owner = None
        super().__init__(node)
        self.requires_grad_(requires_grad)


class Module:
    """Base of layers and models. Subclasses assign Parameters, Modules and buffers as attributes and define ``forward``."""

    training: bool = True

    def __init__(self) -> None:
        self._open()

    def _open(self) -> None:
        if "_parameters" not in self.__dict__:
            for name in ("_parameters", "_buffers", "_modules"):
                self.__dict__[name] = {}
            self.__dict__["_transient"] = set()

    def __setattr__(self, name: str, value: Any) -> None:
        self._open()
        if self._parameters.get(name) is not None and not (value is None or isinstance(value, (Parameter, Module))):
            raise UsageError(
                f"{type(self).__name__}, parameter '{name}'", type(value).__name__, "a Parameter, a Module or None",
                f"Set its values with .{name}.assign_(...), or take it away first with del.",
            )  # fmt: skip
        for table in (self._parameters, self._modules):
            table.pop(name, None)
        if isinstance(value, Parameter):
            self._parameters[name] = value
        elif isinstance(value, Module):
            self._modules[name] = value
        elif name in self._buffers:
            self._buffers[name] = value
        else:
            object.__setattr__(self, name, value)
            return
        self.__dict__.pop(name, None)

    def __getattr__(self, name: str) -> Any:
        for table in ("_parameters", "_buffers", "_modules"):
            found = self.__dict__.get(table)
            if found is not None and name in found:
                return found[name]
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __delattr__(self, name: str) -> None:
        for table in (self._parameters, self._buffers, self._modules):
            if name in table:
                del table[name]
                return
        object.__delattr__(self, name)

    def add_module(self, name: str, module: Module) -> None:
        """Add a submodule by name.

        Raises UsageError for what is no Module, and for a name that is empty, has a dot or is another attribute's.
        """
        where = f"{type(self).__name__}, module {name!r}"
        if not isinstance(module, Module):
            hint = "Functions have layers, relu nn.ReLU(), or are called in a Module's forward; a list is given as *layers."
            raise UsageError(where, f"a {type(module).__name__}", "a Module", hint)
        if not isinstance(name, str) or not name or "." in name:
            raise UsageError(where, f"the name {name!r}", "a string without dots, not empty")
        if name not in self._modules and hasattr(self, name):
            raise UsageError(where, f"the name of {type(self).__name__}.{name}", "a name of its own")
        setattr(self, name, module)

    def register_parameter(self, name: str, value: Parameter | None) -> None:
        """Add a parameter; None reserves the name."""
        self._open()
        self._parameters[name] = value

    def register_buffer(self, name: str, value: Tensor | None, persistent: bool = True) -> None:
        """Add a Tensor that is saved with the parameters (unless not ``persistent``) but not trained."""
        self._open()
        self._buffers[name] = value
        if not persistent:
            self._transient.add(name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module computes."""
        raise NotImplementedError(f"{type(self).__name__} does not define forward")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)

    # ***** walking *****

    def named_modules(self, prefix: str = "", seen: set[int] | None = None) -> Iterator[tuple[str, Module]]:
        """This module and all below it, each once, with dotted names."""
        seen = set() if seen is None else seen
        self._open()
        if id(self) in seen:
            return
        seen.add(id(self))
        yield prefix, self
        for name, m in self._modules.items():
            yield from m.named_modules(f"{prefix}.{name}" if prefix else name, seen)

    def modules(self) -> Iterator[Module]:
        """This module and all below it."""
        return (m for _, m in self.named_modules())

    def children(self) -> Iterator[Module]:
        """Direct submodules."""
        return iter(self._modules.values())

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Direct submodules with their names."""
        return iter(self._modules.items())

    def _named(self, table: str, every: bool) -> Iterator[tuple[str, Tensor]]:
        seen: set[int] = set()
        for prefix, m in self.named_modules():
            for name, t in getattr(m, table).items():
                if t is not None and (every or id(t) not in seen):
                    seen.add(id(t))
                    yield (f"{prefix}.{name}" if prefix else name), t

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Parameters with dotted names; a shared one once, under its first name."""
        return self._named("_parameters", False)  # type: ignore[return-value]

    def parameters(self) -> Iterator[Parameter]:
        """All parameters, shared ones once."""
        return (p for _, p in self.named_parameters())

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Buffers with dotted names."""
        return self._named("_buffers", False)

    def buffers(self) -> Iterator[Tensor]:
        """All buffers."""
        return (b for _, b in self.named_buffers())

    def apply(self, fn: Callable[[Module], Any]) -> Module:
        """Call ``fn`` on every submodule, then on this one."""
        for m in self.children():
            m.apply(fn)
        fn(self)
        return self

    # ***** modes *****

    def train(self, mode: bool = True) -> Module:
        """Switch this module and all below it to training (dropout, batch statistics) or evaluation."""
        for m in self.modules():
            object.__setattr__(m, "training", mode)
        return self

    def eval(self) -> Module:
        """``train(False)``."""
        return self.train(False)

    def requires_grad_(self, value: bool = True) -> Module:
        """Freeze or unfreeze every parameter."""
        for p in self.parameters():
            p.requires_grad_(value)
        return self

    def zero_grad(self) -> None:
        """Forget every parameter's gradient."""
        for p in self.parameters():
            p.grad = None

    def to(self, dtype: Any) -> Module:
        """Convert floating-point parameters and buffers in place to another dtype."""
        for m in self.modules():
            for name, p in m._parameters.items():
                if p is not None and p.dtype in FLOATS:
                    m._parameters[name] = Parameter(p.detach().astype(dtype), p.requires_grad)
            for name, b in m._buffers.items():
                if b is not None and b.dtype in FLOATS:
                    m._buffers[name] = b.detach().astype(dtype)
        return self

    def double(self) -> Module:
        """``to("float64")``."""
        return self.to("float64")

    # ***** saving *****

    def _state(self) -> Iterator[tuple[str, Tensor]]:
        for prefix, m in self.named_modules(seen=_Never()):
            for name, t in [*m._parameters.items(), *((n, b) for n, b in m._buffers.items() if n not in m._transient)]:
                if t is not None:
                    yield (f"{prefix}.{name}" if prefix else name), t

    def state_dict(self) -> OrderedDict[str, np.ndarray]:
        """Copies of all parameters and persistent buffers by PyTorch's names."""
        return OrderedDict((name, t.numpy()) for name, t in self._state())

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """Set parameters and buffers from arrays, Tensors or PyTorch tensors.

        Values are converted to the parameters' dtypes as PyTorch's are: floats of another width are rounded where need be, with a
        NarrowingWarning that names them. Raises UsageError for missing or unknown names (unless not ``strict``), ShapeError for
        other shapes, DTypeError for what would lose more than digits (floats into whole numbers, complex numbers); nothing is
        changed then.
        """
        if not isinstance(state, Mapping):
            raise UsageError("load_state_dict, argument 'state'", f"a {type(state).__name__}", "a mapping of names to arrays")
        own = dict(self._state())
        missing, unknown = [n for n in own if n not in state], [n for n in state if n not in own]
        if strict and (missing or unknown):
            raise UsageError(
                "load_state_dict",
                f"missing {missing}, unknown {unknown}",
                "exactly the module's names",
                "strict=False ignores both.",
            )
        values = {n: _array(v) for n, v in state.items() if n in own}
        for n, v in values.items():
            if v.shape != own[n].shape:
                raise ShapeError(f"load_state_dict, '{n}'", f"shape {v.shape}", f"{own[n].shape}")
            if v.dtype.kind not in ("biuf" if own[n].dtype in FLOATS else "biu"):
                raise DTypeError(f"load_state_dict, '{n}'", f"dtype {v.dtype}", own[n].dtype, "Convert it with astype first.")
        rounded = [n for n, v in values.items() if v.dtype.kind == "f" and _loses(v, own[n].dtype)]
        if rounded:
            shown = ", ".join(rounded[:3]) + (f" and {len(rounded) - 3} more" if len(rounded) > 3 else "")
            text = f"load_state_dict rounds {values[rounded[0]].dtype} values to {own[rounded[0]].dtype}: {shown}. "
            warnings.warn(text + f"model.to('{values[rounded[0]].dtype}') keeps them.", NarrowingWarning, stacklevel=2)
        for n, v in values.items():
            own[n].assign_(v)

    def __repr__(self) -> str:
        lines = [f"({n}): " + repr(m).replace("\n", "\n  ") for n, m in self._modules.items()]
        head = f"{type(self).__name__}({self.extra_repr()}"
        return head + ("\n  " + "\n  ".join(lines) + "\n)" if lines else ")")

    def extra_repr(self) -> str:
        """What ``repr`` shows between the brackets."""
        return ""


class _Never(set):  # type: ignore[type-arg]
    """A set that never remembers: shared modules appear under all their names."""

    def add(self, _: Any) -> None:
        pass


class NarrowingWarning(UserWarning):
    """Values that a narrower dtype does not hold exactly."""


def _loses(value: np.ndarray, dtype: str) -> bool:
    """Whether the dtype is narrower and rounding to it changes a value."""
    if value.dtype.itemsize <= (2 if dtype == "bfloat16" else np.dtype(dtype).itemsize):
        return False
    with np.errstate(over="ignore"):
        there = to_numpy(to_storage(value, dtype), dtype)
    return not np.array_equal(there.astype(value.dtype), value, equal_nan=True)


def _array(value: Any) -> np.ndarray:
    if hasattr(value, "detach") and hasattr(value, "cpu"):
        value = value.detach().cpu()
        value = value.float() if str(value.dtype) == "torch.bfloat16" else value
    return value.numpy() if hasattr(value, "numpy") else np.asarray(value)
