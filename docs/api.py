"""Write docs/api.md, the reference of every public name, from signatures and docstrings: python docs/api.py"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import tilegrad as tg
from tilegrad import _HOMES

HOME = Path(__file__).parent / "api.md"
TITLES = {
    "tensor": "Making Tensors", "functions": "Functions", "gradients": "Gradient modes", "transforms": "Transforms",
    "blocks": "Checkpoints, rules and operators of your own", "random": "Random numbers", "compiled": "Ahead of time",
    "training": "Training steps", "relax_import": "Relax", "pytorch": "PyTorch", "saving": "Saving",
}  # fmt: skip


def page() -> str:
    """The whole page."""
    parts = [
        "# API reference",
        "Made by `python docs/api.py` from signatures and docstrings; [frontend](frontend.md) explains them.",
    ]
    parts += [section(TITLES[home], {n: getattr(tg, n) for n in names.split()}) for home, names in _HOMES.items()]
    parts.append(section("Elsewhere", {n: getattr(tg, n) for n in ("Target", "load", "tune")}))
    parts.append(section("Methods of Tensor", methods(tg.Tensor)))
    for title, module in (("nn", tg.nn), ("nn.functional", tg.nn.functional), ("optim", tg.optim), ("init", tg.init)):
        parts.append(section(f"tilegrad.{title}", public(module)))
    parts.append(section("Methods of nn.Module", methods(tg.nn.Module)))
    parts.append(section("Methods of optimizers", methods(tg.optim.Optimizer)))
    parts.append(section("Methods of what compile and compile_step return", methods(tg.Compiled) | methods(tg.TrainStep)))
    parts.append(section("tilegrad.errors", public(tg.errors)))
    return "\n\n".join(parts) + "\n"


def public(module: Any) -> dict[str, Any]:
    """A module's own functions and classes by name."""
    names = getattr(module, "__all__", None) or [
        n for n, v in vars(module).items() if callable(v) and str(getattr(v, "__module__", "")).startswith("tilegrad.frontend.nn")
        or getattr(v, "__module__", None) == module.__name__
    ]  # fmt: skip
    return {n: getattr(module, n) for n in sorted(names) if not n.startswith("_") and callable(getattr(module, n))}


def methods(cls: type) -> dict[str, Any]:
    """Public methods and properties, inherited ones of tilegrad's included."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith("tilegrad"):
            found |= {n: v for n, v in vars(base).items() if not n.startswith("_") and (callable(v) or isinstance(v, property))}
    return dict(sorted(found.items()))


def section(title: str, entries: dict[str, Any]) -> str:
    """A heading and one line an entry."""
    return "\n".join([f"## {title}", "", *(line(name, value) for name, value in entries.items())])


def line(name: str, value: Any) -> str:
    """``name(arguments)``: the first paragraph of its docstring."""
    what = value.fget if isinstance(value, property) else value
    text = re.sub(r"\s+", " ", (inspect.getdoc(what) or "").split("\n\n")[0]).replace("``", "`").strip()
    if not text and hasattr(tg, name):
        text = f"the function `tilegrad.{name}`."
    return f"- `{name}{'' if isinstance(value, property) else arguments(value)}`" + (f": {text}" if text else "")


def arguments(value: Any) -> str:
    """Names and defaults, without types."""
    if isinstance(value, type) and issubclass(value, Exception):
        return ""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return "(...)"
    kept = [p.replace(annotation=p.empty) for n, p in signature.parameters.items() if n != "self"]
    return str(signature.replace(parameters=kept, return_annotation=signature.empty))


if __name__ == "__main__":
    HOME.write_text(page())
