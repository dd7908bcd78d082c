"""A virtual environment that holds NumPy and the deploy part alone goes on training: the same bits."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sysconfig
import venv
from pathlib import Path

import numpy as np
import pytest

import tilegrad as tg
from tilegrad import nn

ROOT = Path(__file__).parent.parent
STEPS = 5

SCRIPT = """
import sys
import numpy as np
import tilegrad as tg

step = tg.load("package")
with np.load("batch.npz") as f:
    x, y = f["x"], f["y"]
losses = [float(step(x, y)) for _ in range(int(sys.argv[1]))]
np.savez("after.npz", losses=losses, **step.states)
heavy = {"tvm", "tvm_ffi", "scipy", "xgboost", "typer", "platformdirs", "safetensors"}
print(sorted({m.partition(".")[0] for m in sys.modules} & heavy))
"""


@pytest.fixture(scope="module")
def lean_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter that sees the standard library, NumPy, and tilegrad's front door with ``_base`` and ``runtime``."""
    home = tmp_path_factory.mktemp("lean")
    venv.create(home / "venv", with_pip=False, symlinks=True)
    site = next((home / "venv" / "lib").glob("python*/site-packages"))
    for found in Path(np.__file__).parent.parent.glob("numpy*"):
        if found.name in ("numpy", "numpy.libs"):
            (site / found.name).symlink_to(found)
    package = site / "tilegrad"
    package.mkdir()
    shutil.copy(ROOT / "tilegrad" / "__init__.py", package)
    for room in ("_base", "runtime"):
        shutil.copytree(ROOT / "tilegrad" / room, package / room, symlinks=False)
    return home / "venv" / "bin" / "python"


def test_training_goes_on_with_numpy_alone(lean_python: Path, tmp_path: Path, rng: np.random.Generator) -> None:
    tg.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = tg.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, y = rng.standard_normal((32, 20), dtype=np.float32), rng.integers(0, 4, 32)
    step = tg.compile_step(model, nn.functional.cross_entropy, optimizer, [x, y], logs=[])
    first = [float(step(x, y)) for _ in range(STEPS)]
    step.export(tmp_path / "package")
    np.savez(tmp_path / "batch.npz", x=x, y=y)

    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    command = [lean_python, "-c", SCRIPT, str(STEPS)]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")

    losses = [float(step(x, y)) for _ in range(STEPS)]
    assert losses[-1] < losses[0] < first[0]
    with np.load(tmp_path / "after.npz") as after:
        np.testing.assert_array_equal(after["losses"], losses)
        for name, value in step.states.items():
            np.testing.assert_array_equal(after[name], value, err_msg=name)


def test_the_lean_environment_is_lean(lean_python: Path) -> None:
    """Otherwise the test above would prove nothing."""
    code = (
        "import importlib.util, json; print(json.dumps([importlib.util.find_spec(m) is None for m in ('tvm', 'scipy', 'typer')]))"
    )
    done = subprocess.run([lean_python, "-c", code], capture_output=True, text=True, timeout=60)
    assert json.loads(done.stdout) == [True, True, True], done.stderr
    assert (
        sysconfig.get_paths()["purelib"]
        not in subprocess.run(
            [lean_python, "-c", "import sys; print(sys.path)"], capture_output=True, text=True, timeout=60
        ).stdout
    )
