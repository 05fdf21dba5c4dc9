"""docs/operators.md and docs/prims.md are what the registers say."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent


def _page(name: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return importlib.import_module(f"{name}_page").page()  # type: ignore[no-any-return]


def test_the_page_of_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs" / "operators.md").read_text()
    written_with = re.search(r"registries of torch (\S+)'s", text)
    assert written_with is not None
    if written_with.group(1) != torch.__version__.split("+")[0]:
        pytest.skip(f"the page is of torch {written_with.group(1)}, which has other operators")
    assert _page("operators", monkeypatch) == text, "python3 tools/operators_page.py --write"


def test_the_page_of_prims(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _page("prims", monkeypatch) == (ROOT / "docs" / "prims.md").read_text(), "python3 tools/prims_page.py --write"
