"""Sizes that are known when the compiled graph runs: arguments of views and strides of gradients with symbolic numbers in them.

In: a nest of plain and symbolic numbers, and where the caller's inputs hold each symbol. Out: a function from those inputs to
the nest of plain numbers, made once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fxloom_interfaces.errors import InternalError
from fxloom_shapes.nodes import FloatNode, IntNode
from fxloom_shapes.propagate import SYMBOLIC
from fxloom_shapes.reals import python_text

Late = Callable[[Sequence[Any]], Any]


def is_symbolic(nest: Any) -> bool:
    """True when a symbolic number is somewhere in the nest."""
    if isinstance(nest, (tuple, list)):
        return any(is_symbolic(item) for item in nest)
    return type(nest) in SYMBOLIC


def late(nest: Any, places: Mapping[str, int]) -> Late:
    """The function from values to `nest` with its symbols put in; places: where the values hold each symbol."""
    if not is_symbolic(nest):
        return lambda values: nest
    constants: list[Any] = []

    def text(item: Any) -> str:
        if isinstance(item, (tuple, list)):
            inside = "".join(f"{text(part)}, " for part in item)
            return f"[{inside}]" if isinstance(item, list) else f"({inside})"
        if type(item) in SYMBOLIC:
            return _number_text(item, places)
        constants.append(item)
        return f"constants[{len(constants) - 1}]"

    source = f"lambda values: {text(nest)}"
    return eval(source, {"constants": constants, "math": math})  # type: ignore[no-any-return]  # text made above


def _number_text(number: Any, places: Mapping[str, int]) -> str:
    node = number.node
    if isinstance(node, IntNode):
        poly = node.env.facts.simplify(node.poly)
        names, body = [atom.text for atom in poly.symbols()], python_text(poly)
    elif isinstance(node, FloatNode):
        names, body = [atom.text for atom in node.real.symbols()], str(node.real)
    else:
        return str(bool(number))
    missing = [name for name in names if name not in places]
    if missing:
        raise InternalError("aot", f"{number} needs {', '.join(missing)}, which no input holds")
    inputs = ", ".join(f"values[{places[name]}]" for name in names)
    return f"(lambda {', '.join(names)}: {body})({inputs})"
