"""Source text, a line at a time.

In: lines, blocks and comments. Out: indented text. Invariant: nothing emitted is ever edited.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class SourceWriter:
    """Collects lines at the current indent. unit: text of one indent step; comment_mark: how a comment line begins."""

    def __init__(self, unit: str = "    ", comment_mark: str = "#") -> None:
        self._lines: list[str] = []
        self._depth = 0
        self._unit = unit
        self._mark = comment_mark

    def line(self, text: str = "") -> None:
        """One line; an empty one carries no indent."""
        self._lines.append(f"{self._unit * self._depth}{text}" if text else "")

    def lines(self, text: str) -> None:
        """Several lines of text at the current indent."""
        for line in text.splitlines():
            self.line(line)

    def comment(self, text: str) -> None:
        """A comment line."""
        self.line(f"{self._mark} {text}")

    def flush_left(self, text: str) -> None:
        """A line without indent (preprocessor directives)."""
        self._lines.append(text)

    @contextmanager
    def indent(self) -> Iterator[None]:
        """Deeper by one step inside the block."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    @contextmanager
    def block(self, head: str, end: str = "}") -> Iterator[None]:
        """`head` line, an indented body, `end` line."""
        self.line(head)
        with self.indent():
            yield
        if end:
            self.line(end)

    def text(self) -> str:
        """All of it, ending in a newline."""
        return "\n".join(self._lines) + "\n"
