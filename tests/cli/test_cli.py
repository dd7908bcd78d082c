"""The command line: fast where nothing is compiled, exit codes, one line for an error."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


def tilegrad(*args: str, cwd: Path = ROOT, prefix: str = "") -> subprocess.CompletedProcess[str]:
    """Run the command in its own process; ``prefix`` is Python code that runs before it."""
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); {prefix}\nfrom tilegrad._cli import main; main()"
    command = [sys.executable, "-c", code, *args]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)


BAN = "sys.modules.update(dict.fromkeys(('tvm', 'tvm_ffi', 'torch', 'xgboost', 'sklearn')))"


LIGHT = [["--version"], ["--help"], ["-h"], ["compile", "--help"], ["demo", "--help"], ["cache", "info"]]


@pytest.mark.parametrize("args", LIGHT)
def test_what_needs_no_compiler_imports_none(args: list[str]) -> None:
    done = tilegrad(*args, prefix=BAN)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_version_is_the_packages() -> None:
    from tilegrad._base.version import __version__

    assert tilegrad("--version").stdout == f"tilegrad {__version__}\n"


def test_help_names_every_command_and_shows_examples() -> None:
    text = tilegrad("--help").stdout
    for command in ("demo", "compile", "tune", "run", "tasks", "log", "explain", "cache", "doctor", "file.py:name", "Example:"):
        assert command in text


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["no-such-command"],
        ["compile"],
        ["compile", "m.py:f"],
        ["compile", "m.py:f", "-o", "out", "--threads", "0"],
        ["compile", "m.py:f", "-o", "out", "--log", "absent.jsonl"],
        ["compile", "m.py:f", "-o", "out", "--no-logs", "--log", "pyproject.toml"],
        ["run"],
        ["run", "dir", "--inputs", "in.npz"],
        ["cache"],
        ["cache", "shrink"],
        ["demo", "--budget", "-1"],
    ],
)
def test_usage_errors_exit_with_2(args: list[str]) -> None:
    done = tilegrad(*args, prefix=BAN)
    assert done.returncode == 2
    assert "Traceback" not in done.stdout + done.stderr
