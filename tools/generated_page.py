"""What a tool that writes a page of the documentation does with its text: say whether the page is stale, or write it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def refresh(page: Path, text: str, arguments: Sequence[str]) -> int:
    """The tool's exit status: 1 where the page is another, unless `arguments` are `--write`, which writes it."""
    if list(arguments) == ["--write"]:
        page.write_text(text)
        return 0
    stale = not page.is_file() or page.read_text() != text
    if stale:
        print(f"docs/{page.name} is stale: --write")
    return int(stale)
