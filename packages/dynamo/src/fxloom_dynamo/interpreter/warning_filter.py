"""What C code and torch warn of while a program is captured: noticed, and neither shown nor counted as shown.

In: every warning of this thread while the program is captured; the filter stands before all others. Out: `take`: texts and
categories, and the functions of torch that warned; `semantics.program_warnings` decides which of them the program would have
shown.
Invariant: the program finds in `warnings.filters` what was there before. Warnings of other threads, and of code of the program's
that runs as it is, are shown.
"""

from __future__ import annotations

import sys
import threading
import types
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fxloom_dynamo.libraries import files

if TYPE_CHECKING:
    from fxloom_dynamo.objects.shadow_heap import ShadowHeap


class WarningFilter:
    """What has been warned of. Stands before all other filters while the program is captured, and takes everything."""

    def __init__(self) -> None:
        self.found: list[tuple[str, type[Warning]]] = []
        #: what the program finds in `warnings.filters`
        self.filters: Any = None
        self._codes: list[types.CodeType] = []
        self._text: str | None = None
        self._thread = threading.get_ident()
        self._off = 0

    @contextmanager
    def taking(self, heap: ShadowHeap) -> Iterator[None]:
        self.filters = before = warnings.filters
        mine = [("ignore", self, self, None, 0), *before]
        vars(warnings)["filters"] = mine
        heap.namespace(vars(warnings)).behind["filters"] = before
        try:
            yield
        finally:
            if warnings.filters is mine:
                vars(warnings)["filters"] = before

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Within the block code of the program runs as it is: what it warns of is shown."""
        self._off += 1
        try:
            yield
        finally:
            self._off -= 1

    def match(self, text: str) -> bool:
        """As the pattern of a filter."""
        mine = not self._off and threading.get_ident() == self._thread
        self._text = text if mine else None
        if mine:
            frame: types.FrameType | None = sys._getframe(1)
            while frame is not None and files.in_torch(frame.f_code.co_filename):
                self._codes.append(frame.f_code)
                frame = frame.f_back
        return mine

    def __subclasscheck__(self, category: type[Warning]) -> bool:
        """As the category of a filter, of which C code asks next."""
        text, self._text = self._text, None
        if text is None:
            return False
        self.found.append((text, category))
        return True

    def take(self) -> tuple[list[tuple[str, type[Warning]]], list[types.CodeType]]:
        """What was found, and the Python functions of torch that warned; forgotten here."""
        taken = self.found, self._codes
        self.found, self._codes = [], []
        return taken
