"""What a program has said about single functions: stand in graphs as one call, break, or give a constant.

Kept apart from the functions themselves, which may be torch's or written in C. Read by the evaluator and the recorder;
`public_api.controls` writes it.
"""

from __future__ import annotations

import enum
from typing import Any


class Wish(enum.Enum):
    """ALLOW: one opaque call in the graph. DISALLOW: a graph break. CONSTANT: called once, while capturing."""

    ALLOW = "allow_in_graph"
    DISALLOW = "disallow_in_graph"
    CONSTANT = "assume_constant_result"


#: function -> wish; functions that someone marked are kept alive, as their registration would be by a decorator
_WISHES: dict[Any, Wish] = {}


def express(function: Any, wish: Wish | None) -> None:
    """Note or, with None, forget what is wished for a function."""
    if wish is None:
        _WISHES.pop(function, None)
    else:
        _WISHES[function] = wish


def wish_for(function: Any) -> Wish | None:
    """What was said about `function`, if anything."""
    if not _WISHES:
        return None
    try:
        return _WISHES.get(function)
    except TypeError:  # a bound method of something unhashable
        return None


def is_compiling() -> bool:
    """True while the program is captured, so in compiled code; False in eager."""
    return False
