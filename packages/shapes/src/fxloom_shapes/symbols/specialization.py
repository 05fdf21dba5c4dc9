"""Numbers that a trace fixes to the value that they have: which ones, and when that is refused.

In: an environment, and a statement that becomes a guard or a symbol whose plain number is wanted. Out: nothing, or
`ConstraintViolated` where the user asked for any value (`mark_dynamic`), or `Specialized` where an operator would fix a number for
which code was compiled for other values already. Invariant: the environment is only read.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fxloom_interfaces.errors import Site
from fxloom_shapes.errors import ConstraintViolated, Specialized
from fxloom_shapes.expressions.statements import Statement, symbols_of
from fxloom_shapes.symbols.messages import in_program_terms
from fxloom_shapes.symbols.options import QueryOrigin
from fxloom_shapes.symbols.symbol import Symbol

if TYPE_CHECKING:
    from fxloom_shapes.symbols.env import SymbolEnv

#: how far from a size `has_one_value` looks for other sizes that satisfy the guards
_NEARBY = 2048


def refuse_specialization(env: SymbolEnv, statement: Statement, site: Site | None) -> None:
    """Raise where a dimension that the user asked to be dynamic is left with one value by the statement."""
    for atom in symbols_of(statement):
        symbol = env.symbols[atom.text]
        if symbol.pinned and has_one_value(env, symbol):
            where = symbol.label or (symbol.sources[0].name if symbol.sources else symbol.name)
            raise ConstraintViolated(where, in_program_terms(env, statement), site)


def has_one_value(env: SymbolEnv, symbol: Symbol, *more: Statement) -> bool:
    """True where no other number near by satisfies the guards on the symbol alone and `more`: the symbol is specialized."""
    known = env.solver.equal.get(symbol.atom)
    if known is not None:
        return known.constant is not None
    low, high = env.range_of(symbol)
    hint = symbol.hint
    if symbol.is_float or not isinstance(hint, int) or symbol.promised[0] is not None and symbol.promised[0] == symbol.promised[1]:
        return False
    own = [statement for statement in env.guards if [*symbols_of(statement)] == [symbol.atom]] + [*more]
    others = itertools.chain(range(hint + 1, hint + _NEARBY), range(hint - 1, hint - _NEARBY, -1), range(2 * hint, 99 * hint, hint))
    return not any(
        (low is None or low <= other) and (high is None or other <= high) and all(_holds(statement, symbol, other) for statement in own)
        for other in others
    )


def refuse_respecialization(env: SymbolEnv, symbols: Sequence[Symbol]) -> None:
    """Break where an operator would specialize a number for which code was compiled twice already."""
    if env.query_origin is QueryOrigin.NUMBER:
        return
    for symbol in symbols:
        for source in symbol.sources:
            values = env.options.compiled_values.get(source.name)
            if values and symbol.hint not in values:
                raise Specialized(source.name, symbol.hint)


def specialized_sources(env: SymbolEnv) -> dict[str, int | float | None]:
    """The numbers that the trace was specialized to, by the names of their sources."""
    found: dict[str, int | float | None] = {}
    for symbol in env.symbols.values():
        known = env.solver.equal.get(symbol.atom)
        if symbol.name in env.pinned_floats or known is not None and known.constant is not None:
            found.update({source.name: symbol.hint for source in symbol.sources})
    return found


def _holds(statement: Statement, symbol: Symbol, number: int) -> bool:
    try:
        return statement.holds({symbol.name: number})
    except (ArithmeticError, ValueError):
        return False
