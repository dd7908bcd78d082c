"""docs/api.md says something about every public name."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

pytest.importorskip("torch")  # from_torch is among the public names

DOCS = Path(__file__).parent.parent / "docs"


def test_the_page_is_complete() -> None:
    spec = importlib.util.spec_from_file_location("api", DOCS / "api.py")
    assert spec is not None and spec.loader is not None
    api = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(api)
    fresh, committed = entries(api.page()), entries((DOCS / "api.md").read_text())
    assert fresh.keys() == committed.keys(), "run: python docs/api.py"
    bare = {name for (section, name), text in fresh.items() if not text and section != "Methods of Tensor"}
    assert not bare, "no docstring"


def entries(page: str) -> dict[tuple[str, str], str]:
    """(section, name) -> what is said about it."""
    sections = re.findall(r"^## (.*?)\n\n(.*?)(?=\n\n## |\Z)", page, re.M | re.S)
    return {
        (title, name): text for title, body in sections for name, text in re.findall(r"^- `(\w+)[^`]*`(?:: )?(.*)$", body, re.M)
    }
