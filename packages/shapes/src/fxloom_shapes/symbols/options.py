"""Settings of the symbol environment: the options of a compilation, the origin of a query about sizes, the tracer's callbacks.

In: what the umbrella's options and the layer that traces set. Out: frozen records that `SymbolEnv` reads; nothing here decides.
Besides what the solver knows and the hints, they determine how `SymbolEnv` answers a query: from a hint with a guard (`decide`), by an
assumption that is checked at run time (`SymbolEnv.expect`, `Tracer.on_deferred`), or not at all.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fxloom_interfaces.errors import Site


class QueryOrigin(enum.Enum):
    """Where a query about sizes comes from.

    PROGRAM: a branch of the program, `if x.shape[0] > 3`. NUMBER: the program uses a plain number (`range(n)`, a key of a dict), so
    that only the program itself fixes it to a value. OPERATOR: a kernel, which may treat 0 and 1 apart for reasons of its own.
    MEMORY: torch's check that a tensor fits into its memory; fakes have none, so it is answered with yes.
    """

    PROGRAM = enum.auto()
    NUMBER = enum.auto()
    OPERATOR = enum.auto()
    MEMORY = enum.auto()


@dataclass(frozen=True, slots=True)
class EnvOptions:
    """What a compilation wants.

    duck: equal sizes share a symbol. specialize: 0 and 1 never become symbols.
    capture_scalars: reading a number out of a tensor makes a symbol; capture_shapes: so do operators whose shapes depend on values.
    capture_indices: so does an integer tensor without axes among the items of an index, `x[i]`.
    one_graph: operators assume what holds of all sizes but 0 and 1, and have it checked at run time, since a break is an error.
    compiled_values: name of a source -> values of its number that code was compiled for; an operator that would specialize to yet
    another one breaks the graph instead.
    """

    duck: bool = True
    specialize: bool = True
    capture_scalars: bool = False
    capture_shapes: bool = False
    capture_indices: bool = False
    one_graph: bool = False
    compiled_values: Mapping[str, Sequence[Any]] = field(default_factory=dict)


def _nothing() -> str:
    return ""


def _no_site() -> Site | None:
    return None


@dataclass(frozen=True, slots=True)
class Tracer:
    """Callbacks of the layer that traces.

    site: the user's line of the current query. on_symbol: called when a symbol is made. on_deferred: called when a statement about unbacked
    symbols is assumed, so that the trace checks it at run time. answers_equivalent: True while both answers lead to the same result.
    expression: the program's expression whose value the next unbacked symbol stands for, for messages.
    """

    site: Callable[[], Site | None] = _no_site
    on_symbol: Callable[[], None] = lambda: None
    on_deferred: Callable[[Any], None] = lambda statement: None
    answers_equivalent: Callable[[], bool] = lambda: False
    expression: Callable[[], str] = _nothing
