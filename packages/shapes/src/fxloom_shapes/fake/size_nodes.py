"""Symbolic numbers as nodes of an FX graph: arithmetic by Python's operators on placeholders of symbols.

In: a graph, and for each symbol the node that holds its number. Out: for a symbolic number the node that computes it, once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Container
from dataclasses import replace
from typing import Any

import torch
import torch.fx

from fxloom_interfaces import meta, symbolic_math
from fxloom_shapes.expressions.floats import FloatExpr
from fxloom_shapes.expressions.polynomials import Atom, Poly, const, of_atom
from fxloom_shapes.expressions.statements import Comparison, Relation, Statement
from fxloom_shapes.fake.tensor import FakeTensor
from fxloom_shapes.symbols.env import SymbolEnv
from fxloom_shapes.symbols.float_nodes import FloatNode
from fxloom_shapes.symbols.nodes import BoolNode, IntNode

#: function of a Poly's atom -> what computes it, on numbers and symbolic numbers alike
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "FloorDiv": operator.floordiv,
    "Mod": operator.mod,
    "Min": torch.sym_min,
    "Max": torch.sym_max,
    "Floor": symbolic_math.floor,
    "Ceil": symbolic_math.ceil,
    "Trunc": symbolic_math.trunc,
    "Round": symbolic_math.round_to_int,
    "And": symbolic_math.bitwise_and,
    "Or": symbolic_math.bitwise_or,
    "Xor": symbolic_math.bitwise_xor,
    "Power": symbolic_math.power,
    "BitLength": symbolic_math.bit_length,
    "Isqrt": symbolic_math.isqrt,
    "Gcd": symbolic_math.gcd,
}
FLOAT_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "truediv": operator.truediv,
    "quotient": symbolic_math.quotient,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "pow": symbolic_math.power,
    "min": torch.sym_min,
    "max": torch.sym_max,
    "neg": operator.neg,
    "abs": operator.abs,
    "float": torch.sym_float,
    "round": symbolic_math.round_to_digits,
    **symbolic_math.UNARY_FUNCTIONS,
}

_RELATIONS = {"==": operator.eq, "!=": operator.ne, ">=": operator.ge}
_COMPARISONS = {"==": operator.eq, "<": operator.lt, "<=": operator.le, "finite": symbolic_math.is_finite}

Symbolic = torch.SymInt | torch.SymFloat | torch.SymBool


def symbols_made(env: SymbolEnv | None, value: Any) -> dict[str, tuple[int, ...] | None]:
    """Unbacked symbols that a call's result makes, if no input holds them.

    name -> where it is: None for the number itself, else (item,) dim.
    """
    if env is None or not env.has_unbacked:
        return {}
    found: dict[str, tuple[int, ...] | None] = {}

    def unbacked(name: str) -> bool:
        return env.symbols[name].hint is None and not env.symbols[name].sources

    def look(item: Any, path: tuple[int, ...]) -> None:
        node = getattr(item, "node", None)
        if isinstance(node, (IntNode, BoolNode)):
            name = _lone(node.poly) if isinstance(node, IntNode) else truth_symbol(node)
            if name is not None and unbacked(name):
                found.setdefault(name, None)
        elif isinstance(node, FloatNode) and node.float_expr.kind == "symbol" and unbacked(node.float_expr.args[0].text):
            found.setdefault(node.float_expr.args[0].text, None)
        elif type(item) is FakeTensor and item.desc.env is not None:
            for dim, extent in enumerate(item.desc.size):
                if type(extent) is not int and (name := _lone(extent.node.poly)) is not None:  # type: ignore[attr-defined]  # symbolic
                    if unbacked(name):
                        found.setdefault(name, (*path, dim))
        elif isinstance(item, (tuple, list)) and not path:
            for place, part in enumerate(item):
                look(part, (place,))

    look(value, ())
    return found


def truth_symbol(node: BoolNode) -> str | None:
    """The name of the symbol, 0 or 1, that is the truth value as a number; None for other statements."""
    statement = node.statement
    return _lone(statement.poly) if isinstance(statement, Relation) and statement.op == "!=" else None


def _lone(poly: Poly) -> str | None:
    """The name of the symbol that a polynomial is."""
    atom = next(iter(poly.atoms()), None)
    return atom.text if atom is not None and not atom.kind and poly.terms == {(atom,): 1} else None


class SizeNodes:
    """See the module's docstring. create: makes a call_function node; symbol: gives a symbol's node by name."""

    def __init__(self, create: Callable[[Any, tuple[Any, ...]], torch.fx.Node], symbol: Callable[[str], torch.fx.Node]) -> None:
        self._create = create
        self._symbol = symbol
        self._known: dict[Any, Any] = {}

    def node_of(self, value: Any) -> Any:
        """The node of a symbolic number, or a plain number where it has become one."""
        node = value.node
        if isinstance(node, IntNode):
            return self.poly(node.env, node.env.solver.simplify(node.poly))
        if isinstance(node, FloatNode):
            return self.float_expr(node.env, node.float_expr)
        if isinstance(node, BoolNode):
            return node.statement if isinstance(node.statement, bool) else self.statement(node.env, node.statement)
        raise TypeError(f"{value!r} is not a number of this compilation")

    def statement(self, env: SymbolEnv, statement: Statement) -> Any:
        """The node of a truth value."""
        known = self._known.get(statement)
        if known is None:
            if isinstance(statement, Relation):
                known = self._create(_RELATIONS[statement.op], (self.poly(env, statement.poly), 0))
            elif isinstance(statement, Comparison):
                known = self._create(_COMPARISONS[statement.op], tuple(self.float_expr(env, part) for part in statement.args))
                if not statement.truth:
                    meta.set_fake(known, torch.SymBool(BoolNode(env, replace(statement, truth=True))))
                    known = self._create(symbolic_math.negation, (known,))
            else:
                known = self.statement(env, statement.parts[0])
                for part in statement.parts[1:]:
                    function = operator.and_ if statement.kind == "and" else operator.or_
                    known = self._create(function, (known, self.statement(env, part)))
                    meta.set_fake(known, torch.SymBool(BoolNode(env, statement)))
            meta.set_fake(known, torch.SymBool(BoolNode(env, statement)))
            self._known[statement] = known
        return known

    def know(self, value: Any, node: torch.fx.Node) -> None:
        """`node` computes `value`."""
        inner = value.node
        if isinstance(inner, IntNode):
            self._known.setdefault(inner.env.solver.simplify(inner.poly), node)

    def forget(self, nodes: Container[torch.fx.Node]) -> None:
        """`nodes` are going to be erased."""
        self._known = {key: node for key, node in self._known.items() if node not in nodes}

    def poly(self, env: SymbolEnv, poly: Poly) -> Any:
        value = poly.constant
        if value is not None:
            return value
        known = self._known.get(poly)
        if known is None:
            known = self._known[poly] = self._sum(env, poly)
        return known

    def _sum(self, env: SymbolEnv, poly: Poly) -> Any:
        (first, factor), *rest = sorted(poly.terms.items(), key=lambda term: (term[1] < 0, not term[0], str(term[0])))
        result, so_far = self._term(env, first, factor), Poly({first: factor})
        for monomial, value in rest:
            so_far = so_far + Poly({monomial: value})
            if value < 0:
                result = self._call(env, operator.sub, (result, self._term(env, monomial, -value)), so_far)
            else:
                result = self._call(env, operator.add, (result, self._term(env, monomial, value)), so_far)
        return result

    def _term(self, env: SymbolEnv, monomial: tuple[Atom, ...], factor: int) -> Any:
        if not monomial:
            return factor
        result, so_far = self._atom(env, monomial[0]), of_atom(monomial[0])
        for atom in monomial[1:]:
            so_far = so_far * of_atom(atom)
            result = self._call(env, operator.mul, (result, self._atom(env, atom)), so_far)
        return result if factor == 1 else self._call(env, operator.mul, (result, factor), so_far * const(factor))

    def _atom(self, env: SymbolEnv, atom: Atom) -> Any:
        if not atom.kind:
            return self._symbol(atom.text)
        arguments = tuple(
            self.float_expr(env, argument) if isinstance(argument, FloatExpr) else self.poly(env, argument) for argument in atom.args
        )
        return self._call(env, FUNCTIONS[atom.kind], arguments, of_atom(atom))

    def _call(self, env: SymbolEnv, function: Any, args: tuple[Any, ...], poly: Poly) -> Any:
        known = self._known.get(poly)
        if known is None:
            known = self._known[poly] = self._create(function, args)
            meta.set_fake(known, env.number(poly))
        return known

    def float_expr(self, env: SymbolEnv, expr: FloatExpr) -> Any:
        if expr.kind == "const":
            return expr.args[0]
        if expr.kind == "int":
            return self.poly(env, env.solver.simplify(expr.args[0]))
        if expr.kind == "symbol":
            return self._symbol(expr.args[0].text)
        known = self._known.get(expr)
        if known is None:
            args = tuple(self.float_expr(env, argument) for argument in expr.args)
            known = self._known[expr] = self._create(FLOAT_FUNCTIONS[expr.kind], args)
            meta.set_fake(known, torch.SymFloat(FloatNode(env, expr)))
        return known
