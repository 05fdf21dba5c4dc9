"""What is assumed about numbers known only at run time (unbacked symbols), and checked when the graph runs.

In: an environment, and a statement or number that neither what is known nor the hints decide. Out: the answer that holds for all sizes
but 0 and 1 (size generalization), noted in `SymbolEnv.deferred` for the run-time check; None where nothing may be assumed.
Invariant: an answer that the program could tell from another one is never assumed without a check.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from fxloom_shapes.errors import ConstraintViolated
from fxloom_shapes.expressions.polynomials import Atom, Poly, const
from fxloom_shapes.expressions.statements import Relation, Statement, symbols_of
from fxloom_shapes.solver import generalization
from fxloom_shapes.solver.constraints import Range
from fxloom_shapes.symbols.messages import in_program_terms
from fxloom_shapes.symbols.symbol import SizeGuard

if TYPE_CHECKING:
    from fxloom_shapes.symbols.env import SymbolEnv

_IN_ONE_GRAPH = (
    "an operator treats sizes like 0 and 1 apart, and with fullgraph=True one graph was made for all others; "
    "without fullgraph the operator runs in eager"
)
_OF_MARKED = (
    "an operator treats sizes like 0 and 1 apart, and mark_unbacked asks for one graph; with mark_dynamic these sizes are "
    "compiled for apart"
)


def assumed_truth(env: SymbolEnv, statement: Statement) -> bool | None:
    """The truth that a statement has for all sizes but 0 and 1, assumed and checked at run time; None where nothing may be assumed."""
    answers = generalization.truths(statement, _assumable(env, symbols_of(statement)), env.hints)
    if len(answers) != 1:
        return None
    (truth,) = answers
    if not generalization.is_about_strides(statement) and not env.tracer.answers_equivalent():
        assume(env, statement if truth else statement.negated(), _why(env))
    return truth


def assumed_number(env: SymbolEnv, poly: Poly) -> int | None:
    """The value that `poly` has for all sizes but 0 and 1 (how many pieces `chunk(2)` gives), assumed and checked at run time."""
    numbers = generalization.values(poly, _assumable(env, poly.symbols()), env.hints)
    if len(numbers) != 1:
        return None
    (number,) = numbers
    assume(env, Relation("==", poly - const(number)), _why(env))
    return number


def assume(
    env: SymbolEnv, statement: Statement, reason: str = "", message: str = "", error: str = "RuntimeError", numbers: tuple[Any, ...] = ()
) -> None:
    """Assume the statement, and have it checked at run time."""
    env.deferred[statement] = SizeGuard(statement, env.tracer.site(), reason, message, error, numbers)
    env.tracer.on_deferred(statement)
    unknown = [env.symbols[atom.text] for atom in symbols_of(statement)]
    env.solver.state(statement, frozenset(s.atom for s in unknown if s.hint is None and not s.sources))


def unknown_ranges(env: SymbolEnv, atoms: Iterable[Atom]) -> dict[str, Range]:
    """Ranges, by name, of the symbols known only at run time."""
    return {atom.text: env.range_of(env.symbols[atom.text]) for atom in atoms if env.symbols[atom.text].hint is None}


def _assumable(env: SymbolEnv, atoms: Iterable[Atom]) -> dict[str, Range]:
    """The unbacked symbols of a statement, where an operator may assume something about all of them; else none.

    It may of dimensions marked as unbacked, of all sizes where the user wants one graph (otherwise a break at the operator
    serves them all), and of any number where it makes no difference.
    """
    unknown = unknown_ranges(env, atoms) if env.in_operator else {}
    if env.tracer.answers_equivalent():
        return unknown
    symbols = [env.symbols[name] for name in unknown]
    wanted = all(env.options.one_graph or symbol.sources for symbol in symbols)
    sizes = all(low is not None and low >= 0 for low, _ in unknown.values()) and not any(symbol.is_float for symbol in symbols)
    return unknown if wanted and sizes else {}


def _why(env: SymbolEnv) -> str:
    return _IN_ONE_GRAPH if env.options.one_graph else _OF_MARKED


def violated(env: SymbolEnv, statement: Statement) -> ConstraintViolated | None:
    """The error for needing to know `statement`, where a dimension marked as unbacked is in it; else None."""
    for atom in symbols_of(statement):
        symbol = env.symbols[atom.text]
        if symbol.hint is None and symbol.sources:
            return ConstraintViolated(
                symbol.sources[0].name,
                f"to know whether {in_program_terms(env, statement)}",
                env.tracer.site(),
                "Promise it by torch._check, or use mark_dynamic instead of mark_unbacked.",
            )
    return None
