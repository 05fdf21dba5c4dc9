"""What a trace decided about sizes, as guards that C++ checks without SymPy.

In: the symbol environment when the backend has returned. Out: one guard per symbol (its places hold one number, in its
range), one per statement, and one per float or storage offset whose value the trace relied on. From here on the environment only answers.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from fxloom_dynamo.guard.guards import Guard, GuardKind
from fxloom_interfaces.sources import SizeSource, Source
from fxloom_interfaces.symbolic_math import UNARY
from fxloom_shapes import SymbolEnv
from fxloom_shapes.expressions.floats import FloatExpr
from fxloom_shapes.expressions.polynomials import Atom, Poly
from fxloom_shapes.expressions.statements import Comparison, Relation, Statement, symbols_of
from fxloom_shapes.expressions.text import statement_text
from fxloom_shapes.symbols.symbol import LARGEST, Symbol

# The order is that of SizeOp in native/size_program.h.
_NAMES = """
    const load add mul FloorDiv Mod Min Max == != >= and or not And Or Xor Power BitLength Isqrt Gcd
    r.const r.load r.int r.add r.sub r.mul r.truediv r.floordiv r.mod r.pow r.min r.max r.neg r.abs r.unary
    Floor Ceil Trunc Round r.== r.< r.<= r.finite r.round
"""
_OPCODES = {name: number for number, name in enumerate(_NAMES.split())}


@dataclass(frozen=True, slots=True)
class SizeCheck:
    """A statement about the numbers at `sources`: text for people, code for native/size_program.cpp."""

    sources: tuple[Source, ...]
    code: tuple[int, ...]
    text: str

    def __str__(self) -> str:
        return self.text


def size_guards(env: SymbolEnv) -> list[Guard]:
    """See the module's docstring. Freezes the environment."""
    env.frozen = True
    guards = []
    for symbol in env.symbols.values():
        if not symbol.sources:
            continue
        if symbol.is_float:
            guards += [Guard(source, GuardKind.TYPE, float) for source in symbol.sources]
            pin = env.pinned_floats.get(symbol.name)
            if pin is not None:
                guards.append(Guard(symbol.sources[0], GuardKind.EQUALITY, symbol.hint, pin.site))
            continue
        guards.append(_symbol_guard(env, symbol))
    for source, (offset, site) in env.offsets.items():
        guards.append(Guard(SizeSource(source, "storage_offset"), GuardKind.EQUALITY, offset, site))
    for guard in env.size_guards():
        symbols = [env.symbols[atom.text] for atom in symbols_of(guard.statement)]
        sources = tuple(symbol.sources[0] for symbol in symbols)
        places = {symbol.name: place for place, symbol in enumerate(symbols)}
        names = {symbol.name: symbol.sources[0].name for symbol in symbols}
        check = SizeCheck(sources, tuple(_statement(guard.statement, places)), statement_text(guard.statement, names))
        guards.append(Guard(sources[0], GuardKind.SIZES, check, guard.site))
    return guards


def _symbol_guard(env: SymbolEnv, symbol: Symbol) -> Guard:
    low, high = env.range_of(symbol) if symbol.hint is not None else symbol.promised
    load = [_OPCODES["load"], 0]
    parts = []
    if low is not None:
        parts.append([*load, *_constant(-low), _OPCODES["add"], _OPCODES[">="]])
    if high is not None and high < LARGEST:
        parts.append([*_constant(high), *load, *_constant(-1), _OPCODES["mul"], _OPCODES["add"], _OPCODES[">="]])
    for other in range(1, len(symbol.sources)):
        parts.append([*load, _OPCODES["load"], other, *_constant(-1), _OPCODES["mul"], _OPCODES["add"], _OPCODES["=="]])
    if not parts:  # any integer, but an integer
        parts.append([*load, *_constant(0), _OPCODES["mul"], _OPCODES["=="]])
    text = " == ".join(source.name for source in symbol.sources)
    text = f"{low} <= {text}" if low is not None else text
    text = f"{text} <= {high}" if high is not None and high < LARGEST else text
    return Guard(symbol.sources[0], GuardKind.SIZES, SizeCheck(tuple(symbol.sources), tuple(_joined(parts, "and")), text))


def _constant(value: int) -> list[int]:
    return [_OPCODES["const"], value]


def _joined(parts: Sequence[list[int]], word: str) -> list[int]:
    code = list(parts[0])
    for part in parts[1:]:
        code += [*part, _OPCODES[word]]
    return code


def _statement(statement: Statement, places: dict[str, int]) -> list[int]:
    if isinstance(statement, Relation):
        return [*_poly(statement.poly, places), _OPCODES[statement.op]]
    if isinstance(statement, Comparison):
        code = [word for part in statement.args for word in _float_expr(part, places)]
        return [*code, _OPCODES[f"r.{statement.op}"], *([] if statement.truth else [_OPCODES["not"]])]
    return _joined([_statement(part, places) for part in statement.parts], statement.kind)


def _poly(poly: Poly, places: dict[str, int]) -> list[int]:
    terms = []
    for monomial, value in poly.terms.items():
        code = _constant(value)
        for atom in monomial:
            code += [*_atom(atom, places), _OPCODES["mul"]]
        terms.append(code)
    return _joined(terms, "add") if terms else _constant(0)


def _atom(atom: Atom, places: dict[str, int]) -> list[int]:
    if not atom.kind:
        return [_OPCODES["load"], places[atom.text]]
    code = []
    for argument in atom.args:
        code += _float_expr(argument, places) if isinstance(argument, FloatExpr) else _poly(argument, places)
    return [*code, _OPCODES[atom.kind]]


def _float_expr(expr: FloatExpr, places: dict[str, int]) -> list[int]:
    match expr.kind:
        case "symbol":
            return [_OPCODES["r.load"], places[expr.args[0].text]]
        case "const":
            return [_OPCODES["r.const"], struct.unpack("<q", struct.pack("<d", expr.args[0]))[0]]
        case "int":
            return [*_poly(expr.args[0], places), _OPCODES["r.int"]]
        case "float":
            return _float_expr(expr.args[0], places)
    code = [word for part in expr.args for word in _float_expr(part, places)]
    return [*code, *((_OPCODES["r.unary"], UNARY.index(expr.kind)) if expr.kind in UNARY else (_OPCODES[f"r.{expr.kind}"],))]
