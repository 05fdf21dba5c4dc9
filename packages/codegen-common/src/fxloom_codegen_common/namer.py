"""Identifiers of one scope of generated code.

In: wished names, in the order in which code is written. Out: valid identifiers, each handed out once. Invariant: the same wishes
in the same order give the same names.
"""

from __future__ import annotations

import re

_NOT_IDENTIFIER = re.compile(r"\W+")


class Namer:
    """Hands out names of one scope. reserved: words of the target language."""

    def __init__(self, reserved: frozenset[str] = frozenset()) -> None:
        self._taken: set[str] = set(reserved)
        self._counts: dict[str, int] = {}

    def name(self, wish: str) -> str:
        """`wish` made an identifier, with a number behind it when it is taken."""
        base = _NOT_IDENTIFIER.sub("_", wish).strip("_") or "v"
        if base[0].isdigit():
            base = f"n{base}"
        candidate = base
        while candidate in self._taken:
            count = self._counts.get(base, 0)
            self._counts[base] = count + 1
            candidate = f"{base}_{count}"
        self._taken.add(candidate)
        return candidate

    def numbered(self, prefix: str) -> str:
        """`prefix0`, `prefix1`, ..."""
        while True:
            count = self._counts.get(prefix, 0)
            self._counts[prefix] = count + 1
            candidate = f"{prefix}{count}"
            if candidate not in self._taken:
                self._taken.add(candidate)
                return candidate
