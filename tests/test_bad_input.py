"""Bad input of every kind gives a typed error that says what to do: one table for the API, one for the command line.

A row is (what is done, error type or exit code, a pattern in the message). Nothing may crash, hang or fall back silently.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import tilegrad as tg
from tests.cli.test_model import affine
from tilegrad import nn, runtime
from tilegrad._base.errors import DTypeError, IndexingError, LibraryError, ShapeError, TargetError, TilegradError, UsageError
from tilegrad._base.tvm import relax
from tilegrad._cli import app
from tilegrad.relax_ext.driver import compile_graphs
from tilegrad.relax_ext.graph import Graph, GraphBuilder

F = nn.functional
X = np.ones((4, 3), np.float32)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported affine map: input x float32[4, 3], states W and b."""
    folder = tmp_path_factory.mktemp("package") / "out"
    states = {"W": np.ones((3, 5), np.float32), "b": np.zeros(5, np.float32)}
    runtime.export(compile_graphs({"main": affine()}, logs=[]), folder, states)
    return folder


def t(*shape: int, dtype: str = "float32") -> Any:
    return tg.zeros(shape, dtype=dtype)


def optimizer() -> Any:
    return tg.optim.Adam([tg.tensor(X, requires_grad=True)], lr=0.1)


ARRAYS: dict[str, tuple[Callable[[], Any], type[TilegradError], str]] = {
    "True as the largest batch": (lambda: tg.compile(lambda x: x, [X], max_batch=True), UsageError, r"'max_batch': got True"),
    "the same largest batch twice": (
        lambda: tg.compile(lambda x: x, [X], max_batch=(8, 8)),
        UsageError,
        r"'max_batch'.*distinct",
    ),
    "a batch size of 0": (lambda: tg.compile(lambda x: x, [X], batch_sizes=(0, 8)), UsageError, r"'batch_sizes'.*at least 1"),
    "batch_sizes of one number": (
        lambda: tg.compile(lambda x: x, [X], batch_sizes=8),
        UsageError,
        r"'batch_sizes': got 8, expected distinct",
    ),
    "any batch of what mixes rows": (
        lambda: tg.compile(lambda x: x - x.mean(0), [X], logs=[], max_batch=2),
        UsageError,
        r"'max_batch'.*mixes rows.*batch_sizes=",
    ),
    "matmul of shapes that do not fit": (lambda: t(2, 3) @ t(4, 5), ShapeError, r"matmul"),
    "addition of shapes that do not fit": (lambda: t(2, 3) + t(4), ShapeError, r"add"),
    "a reshape to another size": (lambda: t(2, 3).reshape(4, 2), ShapeError, r"reshape"),
    "concatenation of other ranks": (lambda: tg.concat([t(2, 3), t(2)], 0), ShapeError, r"concat"),
    "the largest of no elements": (lambda: tg.max(t(0, 3), 0), ShapeError, r"max: got no elements along axes \(0,\)"),
    "the place of the least of no elements": (lambda: tg.argmin(t(0, 3), 0), ShapeError, r"argmin: got no elements"),
    "padding that is no list of pairs": (lambda: tg.pad(t(2), (1, 2)), UsageError, r"pad, argument 'widths'.*pairs"),
    "an axis that is no whole number": (lambda: t(2, 3).sum(1.0), UsageError, r"sum, argument 'axis': got 1.0.*whole number"),
    "an axis that is a string": (lambda: tg.softmax(t(2), "1"), UsageError, r"softmax, argument 'axis': got '1'"),
    "a bound that is an array": (lambda: tg.clip(t(2), X, 2), UsageError, r"clip, argument 'low': got an array of float32"),
    "a width that is a string": (lambda: nn.Linear("3", 2), UsageError, r"Linear, argument 'in_features': got '3'"),
    "channels below one": (lambda: nn.Conv2d(0, 2, 3), UsageError, r"Conv2d, argument 'in_channels': got 0, expected 1 or more"),
    "a gradient of no function": (lambda: tg.grad(3), UsageError, r"grad, argument 'f.*got 3, expected a function"),
    "padding of too few axes": (lambda: tg.pad(t(2, 2), [(1, 2)]), ShapeError, r"pad, argument 'widths'.*every axis"),
    "a reflection beyond the array": (lambda: tg.pad(t(3), [(3, 0)], mode="reflect"), ShapeError, r"at most 2"),
    "a checkpoint of no function": (lambda: tg.checkpoint(3, t(2)), UsageError, r"checkpoint, argument 'fn': got 3"),
    "a custom gradient of no function": (lambda: tg.custom_vjp(3), UsageError, r"custom_vjp, argument 'fn': got 3"),
    "a backward rule that is none": (lambda: tg.custom_vjp(tg.relu).backward(3), UsageError, r"backward rule: got a int"),
    "a backward rule of one argument": (
        lambda: tg.custom_vjp(lambda x: x).backward(lambda inputs: inputs),
        UsageError,
        r"backward rule.*three tuples",
    ),
    "a kernel that is no function": (lambda: tg.call_te(3, t(2)), UsageError, r"call_te, argument 'compute': got 3"),
    "a kernel that is its argument": (lambda: tg.call_te(lambda a: a, t(2)), UsageError, r"one of its own arguments.*te.compute"),
    "a kernel that is a number": (lambda: tg.call_te(lambda a: 3, t(2)), UsageError, r"got a int.*te.compute"),
    "a kernel of other arguments": (lambda: tg.call_te(lambda a, b: a, t(2)), UsageError, r"'compute'.*a function of 1 tensors"),
    "a weight of another rank": (lambda: F.conv2d(t(1, 2, 5, 5), t(3, 2, 3)), ShapeError, r"conv2d: got a weight of shape"),
    "channels out that groups do not divide": (
        lambda: F.conv1d(t(1, 4, 5), t(3, 2, 3), groups=2),
        ShapeError,
        r"conv1d: got 4 channels",
    ),
    "a transposed convolution of another rank": (
        lambda: F.conv_transpose(2, t(2, 5, 5), t(2, 3, 3, 3)),
        ShapeError,
        r"conv2d_transpose: got an input of shape",
    ),
    "windows of nothing": (lambda: F.max_pool2d(t(1, 1, 4, 4), 0), UsageError, r"at least one element"),
    "adaptive pooling of another rank": (lambda: F.adaptive_avg_pool2d(t(4, 4), 2), ShapeError, r"adaptive_avg_pool2d"),
    "slopes of other channels": (lambda: F.prelu(t(2, 3), t(4)), ShapeError, r"prelu, argument 'weight'.*one per channel"),
    "halves of an odd axis": (lambda: F.glu(t(2, 3)), ShapeError, r"glu: got 3 elements.*an even number"),
    "heads that do not divide": (
        lambda: F.scaled_dot_product_attention(t(1, 3, 4, 8), *(t(1, 2, 4, 8),) * 2, enable_gqa=True),
        ShapeError,
        r"'enable_gqa'.*a multiple",
    ),
    "class numbers that are floats": (lambda: F.nll_loss(t(2, 3), t(2)), ShapeError, r"nll_loss, argument 'target': got float32"),
    "class numbers of another shape": (
        lambda: F.cross_entropy(t(2, 3), t(3, dtype="int64")),
        ShapeError,
        r"cross_entropy, argument 'target'.*class numbers of shape \(2,\)",
    ),
    "steps of zero": (lambda: tg.arange(0, 3, 0), UsageError, r"arange, argument 'step'"),
    "an empty range of random numbers": (lambda: tg.randint(3, 3, (2,)), UsageError, r"randint, argument 'high'"),
    "a negative shape": (lambda: tg.rand(-1, 2), UsageError, r"argument 'shape'"),
    "a negative deviation": (lambda: tg.init.normal_(t(2), std=-1.0), UsageError, r"normal_, argument 'std'"),
    "bounds the wrong way round": (lambda: tg.init.uniform_(t(2), 1.0, 0.0), UsageError, r"uniform_, argument 'high'"),
    "a truncation that leaves nothing": (lambda: tg.init.trunc_normal_(t(2), low=1.0, high=1.0), UsageError, r"low below high"),
    "an orthogonal vector": (lambda: tg.init.orthogonal_(t(2)), TilegradError, r"shape"),
    "compiling a number": (lambda: tg.compile(3, [X], logs=[]), UsageError, r"compile, argument 'fn': got a int"),
    "a step of no optimizer": (
        lambda: tg.compile_step(nn.Linear(3, 2), F.mse_loss, 0.1, [X, X], logs=[]),
        UsageError,
        r"compile_step, argument 'optimizer': got a float",
    ),
    "a step of no loss": (
        lambda: tg.compile_step(nn.Linear(3, 2), "mse", optimizer(), [X, X], logs=[]),
        UsageError,
        r"compile_step, argument 'loss_fn': got a str",
    ),
    "a step of no model": (
        lambda: tg.compile_step(None, F.mse_loss, optimizer(), [X, X], logs=[]),
        UsageError,
        r"compile_step, argument 'model': got a NoneType",
    ),
    "a template that is none": (lambda: tg.call_te(len, t(2), template="mine/1"), UsageError, r"subclass of OwnTemplate"),
    "an axis that is not there": (lambda: t(2, 3).sum(axis=2), TilegradError, r"axis"),
    "a float tensor as an index": (lambda: t(3)[t(2)], IndexingError, r"index 'float32'"),
    "an index out of range": (lambda: t(3)[5], IndexingError, r"axis 0: got index 5, expected -3 to 2"),
    "a slice with step 0": (lambda: t(3)[::0], IndexingError, r"axis 0: got slice\(None, None, 0\).*step other than 0"),
    "a slice to a fraction": (lambda: t(3)[:1.5], IndexingError, r"axis 0: got slice\(None, 1.5, None\).*whole numbers"),
    "from_numpy of a list": (lambda: tg.from_numpy([1.0]), UsageError, r"from_numpy: got a list"),
    "from_numpy of complex numbers": (lambda: tg.from_numpy(np.ones(2, "complex64")), DTypeError, r"from_numpy: .*<c8"),
    "from_numpy of foreign bytes": (lambda: tg.from_numpy(np.ones(2, ">f4")), DTypeError, r"from_numpy: .*>f4.*byte order"),
    "a tangent of another shape": (lambda: tg.jvp(tg.sin, (t(3),), (t(4),)), ShapeError, r"jvp.*tangent of shape \(4,\)"),
    "primals without a tuple": (lambda: tg.jvp(tg.sin, t(3), t(3)), UsageError, r"jvp, argument 'primals': got a Tensor"),
    "a hessian by two arguments": (lambda: tg.hessian(tg.sum, (0, 1)), UsageError, r"'argnums': got \(0, 1\)"),
    "too many indices": (lambda: t(3)[0, 0], IndexingError, r"2 indices"),
    "text as data": (lambda: tg.tensor("abc"), DTypeError, r"numbers or booleans"),
    "complex data": (lambda: tg.tensor(np.zeros(2, np.complex64)), DTypeError, r"complex64"),
    "ragged data": (lambda: tg.tensor([[1.0], [1.0, 2.0]]), ShapeError, r"different lengths"),
    "an unknown dtype": (lambda: tg.zeros((2,), dtype="float7"), DTypeError, r"float7"),
    "mixed dtypes": (lambda: t(2, 2) @ t(2, 2, dtype="int64"), DTypeError, r"int64"),
    "gradients of integers": (lambda: tg.tensor(np.arange(3), requires_grad=True), DTypeError, r"Only floats have gradients"),
    "backward from many elements": (lambda: (tg.tensor(X, requires_grad=True) * 2).backward(), TilegradError, r"backward"),
    "backward where nothing needs it": (lambda: t(1).sum().backward(), TilegradError, r"backward"),
    "grad of a function of many elements": (lambda: tg.grad(lambda x: x * 2)(X), ShapeError, r"grad"),
    "item of many elements": (lambda: t(2).item(), UsageError, r"item"),
    "labels of another length": (lambda: F.cross_entropy(t(4, 10), t(3, dtype="int64")), ShapeError, r"cross_entropy"),
    "attention of another width": (
        lambda: F.scaled_dot_product_attention(t(2, 5, 4), t(2, 6, 3), t(2, 6, 3)),
        ShapeError,
        r"query and key of one width",
    ),
    "attention of integers": (
        lambda: F.scaled_dot_product_attention(*(t(2, 5, 4, dtype="int32"),) * 3),
        DTypeError,
        r"argument 'query'",
    ),
    "attention with a mask of another shape": (
        lambda: F.scaled_dot_product_attention(*(t(2, 5, 4),) * 3, attn_mask=t(5, 6)),
        ShapeError,
        r"argument 'attn_mask'",
    ),
    "attention with a mask of integers": (
        lambda: F.scaled_dot_product_attention(*(t(2, 5, 4),) * 3, attn_mask=t(5, 5, dtype="int32")),
        DTypeError,
        r"'attn_mask'",
    ),
    "a norm over other extents": (lambda: F.rms_norm(t(4, 5), (4,)), ShapeError, r"rms_norm.*last extents \(4,\)"),
    "a norm over more axes than there are": (lambda: F.layer_norm(t(5), (4, 5)), ShapeError, r"layer_norm.*\(4, 5\)"),
    "groups that do not divide the channels": (lambda: F.group_norm(t(2, 5), 2), ShapeError, r"group_norm.*in 2 groups"),
    "a norm over no axis": (lambda: F.layer_norm(t(4, 5), ()), ShapeError, r"layer_norm.*last extents \(\)"),
    "a norm's weight of another shape": (
        lambda: F.layer_norm(t(4, 5), (5,), t(4, 5)),
        ShapeError,
        r"layer_norm, argument 'weight': got shape \(4, 5\), expected shape \(5,\)",
    ),
    "a norm's scale that is one number": (lambda: F.rms_norm(t(4, 5), (5,), t()), ShapeError, r"rms_norm, argument 'weight'"),
    "a group norm's shift of another shape": (
        lambda: F.group_norm(t(2, 4), 2, None, t(1)),
        ShapeError,
        r"group_norm, argument 'bias': got shape \(1,\), expected shape \(4,\)",
    ),
    "dropout of whole numbers": (
        lambda: F.dropout(t(4, dtype="int64")),
        DTypeError,
        r"dropout, argument 'x': got int64.*float32",
    ),
    "a probability above 1": (lambda: F.dropout(t(3), 1.5), UsageError, r"dropout, argument 'p': got 1.5.*probability"),
    "a layer fed another width": (lambda: nn.Linear(3, 2)(t(4, 5)), ShapeError, r"linear|matmul"),
    "a convolution fed other channels": (lambda: nn.Conv2d(3, 4, 3)(t(1, 2, 8, 8)), ShapeError, r"conv"),
    "a window larger than the image": (lambda: nn.MaxPool2d(9)(t(1, 1, 4, 4)), ShapeError, r"pool.*larger than the image"),
    "a kernel larger than the image": (lambda: nn.Conv2d(1, 1, 9)(t(1, 1, 4, 4)), ShapeError, r"conv.*larger than the image"),
    "an optimizer without parameters": (lambda: tg.optim.SGD([], lr=0.1), UsageError, r"no parameters"),
    "a negative learning rate": (
        lambda: tg.optim.SGD([tg.tensor(X, requires_grad=True)], lr=-0.1),
        UsageError,
        r"SGD, 'lr'.*-0.1",
    ),
    "text as a learning rate": (lambda: optimizer().param_groups[0].update(lr="0.1"), UsageError, r"Adam, 'lr'.*'0.1'"),
    "betas of 1": (lambda: optimizer().param_groups[0].update(betas=(0.9, 1.0)), UsageError, r"'beta2'.*1.0.*below 1"),
    "one beta": (lambda: setattr(optimizer(), "betas", 0.9), UsageError, r"'betas'.*two numbers"),
    "an unknown key of a group": (
        lambda: optimizer().param_groups[0].update(momentum=0.9),
        UsageError,
        r"'momentum'.*one of.*lr",
    ),
    "a function among layers": (lambda: nn.Sequential(nn.Linear(3, 2), F.relu), UsageError, r"Sequential, module '1'.*nn.ReLU"),
    "a list of layers": (lambda: nn.Sequential([nn.Linear(3, 2)]), UsageError, r"module '0': got a list.*\*layers"),
    "a number appended to layers": (lambda: nn.Sequential().append(3), UsageError, r"module '0': got a int, expected a Module"),
    "a number in a list of modules": (lambda: nn.ModuleList([3]), UsageError, r"ModuleList, argument 'modules': got \[3\]"),
    "a number for a list of modules": (lambda: nn.ModuleList(3), UsageError, r"ModuleList, argument 'modules': got 3"),
    "a number for modules by name": (lambda: nn.ModuleDict(3), UsageError, r"ModuleDict, argument 'modules': got 3"),
    "a number among modules by name": (lambda: nn.ModuleDict({"a": 3}), UsageError, r"ModuleDict, module 'a'"),
    "a module named like a method": (lambda: nn.ModuleDict({"keys": nn.ReLU()}), UsageError, r"module 'keys'.*ModuleDict.keys"),
    "a module with a dot in its name": (lambda: nn.ModuleDict({"a.b": nn.ReLU()}), UsageError, r"name 'a.b'.*without dots"),
    "a layer put in another's place": (lambda: nn.Sequential(nn.ReLU()).__setitem__(0, 3), UsageError, r"module '0': got a int"),
    "a stack of no layer": (lambda: nn.TransformerEncoder(5, 2), UsageError, r"argument 'encoder_layer': got 5.*a Module"),
    "an array in a parameter's place": (lambda: setattr(nn.Linear(3, 2), "weight", X), UsageError, r"'weight'.*assign_"),
    "a difference of booleans": (lambda: tg.tensor([True]) - tg.tensor([True]), DTypeError, r"two booleans"),
    "a number that the dtype does not hold": (lambda: tg.tensor([1], "uint8") + 300, DTypeError, r"300.*uint8"),
    "a whole number to a negative power": (lambda: tg.tensor([2]) ** -1, DTypeError, r"exponent"),
    "bits of floats": (lambda: t(3) & t(3), DTypeError, r"bitwise_and.*float32"),
    "an optimizer's step without gradients": (
        lambda: tg.optim.SGD([tg.tensor(X, requires_grad=True)], lr=0.1).step(),
        UsageError,
        r"backward",
    ),
    "a state of another shape": (
        lambda: nn.Linear(3, 2).load_state_dict({"weight": X, "bias": X}),
        TilegradError,
        r"weight|bias",
    ),
    "trials in words": (lambda: tg.tune([], trials="a"), UsageError, r"tune, argument 'trials': got 'a'.*whole number"),
    "half a trial": (lambda: tg.tune([], trials=2.5), UsageError, r"'trials': got 2.5.*positive whole number"),
    "True as trials": (lambda: tg.tune([], trials=True), UsageError, r"'trials': got True"),
    "a budget in words": (lambda: tg.tune([], budget_s="3"), UsageError, r"'budget_s': got '3'.*positive number"),
    "an unknown target": (lambda: tg.Target.parse("znver9"), TargetError, r"Did you mean znver"),
    "text that is no graph": (lambda: Graph.loads("{}"), UsageError, r"tgraph"),
}


@pytest.mark.parametrize("what", ARRAYS)
def test_arrays(what: str) -> None:
    action, kind, match = ARRAYS[what]
    with pytest.raises(kind, match=match) as caught:
        result = action()
        result.numpy()  # whoever records first and fails later fails here, too
    assert caught.value.got or caught.value.expected, "says neither what came nor what was expected"


def test_numpys_and_single_numbers_are_numbers() -> None:
    x = np.arange(6, dtype="float32").reshape(2, 3)
    np.testing.assert_array_equal(tg.sum(x, np.int64(1), np.True_).numpy(), x.sum(1, keepdims=True))
    np.testing.assert_array_equal(tg.clip(x, tg.tensor(1.0), np.float32(3)).numpy(), x.clip(1, 3))
    np.testing.assert_array_equal(tg.reshape(x, np.array([3, 2])).numpy(), x.reshape(3, 2))


def test_a_state_of_wider_floats_is_rounded_with_a_warning() -> None:
    layer, third = nn.Linear(1, 1), np.full((1, 1), 1 / 3)
    with pytest.warns(nn.module.NarrowingWarning, match=r"float64 values to float32: weight"):
        layer.load_state_dict({"weight": third, "bias": np.zeros(1)})
    assert layer.weight.item() == np.float32(1 / 3)
    layer.load_state_dict({"weight": np.full((1, 1), 0.25), "bias": np.zeros(1, np.int64)})  # nothing is lost
    with pytest.raises(DTypeError, match=r"'bias': got dtype complex128"):
        layer.load_state_dict({"weight": third, "bias": np.zeros(1, complex)})


def test_names_of_a_graphs_results() -> None:
    b = GraphBuilder()
    x, w = b.input("x", (2,), "float32"), b.input("w", (2,), "float32", "state")
    b.output("y", b.emit(relax.op.add(x, w)))
    for name, updates in (("y", None), ("x", None), ("z", "x"), ("z", "v")):
        with pytest.raises(UsageError, match=rf"'{name}'"):
            b.output(name, x, updates)
    b.output("new_w", b.emit(relax.op.add(w, w)), "w")
    with pytest.raises(UsageError, match=r"'updates' of 'again': got 'w'"):
        b.output("again", x, "w")
    b.finish()


def test_a_shape_error_names_the_users_line() -> None:
    a, b = t(2, 3), t(4, 5)
    with pytest.raises(ShapeError, match=r"test_bad_input\.py:\d+"):
        a @ b


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no folder": (lambda d: shutil.rmtree(d), r"no readable manifest.json"),
    "no library": (lambda d: (d / "libtg.so").unlink(), r"libtg.so"),
    "half a library": (lambda d: (d / "libtg.so").write_bytes((d / "libtg.so").read_bytes()[:5000]), r"damaged or incomplete"),
    "a flipped bit": (lambda d: _flip(d / "libtg.so"), r"damaged or incomplete"),
    "flipped parameters": (lambda d: _flip(d / "parameters.safetensors"), r"damaged or incomplete"),
    "half a manifest": (lambda d: (d / "manifest.json").write_text((d / "manifest.json").read_text()[:100]), r"damaged JSON"),
    "an edited manifest": (lambda d: _edit(d, prefix="other"), r"checksum"),
    "a newer form": (lambda d: _edit(d, abi=99), r"ABI version 99"),
    "another manifest": (lambda d: (d / "manifest.json").write_text("[]"), r"JSON of another kind"),
}


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _edit(folder: Path, **changes: object) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("what", DAMAGE)
def test_damaged_packages(package: Path, tmp_path: Path, what: str) -> None:
    action, match = DAMAGE[what]
    copy = tmp_path / "copy"
    shutil.copytree(package, copy)
    action(copy)
    with pytest.raises(LibraryError, match=match):
        tg.load(copy)


CALLS: dict[str, tuple[Callable[[Any], Any], type[TilegradError], str]] = {
    "an input of another shape": (lambda f: f(np.ones((4, 4), np.float32)), ShapeError, r"'x'.*\(4, 4\).*\(4, 3\)|'x'"),
    "an input of another dtype": (lambda f: f(np.ones((4, 3))), DTypeError, r"'x'.*float64"),
    "an input that is not contiguous": (lambda f: f(np.ones((3, 4), np.float32).T), TilegradError, r"'x'"),
    "an input that is no array": (lambda f: f([[1.0] * 3] * 4), TilegradError, r"'x'"),
    "no input": (lambda f: f(), UsageError, r"1: x"),
    "too many inputs": (lambda f: f(X, X), UsageError, r"2 inputs"),
    "an unknown port": (lambda f: f.run("main", {"z": X}), UsageError, r"'z'|x"),
    "an unknown entry": (lambda f: f.run("train", {"x": X}), UsageError, r"'train'.*main"),
    "an unknown state": (lambda f: f.state("V"), UsageError, r"'V'.*W"),
}


@pytest.mark.parametrize("what", CALLS)
def test_calls(package: Path, what: str) -> None:
    action, kind, match = CALLS[what]
    with pytest.raises(kind, match=match):
        action(tg.load(package))


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    monkeypatch.setenv("TILEGRAD_CACHE_DIR", str(tmp_path))
    with pytest.raises(LibraryError, match=r"no-such-compiler.*Install gcc or clang.*tilegrad\[cc\]"):
        compile_graphs({"main": affine()}, logs=[])


MODEL = "import tilegrad as tg\ndef broken():\n    return tg.zeros((2, 3)) @ tg.zeros((4, 5))\n"

COMMANDS: dict[str, tuple[list[str], int, str]] = {
    "a missing file": (["compile", "absent.py:f", "-o", "out"], 1, r"does not exist"),
    "no form of a model": (["compile", "m.xyz", "-o", "out"], 1, r"expected file.py:name or graph.tgraph"),
    "an unknown target": (["compile", "m.py:broken", "-o", "out", "--target", "znver9"], 1, r"Did you mean znver"),
    "a GPU": (["compile", "m.py:broken", "-o", "out", "--target", "cuda"], 1, r"CPU code"),
    "an output that is a file": (["compile", "m.py:broken", "-o", "m.py"], 1, r"which is a file"),
    "a model with a shape error": (["compile", "m.py:broken", "-o", "out"], 1, r"matmul"),
    "a damaged graph": (["compile", "bad.tgraph", "-o", "out"], 1, r"not a version-1 .tgraph"),
    "a graph without its parameters": (["compile", "g.tgraph", "-o", "out", "--no-logs"], 1, r"no 'W'"),
    "a missing package": (["run", "absent", "--inputs", "in.npz", "--outputs", "out.npz"], 1, r"no readable manifest.json"),
    "missing inputs": (["run", "package", "--inputs", "absent.npz", "--outputs", "out.npz"], 1, r"no such file"),
    "text as inputs": (["run", "package", "--inputs", "m.py", "--outputs", "out.npz"], 1, r"expected an NPZ file"),
    "inputs of another shape": (["run", "package", "--inputs", "wrong.npz", "--outputs", "out.npz"], 1, r"'x'"),
    "inputs by another name": (["run", "package", "--inputs", "names.npz", "--outputs", "out.npz"], 1, r"x"),
    "an unknown entry": (
        ["run", "package", "--inputs", "in.npz", "--outputs", "o", "--entry", "e"],
        1,
        r"no entry 'e', expected one of main",
    ),
    "an output folder that is not there": (
        ["run", "package", "--inputs", "in.npz", "--outputs", "no/out.npz"],
        1,
        r"No such file",
    ),
    "parameters that do not fit": (["run", "package", "--inputs", "in.npz", "--outputs", "o", "--states", "m.py"], 1, r"m.py"),
    "an empty log": (["log", "best", "empty.jsonl"], 1, r"no readable line.*tilegrad tune"),
    "a missing log": (["compile", "g.tgraph", "-o", "out", "--log", "absent.jsonl"], 2, r"absent.jsonl"),
    "a missing log of tasks": (["tasks", "g.tgraph", "--log", "absent.jsonl"], 2, r"absent.jsonl"),
    "a folder as a log": (["explain", "g.tgraph", "--time", "--log", "package"], 2, r"'package' is a directory"),
    "tuning for another machine": (
        ["tune", "g.tgraph", "-o", "log.jsonl", "--target", "aarch64", "--trials", "1"],
        1,
        r"aarch64|arch",
    ),
    "tuning what is not there": (["tune", "absent.py:f", "-o", "log.jsonl"], 1, r"does not exist"),
}


@pytest.fixture(scope="module")
def folder(package: Path) -> Path:
    """A working directory with what the commands refer to."""
    root = package.parent
    shutil.copytree(package, root / "package")
    (root / "m.py").write_text(MODEL)
    (root / "bad.tgraph").write_text("{")
    (root / "g.tgraph").write_text(affine().dumps())
    (root / "empty.jsonl").write_text("")
    np.savez(root / "in.npz", x=X)
    np.savez(root / "wrong.npz", x=np.ones((4, 4), np.float32))
    np.savez(root / "names.npz", z=X)
    return root


@pytest.mark.parametrize("what", COMMANDS)
def test_commands(folder: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    args, code, match = COMMANDS[what]
    monkeypatch.chdir(folder)
    done = CliRunner().invoke(app, args)
    text = " ".join(done.stderr.split())
    assert done.exit_code == code, text
    assert done.exception is None or isinstance(done.exception, SystemExit), "a traceback"
    if code == 1:
        assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done.stderr
    assert re.search(match, text), text
