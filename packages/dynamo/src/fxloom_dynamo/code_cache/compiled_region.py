"""A compiled region: all that is compiled for one callable that the user had compiled, on every code object that it reaches.

In: the configuration, and what is called when the hook finds no entry whose guards hold (`misses`). Out: the native region, in which
the hook looks entries up. Invariant: who holds the callable holds the region, and nobody else; when it dies its entries are freed.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable
from typing import Any

from fxloom_dynamo import _native
from fxloom_dynamo.config import CaptureConfig
from fxloom_dynamo.guard.history import History


class CompiledRegion:
    """Everything compiled for one callable. Dropping it frees the entries on all code objects."""

    def __init__(
        self,
        config: CaptureConfig,
        root: types.CodeType | None,
        on_miss: Callable[[weakref.ref[CompiledRegion]], Callable[..., Any]],
    ) -> None:
        """root: code of the function that the user had compiled. on_miss: makes the hook's callback."""
        self.config = config
        self.root = root
        self.plain_calls: dict[types.CodeType, int] = {}  # calls that had nothing to do with tensors
        # The native region must not keep this object alive: nothing would ever free the cycle.
        self.native = _native.Region(on_miss(weakref.ref(self)))
        self._histories: dict[types.CodeType, History] = {}
        _regions.add(self)

    def history(self, code: types.CodeType) -> History:
        """What calls of `code` in this region looked like so far."""
        return self._histories.setdefault(code, History())

    def reset(self) -> None:
        """Forget all compiled code; the next calls compile again."""
        self.native.clear()
        self._histories.clear()
        self.plain_calls.clear()


_regions: weakref.WeakSet[CompiledRegion] = weakref.WeakSet()


def live_regions() -> list[CompiledRegion]:
    """All regions that are in use."""
    return list(_regions)
