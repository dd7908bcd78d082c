"""docs/api.md is what docs/api.py writes, and says something about every public name."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

pytest.importorskip("torch")  # from_torch is among the public names

DOCS = Path(__file__).parent.parent / "docs"


def test_the_page_is_up_to_date_and_complete() -> None:
    spec = importlib.util.spec_from_file_location("api", DOCS / "api.py")
    assert spec is not None and spec.loader is not None
    api = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(api)
    page = api.page()
    assert (DOCS / "api.md").read_text() == page, "run: python docs/api.py"
    sections = dict(re.findall(r"^## (.*?)\n\n(.*?)(?=\n\n## |\Z)", page, re.M | re.S))
    bare = {
        name for title, text in sections.items() for name in re.findall(r"^- `([^`]*)`$", text, re.M) if "Tensor" not in title
    }
    assert not bare, "no docstring"
