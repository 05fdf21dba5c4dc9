"""Messages about statements on symbols, with the program's own names for them.

In: an environment and a statement. Out: text, or the arguments of a check that makes the text when the program runs. Symbols are
called what the program calls them: by the place of an input, or by the expression that computes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fxloom_interfaces.node_text import spelled
from fxloom_shapes.expressions.polynomials import Poly
from fxloom_shapes.expressions.statements import Relation, Statement, symbols_of
from fxloom_shapes.expressions.text import number_text, statement_text

if TYPE_CHECKING:
    from fxloom_shapes.symbols.env import SymbolEnv


def _names(env: SymbolEnv, statement: Statement) -> dict[str, str]:
    """The program's expression for each symbol in a statement, as far as it is known."""
    symbols = [env.symbols[atom.text] for atom in symbols_of(statement)]
    called = {symbol.name: symbol.sources[0].name if symbol.sources else symbol.computed_by for symbol in symbols}
    return {name: spelled(text) for name, text in called.items() if text}


def in_program_terms(env: SymbolEnv, statement: Statement) -> str:
    """A statement in the program's terms."""
    return statement_text(statement, _names(env, statement))


def _number_in_program_terms(env: SymbolEnv, poly: Poly) -> str:
    """A number in the program's terms."""
    return number_text(poly, _names(env, Relation("==", poly)))


def failure_message(env: SymbolEnv, statement: Statement) -> str:
    """What to say when a statement that was assumed (`SymbolEnv.deferred`) turns out not to hold."""
    guard = env.deferred[statement]
    if guard.message:
        numbers = [_number_in_program_terms(env, n.node.poly) if type(n) is torch.SymInt else n for n in guard.numbers]
        return guard.message.format(*numbers) if numbers else guard.message
    where = f"at {guard.site}" if guard.site is not None else ""
    why = "; ".join(part for part in (guard.reason, where) if part)
    return f"{in_program_terms(env, statement)} does not hold" + (f" ({why})" if why else "")


def check_arguments(env: SymbolEnv, statement: Statement) -> tuple[Any, ...]:
    """The arguments behind the condition with which `symbolic_math.check` says the same, with the numbers of the run."""
    guard = env.deferred[statement]
    if guard.error == "RuntimeError" and not guard.numbers:
        return (failure_message(env, statement),)
    return guard.message, guard.error, *guard.numbers


def value_failure_message(env: SymbolEnv, name: str) -> str:
    """What to say when the symbol `name` does not have the value that an equation assumed for it; empty where none did."""
    for statement in env.deferred:
        if isinstance(statement, Relation) and statement.op == "==" and name in [atom.text for atom in symbols_of(statement)]:
            return failure_message(env, statement)
    return ""
