"""Backends that don't declare `takes_integers`: whether their graphs may have numbers among the inputs all the same.

Such a backend may trace the graph again on its example inputs, and a number would become a constant there. So it is
tried: a backend that looks at its example inputs, keeps them for later, or returns anything else than the graph that it was given
gets graphs of tensors only, one per size and number. One that does none of that (it counts graphs, prints them, runs them)
can't make constants of numbers, and gets them.

In: a graph with numbers among its inputs. Out: what the backend returned, if it is the graph; None otherwise.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NoReturn

import torch.fx


class _Looked(BaseException):
    """Ends the backend's work on this graph; no `except Exception` of the backend's may hold it up."""


class _Unseen(list[None]):
    """Has a length, and in the place of each example input None, for C code that reads lists without asking."""

    looked = False

    def _look(self, *_: Any, **__: Any) -> NoReturn:
        self.looked = True
        raise _Looked

    __iter__ = __getitem__ = __reversed__ = __contains__ = __repr__ = __eq__ = __ne__ = _look  # type: ignore[assignment]
    __add__ = __radd__ = __mul__ = __rmul__ = __iadd__ = __setitem__ = __delitem__ = __reduce_ex__ = _look  # type: ignore[assignment]
    append = extend = insert = pop = remove = clear = copy = index = count = reverse = sort = _look  # type: ignore[assignment]


#: references to the inputs that are not the backend's: the local variable and getrefcount's argument
_OURS = 2


def offer(backend: Callable[..., Any], gm: torch.fx.GraphModule, count: int) -> Callable[..., Any] | None:
    """See the module's docstring. count: of the graph's inputs. What the backend raises counts as having looked."""
    inputs = _Unseen([None] * count)
    try:
        compiled = backend(gm, inputs)
    except (_Looked, Exception):
        return None
    if inputs.looked or sys.getrefcount(inputs) > _OURS or not returns_graph(compiled, gm):
        return None
    return compiled  # type: ignore[no-any-return]  # the graph


def returns_graph(compiled: Any, gm: torch.fx.GraphModule) -> bool:
    """Whether `compiled` is the graph itself."""
    return compiled is gm or getattr(compiled, "__self__", None) is gm
