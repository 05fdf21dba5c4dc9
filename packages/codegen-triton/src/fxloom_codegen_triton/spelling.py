"""How Triton spells each op of the loop IR: one table, op -> text of its operands. An op that is not here is refused.

Float maths comes from libdevice, which is as accurate as what eager runs; `tl.exp` and its like are faster and less so.
Division and square root are the correctly rounded ones.

In: the texts of an op's operands. Out: text. It may call functions of `HELPERS`; `with_helpers_of` adds those that helpers call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

Spell = Callable[..., str]


def _infix(operator: str) -> Spell:
    return lambda a, b: f"{a} {operator} {b}"


def _call(function: str) -> Spell:
    return lambda *args: f"{function}({', '.join(args)})"


_LIBDEVICE = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh",
    "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "pow", "copysign", "nextafter", "lgamma", "floor", "ceil", "trunc", "rsqrt",
)  # fmt: skip

#: Ops of floats. Names of helpers (`remainder_float`) are functions of `helpers`.
FLOAT: dict[str, Spell] = {
    "add": _infix("+"),
    "sub": _infix("-"),
    "mul": _infix("*"),
    "remainder": _call("remainder_float"),
    "fmod": _call("libdevice.fmod"),
    "neg": lambda a: f"{a} * -1.0",  # `-a` is 0 - a to Triton, which has no -0.0
    "abs": _call("tl.abs"),
    "sign": _call("sign_float"),
    "maximum": _call("maximum_nan"),
    "minimum": _call("minimum_nan"),
    "fma": _call("tl.fma"),
    "isnan": lambda a: f"{a} != {a}",
    "isinf": lambda a: f'tl.abs({a}) == float("inf")',
    "round": _call("libdevice.rint"),
    "sqrt": _call("libdevice.sqrt"),
    "reciprocal": lambda a: f"1.0 / {a}",
    "sigmoid": lambda a: f"1.0 / (1.0 + libdevice.exp(-{a}))",
    "div": _infix("/"),
    **{name: _call(f"libdevice.{name}") for name in _LIBDEVICE},
}

#: Where float32 has correctly rounded forms of its own.
FLOAT32: dict[str, Spell] = {
    "div": _call("tl.div_rn"),
    "reciprocal": lambda a: f"tl.div_rn(tl.full({a}.shape, 1.0, tl.float32), {a})",
    "sqrt": _call("tl.sqrt_rn"),
}

#: Ops of signed and unsigned integers.
INTEGER: dict[str, Spell] = {
    "add": _infix("+"),
    "sub": _infix("-"),
    "mul": _infix("*"),
    "floor_div": _call("floor_div"),
    "trunc_div": _call("trunc_div"),
    "remainder": _call("remainder_integer"),
    "fmod": _call("fmod_integer"),
    "neg": lambda a: f"0 - {a}",
    "abs": _call("tl.abs"),
    "sign": lambda a: f"({a} > 0).to({a}.dtype) - ({a} < 0).to({a}.dtype)",
    "maximum": _call("tl.maximum"),
    "minimum": _call("tl.minimum"),
    "bitwise_and": _infix("&"),
    "bitwise_or": _infix("|"),
    "bitwise_xor": _infix("^"),
    "bitwise_not": _call("invert"),
    "shift_left": _call("shift_left"),
    "shift_right": _call("shift_right"),
}

BOOL: dict[str, Spell] = {
    "maximum": _infix("|"),
    "minimum": _infix("&"),
    "logical_and": _infix("&"),
    "logical_or": _infix("|"),
    "logical_xor": _infix("^"),
    "logical_not": lambda a: f"({a}) == 0",
    "bitwise_and": _infix("&"),
    "bitwise_or": _infix("|"),
    "bitwise_xor": _infix("^"),
    "bitwise_not": lambda a: f"({a}) == 0",
}

COMPARE: dict[str, Spell] = {
    "eq": _infix("=="),
    "ne": _infix("!="),
    "lt": _infix("<"),
    "le": _infix("<="),
    "gt": _infix(">"),
    "ge": _infix(">="),
}

#: Numbers that are functions of a seed and a position.
RANDOM: dict[str, Spell] = {name: _call(f"philox_{name}") for name in ("rand", "randn", "randint64")}

#: Functions that spellings and folds may name; the text of each goes into the module that uses it.
HELPERS: dict[str, str] = {
    # Triton's atomics compare floats as integers: a NaN that is to win has to be beyond both infinities, on their side.
    "atomic_max_nan": """
@triton.jit
def atomic_max_nan(address, value, mask):
    tl.atomic_max(address, tl.where(value == value, value, signed_nan(value, False)), mask, sem="relaxed")
""",
    "atomic_min_nan": """
@triton.jit
def atomic_min_nan(address, value, mask):
    tl.atomic_min(address, tl.where(value == value, value, signed_nan(value, True)), mask, sem="relaxed")
""",
    "signed_nan": """
@triton.jit
def signed_nan(like, negative: tl.constexpr):
    if like.dtype == tl.float64:
        return tl.full(like.shape, 0xFFF8000000000000 if negative else 0x7FF8000000000000, tl.uint64).to(tl.float64, bitcast=True)
    else:
        return tl.full(like.shape, 0xFFC00000 if negative else 0x7FC00000, tl.uint32).to(tl.float32, bitcast=True)
""",
    # Triton has no atomic product: each thread writes the product of what it read, if it still is what it read, until it was.
    "atomic_mul": """
@triton.jit
def atomic_mul(first, address, value, mask):
    address = tl.where(mask, address, first)
    if value.dtype == tl.float64:
        places = address.to(tl.pointer_type(tl.int64), bitcast=True)
    elif value.dtype == tl.float32:
        places = address.to(tl.pointer_type(tl.int32), bitcast=True)
    else:
        places = address
    seen = tl.load(places, volatile=True)
    todo = mask
    while tl.max(todo.to(tl.int32), None) > 0:
        old = seen
        product = (old.to(value.dtype, bitcast=True) * value).to(old.dtype, bitcast=True)
        seen = tl.atomic_cas(places, old, tl.where(todo, product, old))
        todo = todo & (seen != old)
""",
    "maximum_nan": """
@triton.jit
def maximum_nan(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
""",
    "minimum_nan": """
@triton.jit
def minimum_nan(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
""",
    "plus": """
@triton.jit
def plus(a, b):
    return a + b
""",
    "multiply": """
@triton.jit
def multiply(a, b):
    return a * b
""",
    "log_add_exp": """
@triton.jit
def log_add_exp(a, b):  # log(exp(a) + exp(b)); the difference of equal infinities would be NaN
    larger = maximum_nan(a, b)
    smaller = minimum_nan(a, b)
    same = (a == b) & (tl.abs(a) == float("inf"))
    return tl.where(same, a, larger + libdevice.log1p(libdevice.exp(smaller - larger)))
""",
    "sign_float": """
@triton.jit
def sign_float(a):
    return tl.where(a > 0, 1.0, tl.where(a < 0, -1.0, 0.0)).to(a.dtype)
""",
    "remainder_float": """
@triton.jit
def remainder_float(a, b):  # sign of b, as Python's %
    r = libdevice.fmod(a, b)
    return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)
""",
    # LLVM takes it that neither a division by 0 nor one of the lowest number by -1 happens: where one did, it would leave out
    # the program's own tests for 0
    "trunc_div": """
@triton.jit
def trunc_div(a, b):  # toward zero; b == 0 gives -1
    if a.dtype.is_int_signed():
        simple = (b == 0) | (b == -1)
        quotient = a // tl.where(simple, 1, b).to(a.dtype)
        return tl.where(b == 0, -1, tl.where(b == -1, 0 - a, quotient)).to(a.dtype)
    else:
        return tl.where(b == 0, (b & 0) - 1, a // tl.where(b == 0, 1, b).to(a.dtype)).to(a.dtype)
""",
    "fmod_integer": """
@triton.jit
def fmod_integer(a, b):  # sign of a, as C's %; b == 0 gives -1
    if a.dtype.is_int_signed():
        simple = (b == 0) | (b == -1)
        rest = a % tl.where(simple, 1, b).to(a.dtype)
        return tl.where(b == 0, -1, tl.where(b == -1, 0, rest)).to(a.dtype)
    else:
        return tl.where(b == 0, (b & 0) - 1, a % tl.where(b == 0, 1, b).to(a.dtype)).to(a.dtype)
""",
    "floor_div": """
@triton.jit
def floor_div(a, b):  # toward minus infinity
    q = trunc_div(a, b)
    return tl.where((b != 0) & (fmod_integer(a, b) != 0) & ((a < 0) != (b < 0)), q - 1, q)
""",
    "remainder_integer": """
@triton.jit
def remainder_integer(a, b):  # sign of b, as Python's %
    r = fmod_integer(a, b)
    return tl.where((b != 0) & (r != 0) & ((r < 0) != (b < 0)), r + b, r)
""",
    "invert": """
@triton.jit
def invert(a):  # ~a, which Triton's interpreter has for signed integers only
    return a ^ ((a & 0) - 1)
""",
    "shift_left": """
@triton.jit
def shift_left(a, b):  # 0 for counts outside of the width
    inside = (b >= 0) & (b < a.dtype.primitive_bitwidth)
    return tl.where(inside, a << tl.where(inside, b, 0).to(a.dtype), 0).to(a.dtype)
""",
    "shift_right": """
@triton.jit
def shift_right(a, b):  # all value bits out for counts outside of the width
    last = a.dtype.primitive_bitwidth - 1
    inside = (b >= 0) & (b <= last)
    shifted = a >> tl.where(inside, b, last).to(a.dtype)
    return shifted if a.dtype.is_int_signed() else tl.where(inside, shifted, 0).to(a.dtype)
""",
    "larger_first": """
@triton.jit
def larger_first(a, i, b, j):  # NaN counts as largest; among equals the first position wins
    a_nan = a != a
    b_nan = b != b
    take = (a > b) | (a_nan & ~b_nan) | (((a == b) | (a_nan & b_nan)) & (i < j))
    return tl.where(take, a, b), tl.where(take, i, j)
""",
    "smaller_first": """
@triton.jit
def smaller_first(a, i, b, j):  # NaN counts as smallest; among equals the first position wins
    a_nan = a != a
    b_nan = b != b
    take = (a < b) | (a_nan & ~b_nan) | (((a == b) | (a_nan & b_nan)) & (i < j))
    return tl.where(take, a, b), tl.where(take, i, j)
""",
    "welford_merge": """
@triton.jit
def welford_merge(mean_a, m2_a, count_a, mean_b, m2_b, count_b):  # Chan et al. 1979, eq. 1.5
    count = count_a + count_b
    share = tl.where(count == 0, 0.0, count_b / tl.where(count == 0, 1.0, count))
    delta = mean_b - mean_a
    return mean_a + delta * share, m2_a + m2_b + delta * delta * count_a * share, count
""",
    "philox_rand": """
@triton.jit
def philox_rand(seed, position):
    low_half = position.to(tl.uint32)
    zero = low_half * 0
    first, second, _, _ = tl.philox(seed, low_half, (position >> 32).to(tl.uint32), zero, zero)
    return (first >> 8).to(tl.float32) * 5.9604644775390625e-8
""",
    "philox_randn": """
@triton.jit
def philox_randn(seed, position):  # Box and Muller 1958
    low_half = position.to(tl.uint32)
    zero = low_half * 0
    first, second, _, _ = tl.philox(seed, low_half, (position >> 32).to(tl.uint32), zero, zero)
    u = first.to(tl.float32) * 2.3283064365386963e-10 + 1.1641532182693481e-10
    half_turns = (second >> 8).to(tl.float32) * 1.1920928955078125e-7
    return tl.sqrt_rn(-2.0 * libdevice.log(u)) * libdevice.cospi(half_turns)
""",
    "philox_randint64": """
@triton.jit
def philox_randint64(seed, position, low, high):
    low_half = position.to(tl.uint32)
    zero = low_half * 0
    first, second, _, _ = tl.philox(seed, low_half, (position >> 32).to(tl.uint32), zero, zero)
    return low + (((second & 0x7FFFFFFF).to(tl.int64) << 32) | first.to(tl.int64)) % (high - low)
""",
}


def with_helpers_of(helpers: Iterable[str]) -> list[str]:
    """`helpers` and those that they call, in the order of their names."""
    found: set[str] = set()
    waiting = list(helpers)
    while waiting:
        helper = waiting.pop()
        if helper not in found:
            found.add(helper)
            waiting += [word for word in re.findall(r"\w+", HELPERS[helper]) if word in HELPERS]
    return sorted(found)
