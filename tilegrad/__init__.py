"""tilegrad: model code to tuned native libraries, for inference and for training, on Apache TVM.

Every public name is imported when it is first used, so that ``import tilegrad`` is fast and loads no TVM.
"""

from __future__ import annotations

import importlib
from typing import Any

from tilegrad._base.version import __version__ as __version__

_HOMES = {
    "tensor": "Tensor tensor from_numpy from_dlpack zeros ones full zeros_like ones_like arange eye linspace",
    "functions": (
        "abs acos acosh add all any argmax argmin asin asinh astype atan atan2 atanh broadcast_to ceil chunk clip concat cos "
        "cosh cumprod cumsum divide equal erf exp expand_dims flatten flip floor floor_divide gather greater greater_equal "
        "isfinite isinf isnan less less_equal log logical_and logical_not logical_or logical_xor logsumexp matmul max maximum "
        "mean meshgrid min minimum multiply negative norm not_equal one_hot outer pad permute power prod relu remainder repeat "
        "reshape roll round rsqrt sigmoid sign silu sin sinh softmax log_softmax split sqrt square squeeze stack std subtract "
        "sum take tan tanh tile transpose tril triu trunc unbind var where "
    ),
    "gradients": "no_grad enable_grad",
    "transforms": "grad value_and_grad vjp jvp jacobian hessian GradientTape stop_gradient",
    "blocks": "checkpoint custom_vjp call_te",
    "random": "manual_seed rand randn randint randperm",
    "compiled": "compile Compiled",
    "training": "compile_step TrainStep",
    "relax_import": "from_relax",
    "pytorch": "from_torch",
    "saving": "save_safetensors load_safetensors",
}
_MODULES = {"nn": "frontend.nn", "optim": "frontend.optim", "init": "frontend.init", "random": "frontend.random"}
_ELSEWHERE = {"Target": "_base.target", "load": "runtime", "tune": "tuner"}

_NAMES = {name: f"frontend.{module}" for module, names in _HOMES.items() for name in names.split()} | _ELSEWHERE

__all__ = sorted([*_NAMES, *_MODULES, "errors", "__version__"])


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"tilegrad.{_MODULES[name]}")
    if name == "errors":
        return importlib.import_module("tilegrad._base.errors")
    if name in _NAMES:
        value = getattr(importlib.import_module(f"tilegrad.{_NAMES[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'tilegrad' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
