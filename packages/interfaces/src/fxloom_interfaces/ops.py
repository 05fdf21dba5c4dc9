"""The operations that a loop body may use: one Protocol, and one table that says what each means.

A body is Python run under a handler, `body(ops, index)`; `T` is whatever the handler computes with: text, a value number, a set
of reads, a tensor. Lowerings write bodies; inductor-core's handlers trace and analyse them. `OPS` describes the elementwise
operations; the structural ones (`load`, `store`, `reduction`, `masked`, ...) are described by their docstrings here.
Invariant: operands of an elementwise op have one dtype: bodies convert with `to_dtype`; a handler may refuse mixed operands.
Results never depend on evaluation order. Low-precision floats are computed in float32 (`dtypes.opmath`): a body converts after
the load and before the store.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

if TYPE_CHECKING:
    import sympy

    from fxloom_interfaces.expr import Expr

T = TypeVar("T")

ReductionKind = Literal["sum", "prod", "max", "min", "any", "all", "xor_sum", "argmax", "argmin", "welford"]
#: How a value is combined with what the element holds; None: it takes its place.
StoreMode = Literal["add", "mul", "min", "max"] | None

#: What operators raise for an index out of range.
IndexErrorKind = Literal["IndexError", "RuntimeError"]

#: Number of values each reduction kind gives.
REDUCTION_RESULTS: dict[str, int] = {
    "sum": 1,  # of values; any order
    "prod": 1,  # any order
    "max": 1,  # a NaN anywhere gives NaN; the identity is the dtype's lowest value
    "min": 1,  # a NaN anywhere gives NaN
    "any": 1,  # bool
    "all": 1,  # bool
    "xor_sum": 1,  # integers
    "argmax": 1,  # int64 position of the first maximum in row-major order of the reduction axes; NaN counts as largest
    "argmin": 1,  # int64 position of the first minimum; NaN counts as smallest
    "welford": 3,  # mean, sum of squared deviations from it, count: in acc_dtype
}

Accepts = Literal["any", "number", "integer", "float", "bool", "bits"]


@dataclass(frozen=True, slots=True)
class OpInfo:
    """What an elementwise op is.

    arity: operands. accepts: operand dtypes ("number": no bool; "bits": integers and bool).
    result: "same" as the operands, or "bool". nan: what NaN does. rounding: how the result is rounded. heavy: costs more
    than a handful of instructions, so that recomputing it is worth avoiding.
    """

    name: str
    arity: int
    accepts: Accepts
    meaning: str
    result: Literal["same", "bool"] = "same"
    nan: str = "propagates"
    rounding: str = "exact"
    heavy: bool = False


def _float(
    name: str, meaning: str, arity: int = 1, rounding: str = "a few ulp", heavy: bool = True, nan: str = "propagates"
) -> OpInfo:
    return OpInfo(name, arity, "float", meaning, rounding=rounding, heavy=heavy, nan=nan)


def _compare(name: str, meaning: str, nan: str = "false") -> OpInfo:
    return OpInfo(name, 2, "any", meaning, result="bool", nan=nan)


_NEAREST = "to nearest even"

_TABLE = (
    # arithmetic; integers wrap
    OpInfo("add", 2, "number", "a + b", rounding=_NEAREST),
    OpInfo("sub", 2, "number", "a - b", rounding=_NEAREST),
    OpInfo("mul", 2, "number", "a * b", rounding=_NEAREST),
    OpInfo("div", 2, "float", "a / b", rounding=_NEAREST),
    OpInfo("floor_div", 2, "integer", "a // b rounding to minus infinity; b == 0 is undefined", nan="no NaN", heavy=True),
    OpInfo("trunc_div", 2, "integer", "a / b rounding to zero, as C; b == 0 is undefined", nan="no NaN", heavy=True),
    OpInfo("remainder", 2, "number", "a % b with the sign of b, as Python; integer b == 0 is undefined", heavy=True),
    OpInfo("fmod", 2, "number", "a % b with the sign of a, as C; integer b == 0 is undefined", heavy=True),
    OpInfo("neg", 1, "number", "-a"),
    OpInfo("abs", 1, "number", "|a|; the lowest integer stays as it is"),
    OpInfo("sign", 1, "number", "-1, 0 or 1", nan="gives 0"),
    OpInfo("maximum", 2, "any", "the larger; bool: or"),
    OpInfo("minimum", 2, "any", "the smaller; bool: and"),
    OpInfo("fma", 3, "float", "a * b + c rounded once", rounding=_NEAREST),
    # comparison and logic
    _compare("eq", "a == b"),
    _compare("ne", "a != b", nan="true"),
    _compare("lt", "a < b"),
    _compare("le", "a <= b"),
    _compare("gt", "a > b"),
    _compare("ge", "a >= b"),
    OpInfo("logical_and", 2, "bool", "a and b", nan="no NaN"),
    OpInfo("logical_or", 2, "bool", "a or b", nan="no NaN"),
    OpInfo("logical_xor", 2, "bool", "a != b", nan="no NaN"),
    OpInfo("logical_not", 1, "bool", "not a", nan="no NaN"),
    OpInfo("isnan", 1, "float", "a is NaN", result="bool", nan="true"),
    OpInfo("isinf", 1, "float", "a is +-infinity", result="bool", nan="false"),
    # bits
    OpInfo("bitwise_and", 2, "bits", "a & b", nan="no NaN"),
    OpInfo("bitwise_or", 2, "bits", "a | b", nan="no NaN"),
    OpInfo("bitwise_xor", 2, "bits", "a ^ b", nan="no NaN"),
    OpInfo("bitwise_not", 1, "bits", "~a; bool: not a", nan="no NaN"),
    OpInfo("shift_left", 2, "integer", "a << b; 0 when b is outside [0, bits)", nan="no NaN"),
    OpInfo(
        "shift_right", 2, "integer", "a >> b, arithmetic for signed; b outside [0, bits) shifts all value bits out", nan="no NaN"
    ),
    # rounding to integers, in the float dtype
    _float("floor", "largest integer <= a", rounding="exact", heavy=False),
    _float("ceil", "smallest integer >= a", rounding="exact", heavy=False),
    _float("trunc", "toward zero", rounding="exact", heavy=False),
    _float("round", "nearest integer, ties to even", rounding="exact", heavy=False),
    # float maths
    _float("sqrt", "square root", rounding=_NEAREST, nan="propagates; negative gives NaN"),
    _float("rsqrt", "1 / sqrt(a)"),
    _float("reciprocal", "1 / a", rounding=_NEAREST, heavy=False),
    _float("exp", "e^a"),
    _float("exp2", "2^a"),
    _float("expm1", "e^a - 1, accurate near 0"),
    _float("log", "natural logarithm"),
    _float("log2", "logarithm base 2"),
    _float("log10", "logarithm base 10"),
    _float("log1p", "log(1 + a), accurate near 0"),
    _float("sin", "sine"),
    _float("cos", "cosine"),
    _float("tan", "tangent"),
    _float("asin", "inverse sine"),
    _float("acos", "inverse cosine"),
    _float("atan", "inverse tangent"),
    _float("atan2", "angle of the point (b, a)", arity=2),
    _float("sinh", "hyperbolic sine"),
    _float("cosh", "hyperbolic cosine"),
    _float("tanh", "hyperbolic tangent"),
    _float("asinh", "inverse hyperbolic sine"),
    _float("acosh", "inverse hyperbolic cosine"),
    _float("atanh", "inverse hyperbolic tangent"),
    _float("erf", "error function"),
    _float("erfc", "1 - erf(a), accurate for large a"),
    _float("sigmoid", "1 / (1 + e^-a)"),
    _float("pow", "a^b as C's pow", arity=2, nan="propagates but for pow(1, b) and pow(a, 0), which are 1"),
    _float("copysign", "|a| with the sign of b", arity=2, rounding="exact", heavy=False),
    _float("nextafter", "the float after a toward b", arity=2, rounding="exact"),
    _float("lgamma", "log |gamma(a)|"),
)

#: Elementwise ops by name.
OPS: dict[str, OpInfo] = {info.name: info for info in _TABLE}

#: Structural ops, described by `Ops`.
STRUCTURAL = (
    "load",
    "store",
    "reduction",
    "store_reduction",
    "constant",
    "index_expr",
    "indirect_indexing",
    "masked",
    "where",
    "to_dtype",
    "bitcast",
    "load_seed",
    "rand",
    "randn",
    "randint64",
)


class Ops(Protocol[T]):
    """Handler of the operations of a loop body."""

    # memory
    def load(self, buffer: str, index: Expr) -> T:
        """The element at `index` (in elements from the buffer's start) of a buffer, in the buffer's dtype."""
        ...

    def store(self, buffer: str, index: Expr, value: T, mode: StoreMode = None) -> None:
        """Write `value`, which has the buffer's dtype. With a mode it is combined with what is there, see `Store`."""
        ...

    def reduction(self, kind: ReductionKind, dtype: str, value: T) -> tuple[T, ...]:
        """Fold `value` over the reduction axes of the loop; `dtype` is that of the accumulator (and result, where not said
        otherwise in REDUCTION_RESULTS). The results are values of the outer axes."""
        ...

    def store_reduction(self, buffer: str, index: Expr, value: T) -> None:
        """Write a result of `reduction`; `index` uses outer axes only."""
        ...

    # values that are no data
    def constant(self, value: bool | float, dtype: str) -> T: ...

    def index_expr(self, expr: Expr, dtype: str) -> T:
        """An index expression as a value."""
        ...

    def indirect_indexing(
        self, value: T, size: Expr, check: bool = True, wrap: bool = True, error: IndexErrorKind = "IndexError"
    ) -> sympy.Symbol:
        """An integer value as a symbol usable in later index expressions.

        wrap: negative values count from the end. check: the kernel stops with an `error` unless 0 <= value < size.
        """
        ...

    def masked(self, mask: T, body: Callable[[], T], other: bool | float) -> T:
        """`body()` where `mask` (bool) holds, `other` elsewhere. Loads of the body touch no memory where mask is false."""
        ...

    def where(self, condition: T, a: T, b: T) -> T:
        """a where `condition` (bool) holds, else b; a NaN in the branch not taken has no effect."""
        ...

    def to_dtype(self, value: T, dtype: str) -> T:
        """Convert. Integers wrap. Float to integer truncates toward zero (out of range: undefined); to bool: != 0 (NaN is
        true); float to narrower float rounds to nearest even, also when the value is widened again: eager's operators round
        each of their results."""
        ...

    def bitcast(self, value: T, dtype: str) -> T:
        """The same bits as another dtype of the same width."""
        ...

    # random numbers: Philox 4x32-10 keyed by a seed, counted by an offset; same numbers on every device (see `philox`)
    def load_seed(self, buffer: str, index: Expr) -> T:
        """An int64 seed drawn by the wrapper."""
        ...

    def rand(self, seed: T, offset: T) -> T:
        """float32 uniform in [0, 1)."""
        ...

    def randn(self, seed: T, offset: T) -> T:
        """float32 standard normal."""
        ...

    def randint64(self, seed: T, offset: T, low: T, high: T) -> T:
        """int64 uniform in [low, high), whose width is below 2^63."""
        ...

    # elementwise, described by OPS
    def add(self, a: T, b: T) -> T: ...
    def sub(self, a: T, b: T) -> T: ...
    def mul(self, a: T, b: T) -> T: ...
    def div(self, a: T, b: T) -> T: ...
    def floor_div(self, a: T, b: T) -> T: ...
    def trunc_div(self, a: T, b: T) -> T: ...
    def remainder(self, a: T, b: T) -> T: ...
    def fmod(self, a: T, b: T) -> T: ...
    def neg(self, a: T) -> T: ...
    def abs(self, a: T) -> T: ...
    def sign(self, a: T) -> T: ...
    def maximum(self, a: T, b: T) -> T: ...
    def minimum(self, a: T, b: T) -> T: ...
    def fma(self, a: T, b: T, c: T) -> T: ...
    def eq(self, a: T, b: T) -> T: ...
    def ne(self, a: T, b: T) -> T: ...
    def lt(self, a: T, b: T) -> T: ...
    def le(self, a: T, b: T) -> T: ...
    def gt(self, a: T, b: T) -> T: ...
    def ge(self, a: T, b: T) -> T: ...
    def logical_and(self, a: T, b: T) -> T: ...
    def logical_or(self, a: T, b: T) -> T: ...
    def logical_xor(self, a: T, b: T) -> T: ...
    def logical_not(self, a: T) -> T: ...
    def isnan(self, a: T) -> T: ...
    def isinf(self, a: T) -> T: ...
    def bitwise_and(self, a: T, b: T) -> T: ...
    def bitwise_or(self, a: T, b: T) -> T: ...
    def bitwise_xor(self, a: T, b: T) -> T: ...
    def bitwise_not(self, a: T) -> T: ...
    def shift_left(self, a: T, b: T) -> T: ...
    def shift_right(self, a: T, b: T) -> T: ...
    def floor(self, a: T) -> T: ...
    def ceil(self, a: T) -> T: ...
    def trunc(self, a: T) -> T: ...
    def round(self, a: T) -> T: ...
    def sqrt(self, a: T) -> T: ...
    def rsqrt(self, a: T) -> T: ...
    def reciprocal(self, a: T) -> T: ...
    def exp(self, a: T) -> T: ...
    def exp2(self, a: T) -> T: ...
    def expm1(self, a: T) -> T: ...
    def log(self, a: T) -> T: ...
    def log2(self, a: T) -> T: ...
    def log10(self, a: T) -> T: ...
    def log1p(self, a: T) -> T: ...
    def sin(self, a: T) -> T: ...
    def cos(self, a: T) -> T: ...
    def tan(self, a: T) -> T: ...
    def asin(self, a: T) -> T: ...
    def acos(self, a: T) -> T: ...
    def atan(self, a: T) -> T: ...
    def atan2(self, a: T, b: T) -> T: ...
    def sinh(self, a: T) -> T: ...
    def cosh(self, a: T) -> T: ...
    def tanh(self, a: T) -> T: ...
    def asinh(self, a: T) -> T: ...
    def acosh(self, a: T) -> T: ...
    def atanh(self, a: T) -> T: ...
    def erf(self, a: T) -> T: ...
    def erfc(self, a: T) -> T: ...
    def sigmoid(self, a: T) -> T: ...
    def pow(self, a: T, b: T) -> T: ...
    def copysign(self, a: T, b: T) -> T: ...
    def nextafter(self, a: T, b: T) -> T: ...
    def lgamma(self, a: T) -> T: ...


class ElementwiseOps(Ops[T], Protocol[T]):
    """Base of handlers that treat every elementwise op alike: all methods named in OPS call `elementwise`."""

    def elementwise(self, info: OpInfo, args: Sequence[T]) -> T:
        """The result of the op that `info` describes."""
        ...


def _forward(info: OpInfo) -> Callable[..., Any]:
    def method(self: Any, *args: Any) -> Any:
        return self.elementwise(info, args)

    method.__name__ = info.name
    return method


for _info in _TABLE:  # the Protocol above is the typed list; these are the bodies, one per entry
    setattr(ElementwiseOps, _info.name, _forward(_info))
del _info
