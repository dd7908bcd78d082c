"""MODEL on the command line: what is understood, what is refused and how; compile and run, end to end, from a Graph file."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.cli.test_cli import tilegrad
from tilegrad import _model
from tilegrad._base.errors import ModelImportError, TilegradError, UsageError
from tilegrad._base.tvm import relax
from tilegrad.relax_ext.driver import build_graphs
from tilegrad.relax_ext.graph import Graph, GraphBuilder
from tilegrad.tuning_logs import Appender, Record


def affine() -> Graph:
    """y = x @ W + b with states W and b, and W's update to 2 W."""
    b = GraphBuilder()
    x, w, c = b.input("x", (4, 3), "float32"), b.input("W", (3, 5), "float32", "state"), b.input("b", (5,), "float32", "state")
    b.output("y", b.emit(relax.op.add(b.emit(relax.op.matmul(x, w)), c)))
    b.output("W_new", b.emit(relax.op.add(w, w)), updates="W")
    return b.finish()


FILE = """
class Found:
    graphs = {}
    states = {}

model = Found()
def make(): return model
def with_argument(size): return model
def with_default(size=3): return model
def fails(): return {}["absent"]
number = 7
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "m.py"
    path.write_text(FILE)
    return path


@pytest.mark.parametrize("name", ["model", "make", "with_default"])
def test_objects_and_functions_are_found(file: Path, name: str) -> None:
    assert type(_model.load(_model.Spec.parse(f"{file}:{name}"))).__name__ == "Found"


def test_a_models_neighbours_can_be_imported(tmp_path: Path) -> None:
    (tmp_path / "tilegrad_test_neighbour.py").write_text("class Found:\n    graphs = {}\n")
    (tmp_path / "m.py").write_text("from tilegrad_test_neighbour import Found\nmodel = Found()\n")
    assert _model.load(_model.Spec.parse(f"{tmp_path}/m.py:model")).graphs == {}


@pytest.mark.parametrize(
    ("form", "kind", "match"),
    [
        ("{}.py", UsageError, r"expected file.py:name .*m.py:name"),
        ("{}.onx:f", UsageError, r"expected file.py:name"),
        ("{}.py:2f", UsageError, r"expected file.py:name"),
        ("{}x.py:f", ModelImportError, r"does not exist"),
        ("{}x.tgraph", ModelImportError, r"does not exist"),
        ("{}.py:mode", ModelImportError, r"no name 'mode'.*Did you mean model"),
        ("{}.py:number", ModelImportError, r"got int, expected what tg.compile"),
        ("{}.py:with_argument", ModelImportError, r"a function with arguments"),
        ("{}.py:fails", ModelImportError, r"m.py, line 10: got KeyError: 'absent'"),
    ],
)
def test_what_is_no_model_is_refused(file: Path, form: str, kind: type[TilegradError], match: str) -> None:
    with pytest.raises(kind, match=match):
        _model.load(_model.Spec.parse(form.format(file.with_suffix(""))))


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("x = = 1\n", r"m.py, line 1: got SyntaxError"),
        ("\nimport no_such_package\n", r"m.py, line 2: got ModuleNotFoundError: .*no_such_package"),
        ("raise SystemExit(3)\n", r"m.py, line 1: got SystemExit"),
    ],
)
def test_a_file_that_fails_names_the_line(tmp_path: Path, text: str, match: str) -> None:
    (tmp_path / "m.py").write_text(text)
    with pytest.raises(ModelImportError, match=match):
        _model.load(_model.Spec.parse(f"{tmp_path}/m.py:f"))


def test_c_source_compiles_without_warnings(tmp_path: Path, rng: np.random.Generator) -> None:
    """The C file alone stands for the library, with the same numbers."""
    from tilegrad import runtime
    from tilegrad.runtime import safetensors

    (tmp_path / "g.tgraph").write_text(affine().dumps())
    states = {"W": rng.standard_normal((3, 5), dtype=np.float32), "b": rng.standard_normal(5, dtype=np.float32)}
    safetensors.save(tmp_path / "p.safetensors", states, dict.fromkeys(states, "float32"))
    options = ["--no-logs", "--states", "p.safetensors", "--prefix", "mlp", "--c-source"]
    done = tilegrad("compile", "g.tgraph", "-o", "out", *options, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (0, "out\n", 1)
    out = tmp_path / "out"
    x = rng.standard_normal((4, 3), dtype=np.float32)
    x.tofile(out / "x.bin")
    command = ["cc", "-O2", "-std=c11", "-Wall", "-Wextra", "-Werror", "main.c", "mlp.c", "-lm", "-lpthread", "-o", "main"]
    built = subprocess.run(command, cwd=out, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    text = subprocess.run(["./main", "1", "x.bin"], cwd=out, capture_output=True, text=True, check=True).stdout
    np.testing.assert_allclose(float(text.split()[1]), runtime.load(out)(x).flat[0], rtol=1e-5)


def test_compile_and_run_a_graph_file(tmp_path: Path, rng: np.random.Generator) -> None:
    from tilegrad.runtime import safetensors

    (tmp_path / "g.tgraph").write_text(affine().dumps())
    states = {"W": rng.standard_normal((3, 5), dtype=np.float32), "b": rng.standard_normal(5, dtype=np.float32)}
    safetensors.save(tmp_path / "p.safetensors", states, dict.fromkeys(states, "float32"))
    x = rng.standard_normal((4, 3), dtype=np.float32)
    np.savez(tmp_path / "in.npz", x=x)

    done = tilegrad("compile", "g.tgraph", "-o", "out", "--no-logs", "--states", "p.safetensors", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (0, "out\n", 1)
    ban = "sys.modules.update(dict.fromkeys(('tvm', 'tvm_ffi', 'torch', 'platformdirs', 'safetensors')))"
    more = ["--inputs", "in.npz", "--outputs", "y", "--save-states", "after.safetensors"]
    done = tilegrad("run", "out", *more, cwd=tmp_path, prefix=ban)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    with np.load(tmp_path / "y") as out:
        np.testing.assert_allclose(out["y"], x @ states["W"] + states["b"], rtol=1e-5, atol=1e-6)
    after = safetensors.load(tmp_path / "after.safetensors")
    np.testing.assert_array_equal(after["W"], 2 * states["W"])
    np.testing.assert_array_equal(after["b"], states["b"])


def test_compile_says_what_no_log_has_measured_and_can_insist(tmp_path: Path) -> None:
    from tilegrad.runtime import safetensors

    states = {"W": np.ones((3, 5), np.float32), "b": np.ones(5, np.float32)}
    safetensors.save(tmp_path / "p.safetensors", states, dict.fromkeys(states, "float32"))
    (tmp_path / "g.tgraph").write_text(affine().dumps())
    common = ["compile", "g.tgraph", "--states", "p.safetensors", "-o"]
    said = tilegrad(*common, "out", "--no-logs", cwd=tmp_path)
    assert said.stderr == "2 kernels: 2 default; the rest: tilegrad tune g.tgraph\n"
    refused = tilegrad(*common, "no", "--no-logs", "--require-tuned", cwd=tmp_path)
    assert refused.returncode == 1 and "without a record: " in refused.stderr and not (tmp_path / "no").exists()
    build = build_graphs({"main": affine()}, logs=[])
    with Appender(tmp_path / "log.jsonl") as lines:
        for c in build.choices.values():
            lines.append(Record(c.template, c.workload, build.target.record(), c.config, "ok", (1e-6,)))
    kept = tilegrad(*common, "out", "--log", "log.jsonl", "--require-tuned", cwd=tmp_path)
    assert (kept.returncode, kept.stderr) == (0, "2 kernels: 2 tuned\n")


def test_explain_shows_every_stage(tmp_path: Path) -> None:
    (tmp_path / "g.tgraph").write_text(affine().dumps())
    shown = tilegrad("explain", "g.tgraph", cwd=tmp_path)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.index("R.matmul(x, W") < shown.stdout.index("T.prim_func") < shown.stdout.index("program main")
    written = tilegrad("explain", "g.tgraph", "-o", "g.txt", cwd=tmp_path)
    assert (written.returncode, written.stdout) == (0, "")
    assert (tmp_path / "g.txt").read_text() == shown.stdout


def test_explain_shows_where_the_time_goes(tmp_path: Path) -> None:
    (tmp_path / "g.tgraph").write_text(affine().dumps())
    shown = tilegrad("explain", "g.tgraph", "--time", "--entry", "main", "--threads", "1", cwd=tmp_path)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.startswith("entry main: ") and " in 2 calls of 2 kernels" in shown.stdout
    assert "GFLOP/s" in shown.stdout and "contraction/1" in shown.stdout
    unknown = tilegrad("explain", "g.tgraph", "--time", "--entry", "absent", cwd=tmp_path)
    assert unknown.returncode == 1 and "no entry 'absent', expected one of main" in unknown.stderr
    alone = tilegrad("explain", "g.tgraph", "--entry", "main", cwd=tmp_path)
    assert alone.returncode == 2 and "go with --time" in alone.stderr


def test_several_entries_need_a_name() -> None:
    assert _model.pick_entry(["step"], None) == "step"
    assert _model.pick_entry(["step", "infer"], "infer") == "infer"
    with pytest.raises(TilegradError, match=r"2 entries and no --entry, expected one of infer, step"):
        _model.pick_entry(["step", "infer"], None)
    with pytest.raises(TilegradError, match=r"no entry 'x', expected one of step"):
        _model.pick_entry(["step"], "x")


def test_ctrl_c_exits_with_130(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text("raise KeyboardInterrupt\n")
    done = tilegrad("compile", "m.py:f", "-o", "out", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


def test_traceback_is_shown_when_asked_for(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text("1 / 0\n")
    plain = tilegrad("compile", "m.py:f", "-o", "out", cwd=tmp_path)
    assert (plain.returncode, plain.stdout, plain.stderr.count("\n")) == (1, "", 1)
    assert "m.py, line 1: got ZeroDivisionError" in plain.stderr
    full = tilegrad("--traceback", "compile", "m.py:f", "-o", "out", cwd=tmp_path)
    assert full.returncode == 1 and "Traceback" in full.stderr and "ZeroDivisionError" in full.stderr
