"""Nodes under `torch.SymInt` and `torch.SymBool`: what torch's C++ and Python code calls on them.

In: operations by name (`add`, `int_floordiv`, `guard_bool`, ...), as torch's SymNodeImpl and the Python classes call them.
Out: new nodes, or answers of the environment. A node holds no knowledge of its own. Nodes of floats (`float_nodes`) stand above this
module: where an integer becomes a float, the environment makes the node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fxloom_shapes.expressions.floats import FloatExpr
from fxloom_shapes.expressions.polynomials import Poly, const
from fxloom_shapes.expressions.statements import Comparison, Relation, Statement, both, either, relation, symbols_of
from fxloom_shapes.symbols.contiguity import contiguity, inner_to_outer, prefers_channels_last
from fxloom_shapes.symbols.float_arithmetic import computed

if TYPE_CHECKING:
    from fxloom_shapes.symbols.env import SymbolEnv
    from fxloom_shapes.symbols.float_nodes import FloatNode


class Node:
    """What all nodes answer alike."""

    __slots__ = ("__weakref__", "env")

    #: read by torch's helpers, which take constants out themselves
    constant = None
    pytype: type = int

    def __init__(self, env: SymbolEnv) -> None:
        self.env = env

    @property
    def shape_env(self) -> SymbolEnv:
        return self.env

    def is_int(self) -> bool:
        return self.pytype is int

    def is_float(self) -> bool:
        return self.pytype is float

    def is_bool(self) -> bool:
        return self.pytype is bool

    def is_nested_int(self) -> bool:
        return False

    def nested_int(self) -> None:
        return None

    def is_symbolic(self) -> bool:
        return True

    def is_constant(self) -> bool:
        return False

    def maybe_as_int(self) -> int | None:
        return None

    def maybe_as_float(self) -> float | None:
        return None

    def maybe_as_bool(self) -> bool | None:
        return None

    def clone(self) -> Node:
        return self

    def as_float_expr(self) -> FloatExpr:
        """As an expression of floats; the number of a truth value is decided."""
        return FloatExpr("const", (float(truth_of(self)),))

    def wrap_int(self, value: int) -> IntNode:
        constants = self.env.constants
        found = constants.get(value)
        if found is None:
            found = constants[value] = IntNode(self.env, const(int(value)))
        return found

    def wrap_float(self, value: float) -> FloatNode:
        return self.env.float_node(FloatExpr("const", (float(value),)))

    def wrap_bool(self, value: bool) -> BoolNode:
        return BoolNode(self.env, bool(value))

    def _graph_repr(self) -> str:
        return str(self)

    def str(self) -> str:
        return str(self)

    def _is_contiguous(self, sizes: Any, strides: Any, order: Any) -> BoolNode:
        """Axes, innermost first, step through memory without gaps; a statement, decided by who asks."""
        if len(sizes) != len(order):
            return self.wrap_bool(False)
        key = ("contiguous", *[node.poly for node in sizes], *[node.poly for node in strides], *order)
        memo = self.env.solver.memo
        found: BoolNode | None = memo.get(key)
        if found is None:
            statement = contiguity(self.env, [*map(poly_of, sizes)], [*map(poly_of, strides)], order)
            found = memo[key] = BoolNode(self.env, settled(self.env, statement))
        return found

    def is_contiguous(self, sizes: Any, strides: Any) -> BoolNode:
        return self._is_contiguous(sizes, strides, range(len(sizes) - 1, -1, -1))

    def is_channels_last_contiguous_2d(self, sizes: Any, strides: Any) -> BoolNode:
        return self._is_contiguous(sizes, strides, (1, 3, 2, 0))

    def is_channels_last_contiguous_3d(self, sizes: Any, strides: Any) -> BoolNode:
        return self._is_contiguous(sizes, strides, (1, 4, 3, 2, 0))

    def _channels_last_strides(self, sizes: Any, strides: Any, order: Any) -> BoolNode:
        if len(sizes) != len(order):
            return self.wrap_bool(False)
        key = ("strides", *[node.poly for node in sizes], *[node.poly for node in strides], *order)
        memo = self.env.solver.memo
        found: BoolNode | None = memo.get(key)
        if found is None:
            found = memo[key] = self.wrap_bool(prefers_channels_last(self.env, [*map(poly_of, sizes)], [*map(poly_of, strides)], order))
        return found

    def is_channels_last_strides_2d(self, sizes: Any, strides: Any) -> BoolNode:
        return self._channels_last_strides(sizes, strides, (1, 3, 2, 0))

    def is_channels_last_strides_3d(self, sizes: Any, strides: Any) -> BoolNode:
        return self._channels_last_strides(sizes, strides, (1, 4, 3, 2, 0))

    def is_non_overlapping_and_dense(self, sizes: Any, strides: Any) -> BoolNode:
        axes = inner_to_outer(self.env, [*map(poly_of, sizes)], [*map(poly_of, strides)])
        return self._is_contiguous([sizes[axis] for axis in axes], [strides[axis] for axis in axes], range(len(axes)))

    is_non_overlapping_and_dense_indicator = is_non_overlapping_and_dense


def _float_function(name: str) -> Any:
    def operation(self: Node) -> Node:
        return computed(self.env, FloatExpr(name, (self.as_float_expr(),)))

    return operation


class NumberNode(Node):
    """An integer or a float: functions of `math`, which give floats."""

    __slots__ = ()

    sqrt = sym_sqrt = _float_function("sqrt")
    exp = sym_exp = _float_function("exp")
    log = sym_log = _float_function("log")
    log2 = sym_log2 = _float_function("log2")
    log10 = sym_log10 = _float_function("log10")
    log1p = sym_log1p = _float_function("log1p")
    expm1 = sym_expm1 = _float_function("expm1")
    sin = sym_sin = _float_function("sin")
    cos = sym_cos = _float_function("cos")
    tan = sym_tan = _float_function("tan")
    asin = sym_asin = _float_function("asin")
    acos = sym_acos = _float_function("acos")
    atan = sym_atan = _float_function("atan")
    sinh = sym_sinh = _float_function("sinh")
    cosh = sym_cosh = _float_function("cosh")
    tanh = sym_tanh = _float_function("tanh")


#: powers of a size with at most this exponent are products
_LARGEST_POWER = 8


class IntNode(NumberNode):
    """An integer: a polynomial."""

    __slots__ = ("_constant", "poly")
    pytype = int

    def __init__(self, env: SymbolEnv, poly: Poly) -> None:
        self.env = env
        self.poly = poly
        self._constant = poly.constant

    @property
    def expr(self) -> Any:
        """As a SymPy expression of `fxloom_interfaces.expr`, simplified by all that is known now."""
        from fxloom_shapes.expressions.sympy_form import sympy_expr  # SymPy takes long to import, and capture has no need of it

        return sympy_expr(self.env.solver.simplify(self.poly))

    @property
    def hint(self) -> int | None:
        return self.env.hint(self.poly)

    _hint = hint

    def has_hint(self) -> bool:
        return not self.env.has_unbacked or self.hint is not None

    def maybe_as_int(self) -> int | None:
        return self._constant

    def as_float_expr(self) -> FloatExpr:
        return FloatExpr("int", (self.env.solver.simplify(self.poly),))

    def __str__(self) -> str:
        return repr(self.poly)

    __repr__ = __str__

    # --- answers ---

    def guard_int(self, file: str, line: int) -> int:
        return self.env.specialize_number(self.poly)

    def int_(self) -> int:
        return self.env.specialize_number(self.poly)

    def guard_float(self, file: str, line: int) -> float:
        return float(self.int_())

    def bool_(self) -> bool:
        return self.env.decide(relation("!=", self.poly))

    def guard_bool(self, file: str, line: int) -> bool:
        return self.bool_()

    # --- arithmetic ---

    def _made(self, poly: Poly) -> IntNode:
        return self.env.node(poly)

    def _known(self, op: str, other: IntNode, make: Any) -> Any:
        """What `make(self, other)` gives, asked once for equal numbers until something new is known."""
        memo = self.env.solver.memo
        key = (op, self.poly, other.poly)
        found = memo.get(key)
        if found is None:
            found = make(self, other)
            memo[key] = found
        return found

    def add(self, other: Node) -> Node:
        return self._known("add", other, _add) if isinstance(other, IntNode) else combined("add", self, other)

    def sub(self, other: Node) -> Node:
        return self._known("sub", other, _sub) if isinstance(other, IntNode) else combined("sub", self, other)

    def mul(self, other: Node) -> Node:
        return self._known("mul", other, _mul) if isinstance(other, IntNode) else combined("mul", self, other)

    def neg(self) -> Node:
        return self._made(-self.poly)

    def pos(self) -> Node:
        return self

    def abs(self) -> Node:
        return self if self.env.decide(relation(">=", self.poly)) else self.neg()

    def _divide(self, kind: str, other: Node) -> Node:
        if not isinstance(other, IntNode):
            return combined("floordiv" if kind == "FloorDiv" else "mod", self, other)
        result: Node = self._known(kind, other, lambda a, b: a._division(kind, b))
        return result

    def _division(self, kind: str, other: IntNode) -> Node:
        env = self.env
        a, b = env.solver.simplify(self.poly), env.solver.simplify(other.poly)
        if env.decide(relation(">=", b - const(1))):
            return self._made(env.solver.function(kind, a, b))
        if env.decide(relation("==", b)):
            raise ZeroDivisionError("integer division or modulo by zero")
        result = env.solver.function(kind, -a, -b)  # a // b == -a // -b;  a % b == -(-a % -b)
        return self._made(result if kind == "FloorDiv" else -result)

    def int_floordiv(self, other: Node) -> Node:
        return self._divide("FloorDiv", other)

    floordiv = int_floordiv

    def mod(self, other: Node) -> Node:
        return self._divide("Mod", other)

    def python_mod(self, other: Node) -> Node:
        return self._divide("Mod", other)

    def int_truediv(self, other: Node) -> Node:
        return combined("truediv", self, other)

    float_truediv = truediv = int_truediv

    def quotient(self, other: Node) -> Node:
        return combined("quotient", self, other)

    def pow_by_natural(self, other: Node) -> Node:
        if not isinstance(other, IntNode):
            return combined("pow", self, other)
        env = self.env
        power = env.solver.simplify(other.poly)
        value = power.constant
        if value is not None and 0 <= value <= _LARGEST_POWER:
            result = const(1)
            for _ in range(value):
                result = result * self.poly
            return self._made(result)
        if not env.decide(relation(">=", power)):
            return combined("pow", self, other)
        return env.opaque_node("Power", env.solver.simplify(self.poly), power)

    def _bits(self, kind: str, other: Node) -> Node:
        if not isinstance(other, IntNode):
            raise TypeError(f"unsupported operand types for an operation on bits: int and {other.pytype.__name__}")
        a, b = (self.env.solver.simplify(node.poly) for node in (self, other))
        for value, rest in ((b.constant, a), (a.constant, b)):
            if kind == "And" and value is not None and value >= 0 and value & (value + 1) == 0:  # n & (2**k - 1) -> n % 2**k
                return self._made(self.env.solver.function("Mod", rest, const(value + 1)))
        return self.env.opaque_node(kind, a, b)

    def bitwise_and(self, other: Node) -> Node:
        return self._bits("And", other)

    def bitwise_or(self, other: Node) -> Node:
        return self._bits("Or", other)

    def bitwise_xor(self, other: Node) -> Node:
        return self._bits("Xor", other)

    def lshift(self, other: Node) -> Node:
        return self.mul(self._two_to(other))

    def rshift(self, other: Node) -> Node:
        return self._divide("FloorDiv", self._two_to(other))

    def _two_to(self, other: Node) -> Node:
        if isinstance(other, IntNode) and not self.env.decide(relation(">=", other.poly)):
            raise ValueError("negative shift count")
        return self.wrap_int(2).pow_by_natural(other)

    def invert(self) -> Node:
        return self._made(-self.poly - const(1))

    def bit_length(self) -> Node:
        return self.env.opaque_node("BitLength", self.env.solver.simplify(self.poly))

    def isqrt(self) -> Node:
        if not self.env.decide(relation(">=", self.poly)):
            raise ValueError("isqrt() argument must be nonnegative")
        return self.env.opaque_node("Isqrt", self.env.solver.simplify(self.poly))

    def gcd(self, other: Node) -> Node:
        return self.env.opaque_node("Gcd", self.env.solver.simplify(self.poly), poly_of(other))

    def pow(self, other: Node) -> Node:
        return self.pow_by_natural(other) if isinstance(other, IntNode) else combined("pow", self, other)

    def float_pow(self, other: Node) -> Node:
        return combined("pow", self, other)

    def sym_min(self, other: Node) -> Node:
        return self._extreme("Min", other)

    def sym_max(self, other: Node) -> Node:
        return self._extreme("Max", other)

    def _extreme(self, kind: str, other: Node) -> Node:
        if not isinstance(other, IntNode):
            return combined(kind.lower(), self, other)
        result: Node = self._known(kind, other, lambda a, b: a._extreme_of_ints(kind, b))
        return result

    def _extreme_of_ints(self, kind: str, other: IntNode) -> Node:
        simplify = self.env.solver.simplify
        return self._made(self.env.solver.function(kind, simplify(self.poly), simplify(other.poly)))

    def sym_sum(self, args: Any) -> Node:
        result = const(0)
        for item in args:
            result = result + poly_of(item)
        return self._made(result)

    def sym_float(self) -> Node:
        return self.env.float_node(FloatExpr("float", (FloatExpr("int", (self.poly,)),)))

    def sym_int(self) -> Node:
        return self

    def trunc(self) -> Node:
        return self

    floor = ceil = trunc

    def round(self, digits: Any = None) -> Node:
        return self

    # --- comparisons ---

    def _compare(self, op: str, poly: Poly) -> BoolNode:
        return BoolNode(self.env, settled(self.env, relation(op, self.env.solver.simplify(poly))))

    def eq(self, other: Node) -> Node:
        return self._known("==", other, _eq) if isinstance(other, IntNode) else compared("==", self, other)

    def ne(self, other: Node) -> Node:
        return self._known("!=", other, _ne) if isinstance(other, IntNode) else compared("!=", self, other)

    def ge(self, other: Node) -> Node:
        return self._known(">=", other, _ge) if isinstance(other, IntNode) else compared(">=", self, other)

    def gt(self, other: Node) -> Node:
        return self._known(">", other, _gt) if isinstance(other, IntNode) else compared(">", self, other)

    def le(self, other: Node) -> Node:
        return other._known(">=", self, _ge) if isinstance(other, IntNode) else compared("<=", self, other)

    def lt(self, other: Node) -> Node:
        return other._known(">", self, _gt) if isinstance(other, IntNode) else compared("<", self, other)


def combined(kind: str, a: Node, b: Node) -> FloatNode:
    """An operation of two numbers, one of them a float or the result one."""
    return computed(a.env, FloatExpr(kind, (a.as_float_expr(), b.as_float_expr())))


def compared(op: str, a: Node, b: Node) -> BoolNode:
    """A comparison of two numbers, one of them a float."""
    left, right = a.as_float_expr(), b.as_float_expr()
    env = a.env
    if op in (">", ">="):
        op, left, right = op.replace(">", "<"), right, left
    statement = Comparison("==" if op == "!=" else op, (left, right), op != "!=")
    if not symbols_of(statement):
        return BoolNode(env, statement.holds({}))
    return BoolNode(env, settled(env, statement))


def _add(a: IntNode, b: IntNode) -> IntNode:
    return a._made(a.poly + b.poly)


def _sub(a: IntNode, b: IntNode) -> IntNode:
    return a._made(a.poly - b.poly)


def _mul(a: IntNode, b: IntNode) -> IntNode:
    return a._made(a.poly * b.poly)


def _eq(a: IntNode, b: IntNode) -> BoolNode:
    return a._compare("==", a.poly - b.poly)


def _ne(a: IntNode, b: IntNode) -> BoolNode:
    return a._compare("!=", a.poly - b.poly)


def _ge(a: IntNode, b: IntNode) -> BoolNode:
    return a._compare(">=", a.poly - b.poly)


def _gt(a: IntNode, b: IntNode) -> BoolNode:
    return a._compare(">=", a.poly - b.poly - const(1))


class BoolNode(Node):
    """A statement, or what is known to be true or false."""

    __slots__ = ("statement",)
    pytype = bool

    def __init__(self, env: SymbolEnv, statement: Statement | bool) -> None:
        self.env = env
        self.statement = statement

    @property
    def expr(self) -> Any:
        return self.statement

    @property
    def hint(self) -> bool | None:
        if isinstance(self.statement, bool):
            return self.statement
        try:
            return self.statement.holds(self.env.hints)
        except KeyError:
            return None

    _hint = hint

    def has_hint(self) -> bool:
        return self.hint is not None

    def maybe_as_bool(self) -> bool | None:
        return self.statement if isinstance(self.statement, bool) else None

    def __str__(self) -> str:
        return str(self.statement)

    __repr__ = __str__

    def guard_bool(self, file: str, line: int) -> bool:
        return self.env.decide(self.statement)

    def bool_(self) -> bool:
        return self.env.decide(self.statement)

    def guard_size_oblivious(self, file: str, line: int) -> bool:
        return self.env.decide_or(self.statement, False)

    def guard_or_false(self, file: str, line: int) -> bool:
        return self.env.decide_or(self.statement, False)

    def guard_or_true(self, file: str, line: int) -> bool:
        return self.env.decide_or(self.statement, True)

    def statically_known_true(self, file: str, line: int) -> bool:
        return self.env.proven(self.statement) is True

    def expect_true(self, file: str, line: int) -> bool:
        return self.env.expect(self.statement)

    def sym_and(self, other: Node) -> Node:
        return BoolNode(self.env, both(self.statement, statement_of(other)))

    and_ = sym_and

    def sym_or(self, other: Node) -> Node:
        return BoolNode(self.env, either(self.statement, statement_of(other)))

    or_ = sym_or

    def sym_not(self) -> Node:
        statement = self.statement
        return BoolNode(self.env, not statement if isinstance(statement, bool) else statement.negated())

    def eq(self, other: Node) -> Node:
        return self.wrap_bool(self.bool_() == truth_of(other))

    def ne(self, other: Node) -> Node:
        return self.wrap_bool(self.bool_() != truth_of(other))

    def sym_ite(self, then: Node, other: Node) -> Node:
        return then if self.bool_() else other

    def sym_int(self) -> Node:
        statement = self.statement
        if isinstance(statement, Relation) and statement.op == "!=" and self.env.solver.bounds(statement.poly) == (0, 1):
            return self.env.node(statement.poly)
        return self.wrap_int(int(self.bool_()))

    def sym_float(self) -> Node:
        return self.wrap_float(float(self.bool_()))

    def int_(self) -> int:
        return int(self.bool_())

    def add(self, other: Node) -> Node:
        return self.sym_int().add(other)  # type: ignore[attr-defined]  # an IntNode

    def mul(self, other: Node) -> Node:
        return self.sym_int().mul(other)  # type: ignore[attr-defined]  # an IntNode


def poly_of(node: Any) -> Poly:
    """The polynomial of an integer, by all that is known now."""
    if isinstance(node, IntNode):
        return node.env.solver.simplify(node.poly)
    if isinstance(node, int):
        return const(node)
    inner = getattr(node, "node", node)
    if isinstance(inner, IntNode):
        return inner.env.solver.simplify(inner.poly)
    raise TypeError(f"expected an integer, got {node!r}")


def statement_of(node: Node) -> Statement | bool:
    """What a truth value, or an integer taken for one, states."""
    if isinstance(node, BoolNode):
        return node.statement
    if isinstance(node, IntNode):
        return relation("!=", node.poly)
    raise TypeError(f"expected a truth value, got {node!r}")


def truth_of(node: Node) -> bool:
    """The truth value of a node, decided."""
    return node.bool_() if isinstance(node, (BoolNode, IntNode)) else bool(node)


def settled(env: SymbolEnv, statement: Statement | bool) -> Statement | bool:
    """A bool where the statement is proven either way."""
    known = env.proven(statement)
    return statement if known is None else known
