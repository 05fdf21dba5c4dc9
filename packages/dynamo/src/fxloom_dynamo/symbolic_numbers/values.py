"""Symbolic numbers as values: what they are to the program, the number that they are now, and their text for run time.

In: a symbolic int, float or bool. Out: its hint as a plain number, under a guard (`concrete`); a plain number where it is
constant anyway (`settled`); a Python expression that replacement code evaluates (`run_time_text`).
Invariant: to the program a symbolic int is an int; whoever looks at the number itself leaves a guard.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

from fxloom_dynamo import _native
from fxloom_dynamo.breaks import graph_break
from fxloom_interfaces import symbolic_math
from fxloom_shapes import FakeTensor
from fxloom_shapes.expressions.floats import python_text
from fxloom_shapes.symbols.float_nodes import FloatNode
from fxloom_shapes.symbols.nodes import IntNode, Node
from fxloom_shapes.symbols.numbers import SYMBOLIC
from fxloom_shapes.symbols.options import QueryOrigin

PYTHON_TYPES: dict[type, type] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}


def concrete(value: Any) -> Any:
    """The plain number that a symbolic one is now, under a guard; anything else as it is."""
    plain = PYTHON_TYPES.get(type(value))
    if plain is None:
        return value
    env = value.node.env
    with nullcontext() if plain is float else env.queried_by(QueryOrigin.NUMBER):
        return plain(value)


def has_symbolic(values: Any) -> bool:
    return any(type(value) in SYMBOLIC for value in values)


def settled(value: Any) -> Any:
    """A plain number where a symbolic one has turned out constant; a plain bool for a comparison that can be answered."""
    kind = type(value)
    if kind is torch.SymInt:
        known = value.node.maybe_as_int()
        return value if known is None else known
    if kind is torch.SymFloat:
        known = value.node.maybe_as_float()
        return value if known is None else known
    if kind is torch.SymBool and value.node.has_hint():
        return bool(value)
    return value


def beside(value: Any, other: Any) -> Any:
    """A truth value that meets a tensor, as torch's operators take it: a number, unless the tensor holds truth values."""
    if type(value) is torch.SymBool and type(other) is FakeTensor and other.dtype is not torch.bool:
        return symbolic_math.as_int(value)
    return value


def are_alike(values: Any) -> bool:
    """A list or tuple of numbers of one type, some of them symbolic, the smallest of which is a symbolic number too."""
    return isinstance(values, (list, tuple)) and has_symbolic(values) and alike(*values)


def alike(*values: Any) -> bool:
    """All integers or all floats: the larger one then is of that type too."""
    kinds = {PYTHON_TYPES.get(type(value), type(value)) for value in values}
    return kinds == {int} or kinds == {float}


def run_time_text(value: Any) -> tuple[str, tuple[str, ...]]:
    """A symbolic number as a Python expression, and the names of the symbols in it."""
    node: Node = value.node
    if isinstance(node, IntNode):
        poly = node.env.solver.simplify(node.poly)
        return python_text(poly), tuple(atom.text for atom in poly.symbols())
    if isinstance(node, FloatNode):
        return str(node.float_expr), tuple(atom.text for atom in node.float_expr.symbols())
    graph_break("data_dependent", f"the truth of {node} is known only when the program runs")


def run_time_function(text: str, names: tuple[str, ...]) -> Callable[..., Any]:
    """The function of the symbols' numbers that a text from `run_time_text` stands for."""
    made = eval(f"lambda {', '.join(names)}: {text}", {"math": math})  # our own text
    _native.skip_code(made.__code__)
    return made  # type: ignore[no-any-return]  # a function


def unbacked(value: Any) -> bool:
    """True when only running the graph tells the number."""
    return not value.node.has_hint()


def refuse_hash(exc: BaseException) -> None:
    """Break where C code wanted to hash a symbolic number that lies in something."""
    if isinstance(exc, TypeError) and "SymInt" in str(exc):
        graph_break("native_call", "C code hashes an object that holds a size that may change")
