"""What other modules need of symbolic numbers: their types, keys to compare them by, estimates, the symbols in them.

In: plain numbers and torch's symbolic ones. Out: facts about them. Invariant: nothing here leaves a guard.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fxloom_shapes.expressions.floats import FloatExpr
from fxloom_shapes.expressions.polynomials import of_atom
from fxloom_shapes.expressions.statements import symbols_of
from fxloom_shapes.symbols.float_nodes import FloatNode
from fxloom_shapes.symbols.nodes import BoolNode, IntNode

if TYPE_CHECKING:
    from fxloom_shapes.symbols.env import SymbolEnv

SYMBOLIC = frozenset({torch.SymInt, torch.SymFloat, torch.SymBool})


class SymbolicKey:
    """A symbolic number in a key: equal where the expressions are, in one environment."""

    __slots__ = ("env", "value")

    def __init__(self, node: Any) -> None:
        self.env = node.env
        self.value = node.float_expr if isinstance(node, FloatNode) else node.poly if isinstance(node, IntNode) else node.statement

    def __hash__(self) -> int:
        return hash(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SymbolicKey) and self.env is other.env and self.value == other.value


def estimate(number: Any) -> int:
    """About how large a size is, for heuristics: its value in the traced call, or a default for unbacked ones. Leaves no guard."""
    if isinstance(number, int):
        return number
    node = number.node
    hint = node.hint
    if hint is None and isinstance(node, IntNode):
        return int(node.poly.value(_Estimates(node.env.hints)))
    return _UNBACKED_ESTIMATE if hint is None else int(hint)


_UNBACKED_ESTIMATE = 4096


class _Estimates(dict[str, Any]):
    """Values of symbols in the traced call; a default for unbacked ones."""

    def __missing__(self, name: str) -> int:
        return _UNBACKED_ESTIMATE


def symbol_names(values: Any) -> dict[str, None]:
    """Names of the symbols in numbers, plain ones among them."""
    found: dict[str, None] = {}
    for value in values:
        node = getattr(value, "node", None)
        if isinstance(node, IntNode):
            found.update({atom.text: None for atom in node.env.solver.simplify(node.poly).symbols()})
        elif isinstance(node, FloatNode):
            found.update({atom.text: None for atom in node.float_expr.symbols()})
        elif isinstance(node, BoolNode) and not isinstance(node.statement, bool):
            found.update({atom.text: None for atom in symbols_of(node.statement)})
    return found


def symbol_number(env: SymbolEnv | None, name: str) -> torch.SymInt | torch.SymFloat | int:
    """The number that the symbol `name` stands for."""
    assert env is not None
    symbol = env.symbols[name]
    return torch.SymFloat(FloatNode(env, FloatExpr("symbol", (symbol.atom,)))) if symbol.is_float else env.number(of_atom(symbol.atom))
