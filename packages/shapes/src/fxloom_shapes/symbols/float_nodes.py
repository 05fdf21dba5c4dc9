"""Nodes under `torch.SymFloat`.

In: operations by name, as torch's SymNodeImpl and the Python classes call them. Out: new nodes, or answers of the environment.
Invariant: a node holds an expression and the number of the traced call, and no knowledge about it; like those of integers, they ask
the environment, which guards or assumes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fxloom_shapes.errors import DataDependent
from fxloom_shapes.expressions.floats import MOST_DIGITS, FloatExpr
from fxloom_shapes.expressions.polynomials import const
from fxloom_shapes.expressions.statements import Comparison, relation
from fxloom_shapes.symbols.nodes import BoolNode, IntNode, Node, NumberNode, combined, compared, poly_of, settled

if TYPE_CHECKING:
    from fxloom_shapes.symbols.env import SymbolEnv


def _float_operation(name: str) -> Any:
    def operation(self: FloatNode, other: Node) -> Node:
        return combined(name, self, other)

    return operation


def _comparison(op: str) -> Any:
    def operation(self: FloatNode, other: Node) -> Node:
        return compared(op, self, other)

    return operation


class FloatNode(NumberNode):
    """A float: an expression tree."""

    __slots__ = ("float_expr",)
    pytype = float

    def __init__(self, env: SymbolEnv, expr: FloatExpr) -> None:
        self.env = env
        self.float_expr = expr

    add = _float_operation("add")
    sub = _float_operation("sub")
    mul = _float_operation("mul")
    truediv = float_truediv = int_truediv = _float_operation("truediv")
    quotient = _float_operation("quotient")
    floordiv = int_floordiv = _float_operation("floordiv")
    mod = _float_operation("mod")
    pow = float_pow = pow_by_natural = _float_operation("pow")
    sym_min = _float_operation("min")
    sym_max = _float_operation("max")
    eq = _comparison("==")
    ne = _comparison("!=")
    lt = _comparison("<")
    le = _comparison("<=")
    gt = _comparison(">")
    ge = _comparison(">=")

    @property
    def expr(self) -> Any:
        return self.float_expr

    @property
    def hint(self) -> float | None:
        try:
            return float(self.float_expr.value(self.env.hints))
        except KeyError:
            return None

    _hint = hint

    def has_hint(self) -> bool:
        return self.hint is not None

    def as_float_expr(self) -> FloatExpr:
        return self.float_expr

    def maybe_as_float(self) -> float | None:
        return self.float_expr.args[0] if self.float_expr.kind == "const" else None

    def __str__(self) -> str:
        return str(self.float_expr)

    __repr__ = __str__

    def guard_float(self, file: str, line: int) -> float:
        value = self.hint
        self.env.refuse_float_value(self.float_expr)
        if value is None:
            raise DataDependent("float", f"{self} is known only at run time")
        self.env.pin_floats(self.float_expr)
        return value

    def float_(self) -> float:
        return self.guard_float("", 0)

    def guard_bool(self, file: str, line: int) -> bool:
        return not self.env.decide(Comparison("==", (self.float_expr, FloatExpr("const", (0.0,)))))

    def bool_(self) -> bool:
        return self.guard_bool("", 0)

    def sym_float(self) -> Node:
        return self

    def trunc(self) -> Node:
        env = self.env
        parts = self.float_expr.args
        if self.float_expr.kind == "truediv" and all(part.kind == "int" for part in parts):
            if all(env.proven(relation(">=", part.args[0])) for part in parts):
                return self.floor()
        return self._rounded("Trunc")

    sym_int = trunc

    def floor(self) -> Node:
        return self._quotient(False) or self._rounded("Floor")

    def ceil(self) -> Node:
        return self._quotient(True) or self._rounded("Ceil")

    def _quotient(self, up: bool) -> Node | None:
        """floor(a / b) and ceil(a / b) of integers as integer quotients: float64 is exact for any size that a tensor can have."""
        parts = self.float_expr.args
        if self.float_expr.kind != "truediv" or not all(part.kind == "int" for part in parts):
            return None
        a, b = IntNode(self.env, parts[0].args[0]), IntNode(self.env, parts[1].args[0])
        if not up:
            return a.int_floordiv(b)
        return a.neg().int_floordiv(b).neg()  # type: ignore[attr-defined]  # IntNodes

    def _rounded(self, kind: str) -> Node:
        self.env.expect_finite(self.float_expr)
        return self.env.opaque_node(kind, self.float_expr)

    def round(self, digits: Any = None) -> Node:
        if digits is None:
            return self._rounded("Round")
        places = FloatExpr("int", (const(digits) if isinstance(digits, int) else poly_of(digits),))
        if all(self.env.decide(relation(">=", bound)) for bound in (places.args[0], const(MOST_DIGITS) - places.args[0])):
            return FloatNode(self.env, FloatExpr("round", (self.float_expr, places)))
        return self.wrap_float(round(self.float_(), digits if isinstance(digits, int) else digits.int_()))

    def is_finite(self) -> Node:
        return BoolNode(self.env, settled(self.env, Comparison("finite", (self.float_expr,))))

    def is_integer(self) -> Node:
        kind, parts = self.float_expr.kind, self.float_expr.args
        if kind == "truediv" and all(part.kind == "int" for part in parts):
            a, b = IntNode(self.env, parts[0].args[0]), IntNode(self.env, parts[1].args[0])
            return a.mod(b).eq(self.wrap_int(0))  # type: ignore[attr-defined]  # an IntNode
        env = self.env
        if not env.is_finite(self.float_expr):
            return self.wrap_bool(False)
        if not env.decide(Comparison("<", (FloatExpr("abs", (self.float_expr,)), FloatExpr("const", (2.0**53,))))):
            return self.wrap_bool(True)  # such floats have no fractional part, and are too large for the guards' floor
        return compared("==", self, env.opaque_node("Floor", self.float_expr))

    def neg(self) -> Node:
        return FloatNode(self.env, FloatExpr("neg", (self.float_expr,)))

    def pos(self) -> Node:
        return self

    def abs(self) -> Node:
        return FloatNode(self.env, FloatExpr("abs", (self.float_expr,)))
