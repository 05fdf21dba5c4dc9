"""Symbolic numbers as nodes of a graph that is being written.

In: what each node of the graph gives, as it is added. Out: for a symbolic number the node that holds it, or new nodes that compute it
from symbols whose nodes are known: numbers that the graph was given, and extents of tensors (`aten.sym_size.int`).
Numbers are known by what they print as: equal expressions print alike. Of a number's own node this module reads `expr`: a SymPy
expression (of `fxloom_interfaces.expr`) for an integer; for a float a tree with `kind` and `args`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from fxloom_interfaces import symbolic_math
from fxloom_interfaces.errors import InternalError
from fxloom_interfaces.meta import get_fake, set_fake

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "FloorDiv": operator.floordiv, "Mod": operator.mod, "Min": torch.sym_min, "Max": torch.sym_max,
}  # fmt: skip
_FLOAT_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "truediv": operator.truediv, "floordiv": operator.floordiv,
    "mod": operator.mod, "neg": operator.neg, "min": torch.sym_min, "max": torch.sym_max, "float": torch.sym_float,
    "pow": symbolic_math.power, "quotient": symbolic_math.quotient, "round": symbolic_math.round_to_digits, **symbolic_math.UNARY_FUNCTIONS,
}  # fmt: skip


class SizeNodes:
    """See the module's docstring."""

    def __init__(self, graph: torch.fx.Graph) -> None:
        self._graph = graph
        self._known: dict[str, torch.fx.Node] = {}
        self._extents: dict[str, tuple[torch.fx.Node, int]] = {}

    def seen(self, value: Any, node: torch.fx.Node) -> None:
        """`node` gives `value`."""
        if isinstance(value, SYMBOLIC):
            self._known.setdefault(str(value), node)
            if isinstance(value, torch.SymInt):
                self._known.setdefault(str(value.node.expr), node)
        elif isinstance(value, torch.Tensor):
            for dim, extent in enumerate(value.shape):
                if isinstance(extent, torch.SymInt):
                    self._extents.setdefault(str(extent), (node, dim))

    def node_of(self, value: Any) -> Any:
        """The node of a symbolic number, or a plain number where it is one by now."""
        known = self._known.get(str(value))
        if known is not None:
            return known
        if isinstance(value, torch.SymInt):
            return self._expression(value.node.expr, value)
        if isinstance(value, torch.SymFloat):
            return self._float(value.node.expr, value.node.env)
        raise InternalError("decomp", f"no node of the graph gives the number {value}")

    def _expression(self, expr: Any, value: Any = None) -> Any:
        if expr.is_Integer:
            return int(expr)
        text = str(value) if value is not None else str(expr)
        if text in self._known:
            return self._known[text]
        if text in self._extents:
            node, dim = self._extents[text]
            found = self._made(torch.ops.aten.sym_size.int, (node, dim), get_fake(node).shape[dim])
        elif expr.is_Add or expr.is_Mul:
            function = operator.add if expr.is_Add else operator.mul
            found, *rest = [self._expression(part) for part in expr.args]
            for part in rest:
                found = self._made(function, (found, part))
        elif expr.is_Pow and expr.exp.is_Integer:
            base = found = self._expression(expr.base)
            for _ in range(int(expr.exp) - 1):
                found = self._made(operator.mul, (found, base))
        elif type(expr).__name__ in _FUNCTIONS:
            found = self._made(_FUNCTIONS[type(expr).__name__], tuple(self._expression(part) for part in expr.args))
        else:
            raise InternalError("decomp", f"no node of the graph gives the size {expr}")
        if isinstance(found, torch.fx.Node):
            self._known[text] = found
        return found

    def _float(self, expr: Any, env: Any) -> Any:
        if expr.kind == "const":
            return expr.args[0]
        if expr.kind == "int":
            number = env.number(expr.args[0])
            return self.node_of(number) if isinstance(number, SYMBOLIC) else number
        known = self._known.get(str(expr))
        if known is None:
            if expr.kind not in _FLOAT_FUNCTIONS:
                raise InternalError("decomp", f"no node of the graph gives the number {expr}")
            known = self._made(_FLOAT_FUNCTIONS[expr.kind], tuple(self._float(part, env) for part in expr.args))
            self._known[str(expr)] = known
        return known

    def _made(self, target: Any, args: tuple[Any, ...], fake: Any = None) -> torch.fx.Node:
        node = self._graph.call_function(target, args)
        if fake is None:
            fake = target(*[get_fake(arg) if isinstance(arg, torch.fx.Node) else arg for arg in args])
        set_fake(node, fake)
        return node
