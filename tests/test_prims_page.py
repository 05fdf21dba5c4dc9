"""docs/prims.md is what the registers say."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_the_page_is_what_the_registers_say() -> None:
    spec = importlib.util.spec_from_file_location("prims_page", ROOT / "tools" / "prims_page.py")
    assert spec is not None and spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert (ROOT / "docs" / "prims.md").read_text() == tool.page(), "python3 tools/prims_page.py --write"
