"""Numbers that are known when the compiled graph runs: symbolic sizes in arguments of views, in strides of gradients.

In: a nest of plain and symbolic numbers, and where the values of a call hold each symbol. Out: a function from these values to the
nest of plain numbers, made once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fxloom_interfaces.errors import InternalError
from fxloom_shapes.expressions.floats import python_text
from fxloom_shapes.symbols.float_nodes import FloatNode
from fxloom_shapes.symbols.nodes import IntNode
from fxloom_shapes.symbols.numbers import SYMBOLIC


class SymbolMissing(InternalError):
    """A number is computed from a symbol that no input holds, an unbacked one for example."""


RuntimeValue = Callable[[Sequence[Any]], Any]


def is_symbolic(nest: Any) -> bool:
    """True when a symbolic number is somewhere in the nest."""
    if isinstance(nest, (tuple, list)):
        return any(is_symbolic(item) for item in nest)
    return type(nest) in SYMBOLIC


def runtime_value(nest: Any, places: Mapping[str, int]) -> RuntimeValue:
    """The function from the values of a call to `nest` with its symbols replaced; places: where the values hold each symbol."""
    if isinstance(nest, (tuple, list)) and is_symbolic(nest):
        parts = [runtime_value(item, places) for item in nest]
        if isinstance(nest, tuple):
            return lambda values: tuple([part(values) for part in parts])
        return lambda values: [part(values) for part in parts]
    if type(nest) in SYMBOLIC:
        return _number_at_runtime(nest, places)
    return lambda values: nest


def _number_at_runtime(number: Any, places: Mapping[str, int]) -> RuntimeValue:
    names, text = _as_python(number)
    missing = [name for name in names if name not in places]
    if missing:
        raise SymbolMissing("aot", f"{number} needs {', '.join(missing)}, which no input holds")
    # an expression of the environment, as its own printer writes it: nothing of the user's is in it
    function = eval(f"lambda {', '.join(names)}: {text}", {"math": math})
    at = [places[name] for name in names]
    return lambda values: function(*[values[place] for place in at])


def _as_python(number: Any) -> tuple[list[str], str]:
    """The symbols of a number, and the expression that it is of these."""
    node = number.node
    if isinstance(node, IntNode):
        poly = node.env.solver.simplify(node.poly)
        return [atom.text for atom in poly.symbols()], python_text(poly)
    if isinstance(node, FloatNode):
        return [atom.text for atom in node.float_expr.symbols()], str(node.float_expr)
    return [], str(bool(number))
