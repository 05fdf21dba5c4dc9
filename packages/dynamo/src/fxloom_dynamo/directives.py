"""Capture directives for single functions: be one call in the graph, be a graph break, or give a constant.

In: a function and the directive, which `public_api.controls` sets. Out: the directive of a function, for the evaluator and the
recorder. Kept apart from the functions themselves, which may be torch's or written in C.
"""

from __future__ import annotations

import enum
from typing import Any


class Directive(enum.Enum):
    """ALLOW: one opaque call in the graph. DISALLOW: a graph break. CONSTANT: called once, while capturing."""

    ALLOW = "allow_in_graph"
    DISALLOW = "disallow_in_graph"
    CONSTANT = "assume_constant_result"


#: function -> directive; functions that someone marked are kept alive, as their registration would be by a decorator
_DIRECTIVES: dict[Any, Directive] = {}


def set_directive(function: Any, directive: Directive | None) -> None:
    """Note or, with None, forget the directive for a function."""
    if directive is None:
        _DIRECTIVES.pop(function, None)
    else:
        _DIRECTIVES[function] = directive


def directive_for(function: Any) -> Directive | None:
    """What was said about `function`, if anything."""
    if not _DIRECTIVES:
        return None
    try:
        return _DIRECTIVES.get(function)
    except TypeError:  # a bound method of something unhashable
        return None


def is_compiling() -> bool:
    """True while the program is captured, so in compiled code; False in eager."""
    return False
