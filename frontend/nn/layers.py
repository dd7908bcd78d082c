"""Linear, convolution, pooling, activation and container layers; names, shapes and initial distributions are PyTorch's."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from tilegrad._base.errors import UsageError
from tilegrad.frontend import functions as F
from tilegrad.frontend import init
from tilegrad.frontend.arguments import check_all
from tilegrad.frontend.nn import functional as NF
from tilegrad.frontend.nn.module import Module, Parameter
from tilegrad.frontend.tensor import Tensor

Size = NF.Size


def _weight(*shape: int, fan_in: int) -> Parameter:
    """Uniform within 1 / sqrt(fan in): what PyTorch's kaiming_uniform_(a=sqrt(5)) comes to."""
    bound = 1 / math.sqrt(fan_in) if fan_in else 0.0
    return Parameter(init.generator().uniform(-bound, bound, shape).astype(np.float32))


class Linear(Module):
    """``x @ weight.T + bias``, x [..., in_features]."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = _weight(out_features, in_features, fan_in=in_features)
        self.register_parameter("bias", _weight(out_features, fan_in=in_features) if bias else None)

    def forward(self, x: Any) -> Tensor:
        return NF.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class _Conv(Module):
    rank = 0
    transposed = False

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Size, stride: Size = 1, padding: Size | str = 0,
        dilation: Size = 1, groups: int = 1, bias: bool = True, output_padding: Size = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        if in_channels % groups or out_channels % groups:
            raise UsageError(
                f"{type(self).__name__}, argument 'groups'", f"{groups} for {in_channels} -> {out_channels}", "a divisor of both"
            )
        if isinstance(padding, str) and padding not in ("same", "valid"):
            raise UsageError(f"{type(self).__name__}, argument 'padding'", repr(padding), "whole numbers, 'same' or 'valid'")
        sizes = {"kernel_size": kernel_size, "stride": stride, "dilation": dilation, "output_padding": output_padding}
        for name, size in (sizes if isinstance(padding, str) else {**sizes, "padding": padding}).items():
            NF._per_axis(size, self.rank, f"{type(self).__name__}, argument '{name}'")
        kernel = (kernel_size,) * self.rank if isinstance(kernel_size, int) else tuple(kernel_size)
        self.in_channels, self.out_channels, self.kernel_size = in_channels, out_channels, kernel
        self.stride, self.padding, self.dilation, self.groups, self.output_padding = (
            stride,
            padding,
            dilation,
            groups,
            output_padding,
        )
        shape = (in_channels, out_channels // groups) if self.transposed else (out_channels, in_channels // groups)
        fan_in = shape[1] * math.prod(kernel)
        self.weight = _weight(*shape, *kernel, fan_in=fan_in)
        self.register_parameter("bias", _weight(out_channels, fan_in=fan_in) if bias else None)

    def forward(self, x: Any) -> Tensor:
        if self.transposed:
            assert not isinstance(self.padding, str)
            return NF.conv_transpose(
                self.rank, x, self.weight, self.bias, self.stride, self.padding, self.output_padding, self.groups, self.dilation
            )
        return NF._conv(self.rank, x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)

    def extra_repr(self) -> str:
        kind = f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"
        return f"{self.in_channels}, {self.out_channels}, {kind}"


class Conv1d(_Conv):
    """Convolution of [N, C, L]."""

    rank = 1


class Conv2d(_Conv):
    """Convolution of [N, C, H, W]."""

    rank = 2


class Conv3d(_Conv):
    """Convolution of [N, C, D, H, W]."""

    rank = 3


class _ConvTranspose(_Conv):
    transposed = True

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Size, stride: Size = 1, padding: Size = 0,
        output_padding: Size = 0, groups: int = 1, bias: bool = True, dilation: Size = 1,
    ) -> None:  # fmt: skip
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, output_padding)


class ConvTranspose1d(_ConvTranspose):
    """Transposed convolution of [N, C, L]."""

    rank = 1


class ConvTranspose2d(_ConvTranspose):
    """Transposed convolution of [N, C, H, W]."""

    rank = 2


class ConvTranspose3d(_ConvTranspose):
    """Transposed convolution of [N, C, D, H, W]."""

    rank = 3


class _Function(Module):
    """A layer without parameters: a function and fixed arguments."""

    function: Callable[..., Any]
    names: tuple[str, ...] = ()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        if len(args) > len(self.names) or any(k not in self.names and k != "inplace" for k in kwargs):
            raise UsageError(type(self).__name__, f"{args} {kwargs}", f"arguments among {self.names}")
        kwargs.pop("inplace", None)
        self.options = dict(zip(self.names, args, strict=False)) | kwargs

    def forward(self, x: Any) -> Tensor:
        return type(self).function(x, **self.options)

    def extra_repr(self) -> str:
        return ", ".join(f"{k}={v}" for k, v in self.options.items())


def _layer(name: str, function: Callable[..., Any], *names: str, **renamed: str) -> type[Module]:
    """A layer class for a function; ``names`` are PyTorch's names of the arguments, in order."""

    def call(x: Any, **options: Any) -> Tensor:
        return function(x, **{renamed.get(k, k): v for k, v in options.items()})

    return type(
        name, (_Function,), {"function": staticmethod(call), "names": names, "__doc__": function.__doc__, "__module__": __name__}
    )


ReLU = _layer("ReLU", NF.relu)
ReLU6 = _layer("ReLU6", NF.relu6)
GELU = _layer("GELU", NF.gelu, "approximate")
SiLU = _layer("SiLU", NF.silu)
Sigmoid = _layer("Sigmoid", NF.sigmoid)
Tanh = _layer("Tanh", NF.tanh)
LeakyReLU = _layer("LeakyReLU", NF.leaky_relu, "negative_slope")
Softplus = _layer("Softplus", NF.softplus, "beta", "threshold")
ELU = _layer("ELU", NF.elu, "alpha")
SELU = _layer("SELU", NF.selu)
Hardtanh = _layer("Hardtanh", NF.hardtanh, "min_val", "max_val", min_val="low", max_val="high")
Hardsigmoid = _layer("Hardsigmoid", NF.hardsigmoid)
Hardswish = _layer("Hardswish", NF.hardswish)
Mish = _layer("Mish", NF.mish)
LogSigmoid = _layer("LogSigmoid", NF.logsigmoid)
GLU = _layer("GLU", NF.glu, "dim", dim="axis")
Softmax = _layer("Softmax", NF.softmax, "dim", dim="axis")
LogSoftmax = _layer("LogSoftmax", NF.log_softmax, "dim", dim="axis")
Identity = _layer("Identity", lambda x: x)
Flatten = _layer("Flatten", lambda x, start_dim=1, end_dim=-1: F.flatten(x, start_dim, end_dim), "start_dim", "end_dim")
MaxPool1d = _layer("MaxPool1d", NF.max_pool1d, "kernel_size", "stride", "padding", "dilation", "ceil_mode", kernel_size="size")
MaxPool2d = _layer("MaxPool2d", NF.max_pool2d, "kernel_size", "stride", "padding", "dilation", "ceil_mode", kernel_size="size")
MaxPool3d = _layer("MaxPool3d", NF.max_pool3d, "kernel_size", "stride", "padding", "dilation", "ceil_mode", kernel_size="size")
AvgPool1d = _layer(
    "AvgPool1d", NF.avg_pool1d, "kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", kernel_size="size"
)
AvgPool2d = _layer(
    "AvgPool2d", NF.avg_pool2d, "kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", kernel_size="size"
)
AvgPool3d = _layer(
    "AvgPool3d", NF.avg_pool3d, "kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", kernel_size="size"
)
AdaptiveAvgPool1d = _layer("AdaptiveAvgPool1d", lambda x, output_size: NF.adaptive_avg_pool(1, x, output_size), "output_size")
AdaptiveAvgPool2d = _layer("AdaptiveAvgPool2d", lambda x, output_size: NF.adaptive_avg_pool(2, x, output_size), "output_size")
AdaptiveAvgPool3d = _layer("AdaptiveAvgPool3d", lambda x, output_size: NF.adaptive_avg_pool(3, x, output_size), "output_size")


class PReLU(Module):
    """``x`` above 0, a learned slope below."""

    def __init__(self, num_parameters: int = 1, init: float = 0.25) -> None:
        super().__init__()
        self.weight = Parameter(np.full(num_parameters, init, np.float32))

    def forward(self, x: Any) -> Tensor:
        return NF.prelu(x, self.weight)


# ***** containers *****


class Sequential(Module):
    """Layers one after the other; numbered, or named by a dict."""

    def __init__(self, *layers: Any) -> None:
        super().__init__()
        named = (
            layers[0].items()
            if len(layers) == 1 and isinstance(layers[0], Mapping)
            else ((str(i), m) for i, m in enumerate(layers))
        )
        for name, m in named:
            self.add_module(name, m)

    def forward(self, x: Any) -> Any:
        for m in self._modules.values():
            x = m(x)
        return x

    def append(self, m: Module) -> Sequential:
        """Add a layer at the end."""
        self.add_module(str(len(self)), m)
        return self

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return iter(self._modules.values())

    def __getitem__(self, i: Any) -> Any:
        layers = list(self._modules.values())
        return Sequential(*layers[i]) if isinstance(i, slice) else layers[i]

    def __setitem__(self, i: int, m: Module) -> None:
        self.add_module(list(self._modules)[i], m)


class ModuleList(Module):
    """A list of modules."""

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        super().__init__()
        for m in modules:
            self.append(m)

    def append(self, m: Module) -> ModuleList:
        """Add a module at the end."""
        self.add_module(str(len(self)), m)
        return self

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return iter(self._modules.values())

    def __getitem__(self, i: Any) -> Any:
        return list(self._modules.values())[i]

    def __setitem__(self, i: int, m: Module) -> None:
        self.add_module(list(self._modules)[i], m)


class ModuleDict(Module):
    """Modules by key."""

    def __init__(self, modules: Mapping[str, Module] | None = None) -> None:
        super().__init__()
        for k, m in (modules or {}).items():
            self[k] = m

    def __setitem__(self, key: str, m: Module) -> None:
        self.add_module(key, m)

    def __getitem__(self, key: str) -> Module:
        return self._modules[key]

    def __contains__(self, key: str) -> bool:
        return key in self._modules

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def keys(self) -> Iterable[str]:
        """Keys."""
        return self._modules.keys()

    def values(self) -> Iterable[Module]:
        """Modules."""
        return self._modules.values()

    def items(self) -> Iterable[tuple[str, Module]]:
        """Pairs."""
        return self._modules.items()


check_all(globals(), [name for name, v in globals().items() if isinstance(v, type) and v.__module__ == __name__])
