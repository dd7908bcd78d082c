"""The house rules that a machine can check: rooms, packaging, imports, continuous integration."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("frontend", "relax_ext", "runtime", "schedules", "tuner", "tuning_logs")


def python(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={**os.environ, **env}, capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_is_one_folder_with_one_import_name(room: str) -> None:
    link = ROOT / "tilegrad" / room
    assert link.is_symlink() and os.readlink(link) == f"../{room}"
    assert (ROOT / room / "__init__.py").is_file()


def test_importing_tilegrad_does_not_import_tvm() -> None:
    done = python("import sys, tilegrad; print([m for m in ('tvm', 'torch', 'xgboost', 'sklearn') if m in sys.modules])")
    assert (done.stdout, done.stderr) == ("[]\n", "")


SKIPS = {
    "a missing peer fails": ('import pytest\ntorch = pytest.importorskip("no_such_package")\ndef test(): pass\n', "1", 1),
    "a skip in a test fails": ('import pytest\ndef test_ok(): pass\ndef test(): pytest.skip("later")\n', "true", 1),
    "the platform is a reason": ('import pytest\ndef test_ok(): pass\ndef test(): pytest.skip("platform: no AVX-512")\n', "1", 0),
    "outside CI a skip is a skip": ('import pytest\ndef test_ok(): pass\ndef test(): pytest.skip("later")\n', "", 0),
    "an expected failure is no skip": ("import pytest\n@pytest.mark.xfail\ndef test(): assert False\n", "1", 0),
}


@pytest.mark.parametrize("case", SKIPS)
def test_skips_under_ci(case: str, tmp_path: Path) -> None:
    body, ci, failed = SKIPS[case]
    (tmp_path / "test_it.py").write_text(body)
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ, "CI": ci}, capture_output=True, text=True, timeout=120)
    assert bool(done.returncode) == bool(failed), done.stdout
    if failed:
        assert "CI allows no skip" in done.stdout


def test_ci_is_what_a_person_runs() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert re.search(r"^CI=1 exec make test$", script.read_text(), re.M)
