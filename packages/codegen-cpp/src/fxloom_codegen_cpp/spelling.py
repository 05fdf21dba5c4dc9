"""The table of this target: how each elementwise op of the loop IR is spelled, for values of a dtype.

In: texts of the operands, with their precedence, and a dtype. Out: the text of the operation, with its precedence, so that whoever
uses it adds only the parentheses that are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fxloom_codegen_common.text import (
    ADDITIVE,
    BIT_AND,
    BIT_OR,
    BIT_XOR,
    EQUALITY,
    LOGICAL_OR,
    MULTIPLICATIVE,
    RELATION,
    TERNARY,
    UNARY,
    Text,
    call,
    infix,
    prefix,
)
from fxloom_codegen_cpp.dtypes import HALVES, ctype, literal
from fxloom_codegen_cpp.vector_math import function_name
from fxloom_interfaces.dtypes import dtype_info
from fxloom_interfaces.errors import PluginError

#: float32 functions of prelude.h, which are faster than calls of `vector_math`, for a last place or two
_PRELUDE_F32 = frozenset("exp exp2 expm1 log log2 log10 log1p asin acos atan asinh acosh sinh cosh tanh erf erfc sigmoid".split())

_INFIX: dict[str, tuple[str, int]] = {
    "add": ("+", ADDITIVE),
    "sub": ("-", ADDITIVE),
    "mul": ("*", MULTIPLICATIVE),
    "div": ("/", MULTIPLICATIVE),
    "eq": ("==", EQUALITY),
    "ne": ("!=", EQUALITY),
    "lt": ("<", RELATION),
    "le": ("<=", RELATION),
    "gt": (">", RELATION),
    "ge": (">=", RELATION),
    "logical_and": ("&", BIT_AND),  # bools without a branch
    "logical_or": ("|", BIT_OR),
    "logical_xor": ("!=", EQUALITY),
    "bitwise_and": ("&", BIT_AND),
    "bitwise_or": ("|", BIT_OR),
    "bitwise_xor": ("^", BIT_XOR),
}

_CALLS = frozenset({"floor_div", "trunc_div", "shift_left", "shift_right", "maximum", "minimum", "sign"})

_RANDOM = frozenset({"rand", "randn", "randint64"})

#: besides what is called in vectors (`vector_math`)
_LIBM = frozenset({"asinh", "acosh", "sqrt", "floor", "ceil", "trunc", "copysign", "fma"})


def spell(op: str, args: Sequence[Text], dtype: str, operand_dtypes: Sequence[str]) -> Text:
    """The C++ expression of `op` on operands of the given dtypes, giving `dtype`."""
    if op == "where":
        condition, a, b = args
        return Text(f"{condition.at(LOGICAL_OR)} ? {a.at(TERNARY + 1)} : {b.at(TERNARY + 1)}", TERNARY)
    if op == "to_dtype":
        return convert(args[0], operand_dtypes[0], dtype)
    if op == "bitcast":
        return Text(f"__builtin_bit_cast({ctype(dtype)}, {args[0]})")
    if op in _RANDOM:
        return call(f"philox_{op}", *args)
    kind = operand_dtypes[0]
    if kind in HALVES:
        wide = [convert(a, kind, "float32") for a in args]
        result = dtype if dtype != kind else "float32"
        return convert(spell(op, wide, result, ["float32"] * len(args)), result, dtype)
    if op in _INFIX:
        return _narrow(infix(*_INFIX[op], *args), op, dtype)
    if op in _CALLS:
        return call(f"{op}<{ctype(kind)}>", *args)  # literals alone don't tell the type
    vector = function_name(op, kind)
    if vector is not None:
        return call(vector, *args)
    rule = SPELLINGS.get(op)
    if rule is not None:
        return rule(args, kind)
    if kind == "float32" and op in _PRELUDE_F32:
        return call(f"{op}_f32", *args)
    if op in _LIBM and kind in ("float32", "float64"):
        return call(f"__builtin_{op}{'f' if kind == 'float32' else ''}", *args)
    raise PluginError("cpp", f"no spelling for {op} on {kind}")


def _narrow(text: Text, op: str, dtype: str) -> Text:
    """C++ computes small integers as int: cut the result back to its type."""
    info = dtype_info(dtype)
    if info.kind in ("int", "uint") and info.nbytes < 4:
        return Text(f"({ctype(dtype)})({text})", UNARY)
    return text


def convert(value: Text, source: str, target: str) -> Text:
    """`value` converted from dtype `source` to `target`."""
    if source == target:
        return value
    if source in HALVES:
        wide = call(HALVES[source][0], value)
        return wide if target == "float32" else convert(wide, "float32", target)
    if target in HALVES:  # by way of float32, as torch does
        return call(HALVES[target][1], convert(value, source, "float32"))
    if target == "bool":
        return infix("!=", EQUALITY, value, Text("0"))
    if _is_float(source) and dtype_info(target).kind in ("int", "uint"):
        if dtype_info(target).nbytes < 4:  # what does not fit wraps, as in torch's kernels
            return Text(f"({ctype(target)})(int){value.at(UNARY)}", UNARY)
        return infix("^", BIT_XOR, Text(f"({ctype(target)}){value.at(UNARY)}", UNARY), Text("fxloom_zero"))
    return Text(f"({ctype(target)}){value.at(UNARY)}", UNARY)


def _one(kind: str) -> Text:
    return Text(literal(1, kind))


def _builtin(name: str, kind: str) -> str:
    return f"__builtin_{name}{'f' if kind == 'float32' else ''}"


def _is_float(kind: str) -> bool:
    return dtype_info(kind).kind == "float"


def _remainder(args: Sequence[Text], kind: str) -> Text:
    if not _is_float(kind):
        return call(f"remainder_int<{ctype(kind)}>", *args)
    return call("fx_remainder_f32" if kind == "float32" else "fx_remainder_f64", *args)


def _fmod(args: Sequence[Text], kind: str) -> Text:
    return call(f"fmod_int<{ctype(kind)}>", *args)  # of integers: `vector_math` has the other


def _abs(args: Sequence[Text], kind: str) -> Text:
    if _is_float(kind):
        return call(_builtin("fabs", kind), *args)
    if dtype_info(kind).kind == "uint":
        return args[0]
    a = args[0]
    return _narrow(Text(f"{a.at(RELATION + 1)} < 0 ? {prefix('-', a)} : {a.at(TERNARY + 1)}", TERNARY), "abs", kind)


def _neg(args: Sequence[Text], kind: str) -> Text:
    return _narrow(prefix("-", args[0]), "neg", kind)


def _not(args: Sequence[Text], kind: str) -> Text:
    return prefix("!", args[0])


def _bitwise_not(args: Sequence[Text], kind: str) -> Text:
    return prefix("!", args[0]) if kind == "bool" else _narrow(prefix("~", args[0]), "bitwise_not", kind)


def _isnan(args: Sequence[Text], kind: str) -> Text:
    return infix("!=", EQUALITY, args[0], args[0])


def _isinf(args: Sequence[Text], kind: str) -> Text:
    return infix("==", EQUALITY, call(_builtin("fabs", kind), args[0]), Text(literal(float("inf"), kind)))


def _round(args: Sequence[Text], kind: str) -> Text:
    return call(_builtin("rint", kind), *args)  # the rounding mode is to nearest even


def _rsqrt(args: Sequence[Text], kind: str) -> Text:
    return infix("/", MULTIPLICATIVE, _one(kind), call(_builtin("sqrt", kind), args[0]))


def _reciprocal(args: Sequence[Text], kind: str) -> Text:
    return infix("/", MULTIPLICATIVE, _one(kind), args[0])


def _sigmoid(args: Sequence[Text], kind: str) -> Text:
    if kind == "float32":
        return call("sigmoid_f32", *args)
    denominator = infix("+", ADDITIVE, _one(kind), call(str(function_name("exp", kind)), prefix("-", args[0])))
    return infix("/", MULTIPLICATIVE, _one(kind), denominator)


#: Ops that are neither an infix operator nor one function: op -> text of its operands and their dtype.
SPELLINGS: dict[str, Callable[[Sequence[Text], str], Text]] = {
    "remainder": _remainder,
    "fmod": _fmod,
    "abs": _abs,
    "neg": _neg,
    "logical_not": _not,
    "bitwise_not": _bitwise_not,
    "isnan": _isnan,
    "isinf": _isinf,
    "round": _round,
    "rsqrt": _rsqrt,
    "reciprocal": _reciprocal,
    "sigmoid": _sigmoid,
}
