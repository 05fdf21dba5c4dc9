"""Nodes under `torch.SymInt`, `torch.SymFloat` and `torch.SymBool`: what torch's C++ and Python code calls on them.

In: operations by name (`add`, `int_floordiv`, `guard_bool`, ...), as torch's SymNodeImpl and the Python classes call them.
Out: new nodes, or answers of the environment. A node holds no knowledge of its own.
"""

from __future__ import annotations

import math
from typing import Any

from fxloom_interfaces.symbolic_math import UNARY
from fxloom_shapes.env import SymbolEnv
from fxloom_shapes.errors import DataDependent
from fxloom_shapes.facts import Comparison, Logic, Relation, Statement, both, either, relation, symbols_of
from fxloom_shapes.poly import Poly, const
from fxloom_shapes.reals import MOST_DIGITS, Real
from fxloom_shapes.strides import contiguity, inner_to_outer, prefers_channels_last


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

    def wrap_int(self, value: int) -> IntNode:
        constants = self.env.constants
        found = constants.get(value)
        if found is None:
            found = constants[value] = IntNode(self.env, const(int(value)))
        return found

    def wrap_float(self, value: float) -> FloatNode:
        return FloatNode(self.env, Real("const", (float(value),)))

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
        memo = self.env.facts.memo
        found: BoolNode | None = memo.get(key)
        if found is None:
            statement = contiguity(self.env, [*map(_poly, sizes)], [*map(_poly, strides)], order)
            found = memo[key] = BoolNode(self.env, _settle(self.env, statement))
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
        memo = self.env.facts.memo
        found: BoolNode | None = memo.get(key)
        if found is None:
            found = memo[key] = self.wrap_bool(prefers_channels_last(self.env, [*map(_poly, sizes)], [*map(_poly, strides)], order))
        return found

    def is_channels_last_strides_2d(self, sizes: Any, strides: Any) -> BoolNode:
        return self._channels_last_strides(sizes, strides, (1, 3, 2, 0))

    def is_channels_last_strides_3d(self, sizes: Any, strides: Any) -> BoolNode:
        return self._channels_last_strides(sizes, strides, (1, 4, 3, 2, 0))

    def is_non_overlapping_and_dense(self, sizes: Any, strides: Any) -> BoolNode:
        axes = inner_to_outer(self.env, [*map(_poly, sizes)], [*map(_poly, strides)])
        return self._is_contiguous([sizes[axis] for axis in axes], [strides[axis] for axis in axes], range(len(axes)))

    is_non_overlapping_and_dense_indicator = is_non_overlapping_and_dense


def _binary_real(name: str) -> Any:
    def operation(self: FloatNode, other: Node) -> Node:
        return _real(name, self, other)

    return operation


def _comparison(op: str) -> Any:
    def operation(self: FloatNode, other: Node) -> Node:
        return _compare_real(op, self, other)

    return operation


def _unary_real(name: str) -> Any:
    def operation(self: Node) -> Node:
        return _computed(self.env, Real(name, (_as_real(self),)))

    return operation


class NumberNode(Node):
    """An integer or a float: functions of `math`, which give floats."""

    __slots__ = ()

    sqrt = sym_sqrt = _unary_real("sqrt")
    exp = sym_exp = _unary_real("exp")
    log = sym_log = _unary_real("log")
    log2 = sym_log2 = _unary_real("log2")
    log10 = sym_log10 = _unary_real("log10")
    log1p = sym_log1p = _unary_real("log1p")
    expm1 = sym_expm1 = _unary_real("expm1")
    sin = sym_sin = _unary_real("sin")
    cos = sym_cos = _unary_real("cos")
    tan = sym_tan = _unary_real("tan")
    asin = sym_asin = _unary_real("asin")
    acos = sym_acos = _unary_real("acos")
    atan = sym_atan = _unary_real("atan")
    sinh = sym_sinh = _unary_real("sinh")
    cosh = sym_cosh = _unary_real("cosh")
    tanh = sym_tanh = _unary_real("tanh")


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
        from fxloom_shapes.printed import sympy_expr

        return sympy_expr(self.env.facts.simplify(self.poly))

    @property
    def hint(self) -> int | None:
        return self.env.hint(self.poly)

    _hint = hint

    def has_hint(self) -> bool:
        return not self.env.has_unbacked or self.hint is not None

    def maybe_as_int(self) -> int | None:
        return self._constant

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
        memo = self.env.facts.memo
        key = (op, self.poly, other.poly)
        found = memo.get(key)
        if found is None:
            found = make(self, other)
            memo[key] = found
        return found

    def add(self, other: Node) -> Node:
        return self._known("add", other, _add) if isinstance(other, IntNode) else _real("add", self, other)

    def sub(self, other: Node) -> Node:
        return self._known("sub", other, _sub) if isinstance(other, IntNode) else _real("sub", self, other)

    def mul(self, other: Node) -> Node:
        return self._known("mul", other, _mul) if isinstance(other, IntNode) else _real("mul", self, other)

    def neg(self) -> Node:
        return self._made(-self.poly)

    def pos(self) -> Node:
        return self

    def abs(self) -> Node:
        return self if self.env.decide(relation(">=", self.poly)) else self.neg()

    def _divide(self, kind: str, other: Node) -> Node:
        if not isinstance(other, IntNode):
            return _real("floordiv" if kind == "FloorDiv" else "mod", self, other)
        result: Node = self._known(kind, other, lambda a, b: a._division(kind, b))
        return result

    def _division(self, kind: str, other: IntNode) -> Node:
        env = self.env
        a, b = env.facts.simplify(self.poly), env.facts.simplify(other.poly)
        if env.decide(relation(">=", b - const(1))):
            return self._made(env.facts.function(kind, a, b))
        if env.decide(relation("==", b)):
            raise ZeroDivisionError("integer division or modulo by zero")
        result = env.facts.function(kind, -a, -b)  # a // b == -a // -b;  a % b == -(-a % -b)
        return self._made(result if kind == "FloorDiv" else -result)

    def int_floordiv(self, other: Node) -> Node:
        return self._divide("FloorDiv", other)

    floordiv = int_floordiv

    def mod(self, other: Node) -> Node:
        return self._divide("Mod", other)

    def python_mod(self, other: Node) -> Node:
        return self._divide("Mod", other)

    def int_truediv(self, other: Node) -> Node:
        return _real("truediv", self, other)

    float_truediv = truediv = int_truediv

    def quotient(self, other: Node) -> Node:
        return _real("quotient", self, other)

    def pow_by_natural(self, other: Node) -> Node:
        if not isinstance(other, IntNode):
            return _real("pow", self, other)
        env = self.env
        power = env.facts.simplify(other.poly)
        value = power.constant
        if value is not None and 0 <= value <= _LARGEST_POWER:
            result = const(1)
            for _ in range(value):
                result = result * self.poly
            return self._made(result)
        if not env.decide(relation(">=", power)):
            return _real("pow", self, other)
        return env.opaque_node("Power", env.facts.simplify(self.poly), power)

    def _bits(self, kind: str, other: Node) -> Node:
        if not isinstance(other, IntNode):
            raise TypeError(f"unsupported operand types for an operation on bits: int and {other.pytype.__name__}")
        a, b = (self.env.facts.simplify(node.poly) for node in (self, other))
        for value, rest in ((b.constant, a), (a.constant, b)):
            if kind == "And" and value is not None and value >= 0 and value & (value + 1) == 0:  # n & (2**k - 1) -> n % 2**k
                return self._made(self.env.facts.function("Mod", rest, const(value + 1)))
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
        return self.env.opaque_node("BitLength", self.env.facts.simplify(self.poly))

    def isqrt(self) -> Node:
        if not self.env.decide(relation(">=", self.poly)):
            raise ValueError("isqrt() argument must be nonnegative")
        return self.env.opaque_node("Isqrt", self.env.facts.simplify(self.poly))

    def gcd(self, other: Node) -> Node:
        return self.env.opaque_node("Gcd", self.env.facts.simplify(self.poly), _poly(other))

    def pow(self, other: Node) -> Node:
        return self.pow_by_natural(other) if isinstance(other, IntNode) else _real("pow", self, other)

    def float_pow(self, other: Node) -> Node:
        return _real("pow", self, other)

    def sym_min(self, other: Node) -> Node:
        return self._extreme("Min", other)

    def sym_max(self, other: Node) -> Node:
        return self._extreme("Max", other)

    def _extreme(self, kind: str, other: Node) -> Node:
        if not isinstance(other, IntNode):
            return _real(kind.lower(), self, other)
        result: Node = self._known(kind, other, lambda a, b: a._extreme_of_ints(kind, b))
        return result

    def _extreme_of_ints(self, kind: str, other: IntNode) -> Node:
        simplify = self.env.facts.simplify
        return self._made(self.env.facts.function(kind, simplify(self.poly), simplify(other.poly)))

    def sym_sum(self, args: Any) -> Node:
        result = const(0)
        for item in args:
            result = result + _poly(item)
        return self._made(result)

    def sym_float(self) -> Node:
        return FloatNode(self.env, Real("float", (Real("int", (self.poly,)),)))

    def sym_int(self) -> Node:
        return self

    def trunc(self) -> Node:
        return self

    floor = ceil = trunc

    def round(self, digits: Any = None) -> Node:
        return self

    # --- comparisons ---

    def _compare(self, op: str, poly: Poly) -> BoolNode:
        return BoolNode(self.env, _settle(self.env, relation(op, self.env.facts.simplify(poly))))

    def eq(self, other: Node) -> Node:
        return self._known("==", other, _eq) if isinstance(other, IntNode) else _compare_real("==", self, other)

    def ne(self, other: Node) -> Node:
        return self._known("!=", other, _ne) if isinstance(other, IntNode) else _compare_real("!=", self, other)

    def ge(self, other: Node) -> Node:
        return self._known(">=", other, _ge) if isinstance(other, IntNode) else _compare_real(">=", self, other)

    def gt(self, other: Node) -> Node:
        return self._known(">", other, _gt) if isinstance(other, IntNode) else _compare_real(">", self, other)

    def le(self, other: Node) -> Node:
        return other._known(">=", self, _ge) if isinstance(other, IntNode) else _compare_real("<=", self, other)

    def lt(self, other: Node) -> Node:
        return other._known(">", self, _gt) if isinstance(other, IntNode) else _compare_real("<", self, other)


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
        return BoolNode(self.env, both(self.statement, _statement(other)))

    and_ = sym_and

    def sym_or(self, other: Node) -> Node:
        return BoolNode(self.env, either(self.statement, _statement(other)))

    or_ = sym_or

    def sym_not(self) -> Node:
        statement = self.statement
        return BoolNode(self.env, not statement if isinstance(statement, bool) else statement.negated())

    def eq(self, other: Node) -> Node:
        return self.wrap_bool(self.bool_() == _truth(other))

    def ne(self, other: Node) -> Node:
        return self.wrap_bool(self.bool_() != _truth(other))

    def sym_ite(self, then: Node, other: Node) -> Node:
        return then if self.bool_() else other

    def sym_int(self) -> Node:
        statement = self.statement
        if isinstance(statement, Relation) and statement.op == "!=" and self.env.facts.bounds(statement.poly) == (0, 1):
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


class FloatNode(NumberNode):
    """A float: an expression tree."""

    __slots__ = ("real",)
    pytype = float

    def __init__(self, env: SymbolEnv, real: Real) -> None:
        self.env = env
        self.real = real

    add = _binary_real("add")
    sub = _binary_real("sub")
    mul = _binary_real("mul")
    truediv = float_truediv = int_truediv = _binary_real("truediv")
    quotient = _binary_real("quotient")
    floordiv = int_floordiv = _binary_real("floordiv")
    mod = _binary_real("mod")
    pow = float_pow = pow_by_natural = _binary_real("pow")
    sym_min = _binary_real("min")
    sym_max = _binary_real("max")
    eq = _comparison("==")
    ne = _comparison("!=")
    lt = _comparison("<")
    le = _comparison("<=")
    gt = _comparison(">")
    ge = _comparison(">=")

    @property
    def expr(self) -> Any:
        return self.real

    @property
    def hint(self) -> float | None:
        try:
            return float(self.real.value(self.env.hints))
        except KeyError:
            return None

    _hint = hint

    def has_hint(self) -> bool:
        return self.hint is not None

    def maybe_as_float(self) -> float | None:
        return self.real.args[0] if self.real.kind == "const" else None

    def __str__(self) -> str:
        return str(self.real)

    __repr__ = __str__

    def guard_float(self, file: str, line: int) -> float:
        value = self.hint
        self.env.refuse_if_kept(self.real)
        if value is None:
            raise DataDependent("float", f"{self} is a number that only running the program tells")
        self.env.pin_floats(self.real)
        return value

    def float_(self) -> float:
        return self.guard_float("", 0)

    def guard_bool(self, file: str, line: int) -> bool:
        return not self.env.decide(Comparison("==", (self.real, Real("const", (0.0,)))))

    def bool_(self) -> bool:
        return self.guard_bool("", 0)

    def sym_float(self) -> Node:
        return self

    def trunc(self) -> Node:
        env = self.env
        parts = self.real.args
        if self.real.kind == "truediv" and all(part.kind == "int" for part in parts):
            if all(env.proven(relation(">=", part.args[0])) for part in parts):
                return self.floor()
        return self._rounded("Trunc")

    sym_int = trunc

    def floor(self) -> Node:
        return self._quotient(False) or self._rounded("Floor")

    def ceil(self) -> Node:
        return self._quotient(True) or self._rounded("Ceil")

    def _quotient(self, up: bool) -> Node | None:
        """floor(a / b) and ceil(a / b) of integers are quotients: float64 is exact for any size that a tensor can have."""
        parts = self.real.args
        if self.real.kind != "truediv" or not all(part.kind == "int" for part in parts):
            return None
        a, b = IntNode(self.env, parts[0].args[0]), IntNode(self.env, parts[1].args[0])
        if not up:
            return a.int_floordiv(b)
        return a.neg().int_floordiv(b).neg()  # type: ignore[attr-defined]  # IntNodes

    def _rounded(self, kind: str) -> Node:
        self.env.expect_finite(self.real)
        return self.env.opaque_node(kind, self.real)

    def round(self, digits: Any = None) -> Node:
        if digits is None:
            return self._rounded("Round")
        places = Real("int", (const(digits) if isinstance(digits, int) else _poly(digits),))
        if all(self.env.decide(relation(">=", bound)) for bound in (places.args[0], const(MOST_DIGITS) - places.args[0])):
            return FloatNode(self.env, Real("round", (self.real, places)))
        return self.wrap_float(round(self.float_(), digits if isinstance(digits, int) else digits.int_()))

    def is_finite(self) -> Node:
        return BoolNode(self.env, _settle(self.env, Comparison("finite", (self.real,))))

    def is_integer(self) -> Node:
        kind, parts = self.real.kind, self.real.args
        if kind == "truediv" and all(part.kind == "int" for part in parts):
            a, b = IntNode(self.env, parts[0].args[0]), IntNode(self.env, parts[1].args[0])
            return a.mod(b).eq(self.wrap_int(0))  # type: ignore[attr-defined]  # an IntNode
        env = self.env
        whole = env.opaque_node("Floor", self.real) if env.is_finite(self.real) else None
        return self.wrap_bool(False) if whole is None else _compare_real("==", self, whole)

    def neg(self) -> Node:
        return FloatNode(self.env, Real("neg", (self.real,)))

    def pos(self) -> Node:
        return self

    def abs(self) -> Node:
        return FloatNode(self.env, Real("abs", (self.real,)))


def _computed(env: SymbolEnv, real: Real) -> FloatNode:
    """The node of a float. What the program's arithmetic raises instead of giving a number is raised here, and guarded to."""
    try:
        if not real.symbols():
            return FloatNode(env, Real("const", (float(real.value({})),)))
        if real.kind == "truediv" and env.in_operator and _may_be_zero(env, real.args[1]):
            return FloatNode(env, Real("quotient", real.args))  # raises nothing, whatever running the program tells
        if real.kind in _MAY_RAISE:
            env.expect_finite(real)
    except ZeroDivisionError:
        if not env.in_operator or real.kind != "truediv":
            raise
        # an operator's own division, which is that of C++; the sizes are guarded to be those that make it one by zero
        return FloatNode(env, Real("const", (_divided_by_zero(env, real),)))
    return FloatNode(env, real)


def _may_be_zero(env: SymbolEnv, real: Real) -> bool:
    """True for a number that only running the program tells, and that may be 0."""
    try:
        real.value(env.hints)
    except KeyError:
        return real.kind != "int" or env.proven(relation("!=", real.args[0])) is not True
    return False


def _divided_by_zero(env: SymbolEnv, real: Real) -> float:
    above, below = (float(part.value(env.hints)) for part in real.args)
    if above == 0 or math.isnan(above):
        return math.nan
    return math.copysign(math.inf, above) * math.copysign(1.0, below)


#: operations that raise for some numbers
_MAY_RAISE = frozenset(UNARY) | {"truediv", "floordiv", "mod", "pow"}


def _as_real(node: Node) -> Real:
    if isinstance(node, FloatNode):
        return node.real
    if isinstance(node, IntNode):
        return Real("int", (node.env.facts.simplify(node.poly),))
    return Real("const", (float(_truth(node)),))


def _real(kind: str, a: Node, b: Node) -> Node:
    return _computed(a.env, Real(kind, (_as_real(a), _as_real(b))))


def _compare_real(op: str, a: Node, b: Node) -> BoolNode:
    left, right = _as_real(a), _as_real(b)
    env = a.env
    if op in (">", ">="):
        op, left, right = op.replace(">", "<"), right, left
    statement = Comparison("==" if op == "!=" else op, (left, right), op != "!=")
    if not symbols_of(statement):
        return BoolNode(env, statement.holds({}))
    return BoolNode(env, _settle(env, statement))


def _poly(node: Any) -> Poly:
    if isinstance(node, IntNode):
        return node.env.facts.simplify(node.poly)
    if isinstance(node, int):
        return const(node)
    inner = getattr(node, "node", node)
    if isinstance(inner, IntNode):
        return inner.env.facts.simplify(inner.poly)
    raise TypeError(f"expected an integer, got {node!r}")


def _statement(node: Node) -> Statement | bool:
    if isinstance(node, BoolNode):
        return node.statement
    if isinstance(node, IntNode):
        return relation("!=", node.poly)
    raise TypeError(f"expected a truth value, got {node!r}")


def _truth(node: Node) -> bool:
    return node.bool_() if isinstance(node, (BoolNode, IntNode)) else bool(node)


def _settle(env: SymbolEnv, statement: Statement | bool) -> Statement | bool:
    """A bool where the statement is proven either way."""
    known = env.proven(statement)
    return statement if known is None else known


__all__ = ["BoolNode", "FloatNode", "IntNode", "Logic", "Node", "Relation"]
