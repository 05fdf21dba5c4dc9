"""docs/operators.md is what the registries say."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent


def _tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("operators_page", ROOT / "tools" / "operators_page.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_registries_say() -> None:
    text = (ROOT / "docs" / "operators.md").read_text()
    written_with = re.search(r"registries of torch (\S+)'s", text)
    assert written_with is not None
    if written_with.group(1) != torch.__version__.split("+")[0]:
        pytest.skip(f"the page is of torch {written_with.group(1)}, which has other operators")
    assert _tool().page() == text, "python3 tools/operators_page.py --write"
