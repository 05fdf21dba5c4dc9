"""Polynomials with integer coefficients over atoms: the form in which sizes are computed from symbols.

An atom is a symbol or an application of a function that no polynomial expresses: `FloorDiv`, `Mod`, `Min`, `Max`, which the
constraint solver knows, or one of `OPAQUE` (rounded floats, operations on bits), of which it knows the range at most.

In: ints, atoms, polynomials. Out: polynomials; `value` gives the number for given values of the symbols.
Invariant: a `Poly` is immutable and canonical: equal polynomials have equal keys, so comparing and hashing is cheap and SymPy is
not needed.

Not here: what is known about the symbols (`symbols`, `solver`).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from math import gcd
from typing import Any

#: how names of integers begin that may be negative; all others are sizes or counts
SIGNED = "n"


class Atom(str):
    """A symbol (kind ""), or a function of polynomials; as a string its unique, printable text, which also is its identity.

    args: polynomials; a `floats.FloatExpr` for what rounds a float, which answers `symbols`, `atoms`, `contains` and `value` alike.
    rank: order of creation of a symbol; that of a function is above those of its arguments.
    """

    __slots__ = ("args", "kind", "rank")

    kind: str
    args: tuple[Any, ...]
    rank: int

    def __new__(cls, kind: str, args: tuple[Any, ...], text: str, rank: int = 0) -> Atom:
        made = super().__new__(cls, text)
        made.kind, made.args, made.rank = kind, args, rank
        return made

    @property
    def text(self) -> str:
        return str.__str__(self)


Monomial = tuple[Atom, ...]


def _order(monomial: Monomial) -> tuple[int, tuple[str, ...]]:
    return (-len(monomial), monomial)


class Poly:
    """Sum of coefficient times product of atoms. terms: no zero coefficients; the empty monomial is the constant."""

    __slots__ = ("_hash", "_key", "terms")

    def __init__(self, terms: Mapping[Monomial, int]) -> None:
        self.terms = terms if all(terms.values()) else {monomial: value for monomial, value in terms.items() if value}
        self._key: tuple[Any, ...] | None = None
        self._hash: int | None = None

    @property
    def key(self) -> tuple[Any, ...]:
        if self._key is None:
            self._key = tuple((monomial, self.terms[monomial]) for monomial in sorted(self.terms, key=_order))
        return self._key

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(frozenset(self.terms.items()))
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Poly) and self.terms == other.terms)

    def __repr__(self) -> str:
        parts: list[str] = []
        for monomial in sorted(self.terms, key=_order):
            value = self.terms[monomial]
            text = "*".join(atom.text for atom in monomial)
            if not text:
                text = str(abs(value))
            elif abs(value) != 1:
                text = f"{abs(value)}*{text}"
            parts.append((" - " if parts else "-") + text if value < 0 else (" + " if parts else "") + text)
        return "".join(parts) or "0"

    @property
    def constant(self) -> int | None:
        """The value of a constant polynomial, None for any other."""
        if not self.terms:
            return 0
        if len(self.terms) == 1:
            return self.terms.get(())
        return None

    def __add__(self, other: Poly) -> Poly:
        terms = dict(self.terms)
        for monomial, value in other.terms.items():
            terms[monomial] = terms.get(monomial, 0) + value
        return Poly(terms)

    def __neg__(self) -> Poly:
        return self.scaled(-1)

    def __sub__(self, other: Poly) -> Poly:
        return self + other.scaled(-1)

    def scaled(self, factor: int) -> Poly:
        return Poly({monomial: value * factor for monomial, value in self.terms.items()})

    def __mul__(self, other: Poly) -> Poly:
        terms: dict[Monomial, int] = {}
        for left, a in self.terms.items():
            for right, b in other.terms.items():
                monomial = tuple(sorted(left + right)) if left and right else left or right
                terms[monomial] = terms.get(monomial, 0) + a * b
        return Poly(terms)

    def atoms(self) -> dict[Atom, None]:
        """Atoms of the monomials, not those inside of functions."""
        return {atom: None for monomial in self.terms for atom in monomial}

    def symbols(self) -> dict[Atom, None]:
        """All symbols, inside of functions too, in order of appearance."""
        found: dict[Atom, None] = {}
        for monomial in sorted(self.terms, key=_order):
            for atom in monomial:
                if atom.kind:
                    for argument in atom.args:
                        found.update(argument.symbols())
                else:
                    found[atom] = None
        return found

    def contains(self, wanted: Atom) -> bool:
        return any(
            atom == wanted or any(argument.contains(wanted) for argument in atom.args) for monomial in self.terms for atom in monomial
        )

    def content(self) -> int:
        """The greatest common divisor of the coefficients, 0 for the zero polynomial."""
        return reduce(gcd, self.terms.values(), 0)

    def rebuilt(self, atom_value: Callable[[Atom], Poly | None]) -> Poly:
        """The polynomial with atoms replaced by what `atom_value` gives; None keeps an atom."""
        total = ZERO
        changed = False
        for monomial, value in self.terms.items():
            product = const(value)
            for atom in monomial:
                new = atom_value(atom)
                if new is None:
                    new = of_atom(atom)
                else:
                    changed = True
                product = product * new
            total = total + product
        return total if changed else self

    def value(self, numbers: Mapping[str, int]) -> int:
        """The number that it is when symbols have these values, by name. KeyError for one that is missing."""
        total = 0
        for monomial, factor in self.terms.items():
            for atom in monomial:
                factor *= atom_value(atom, numbers)
            total += factor
        return total


FUNCTIONS: dict[str, Callable[..., int]] = {
    "FloorDiv": lambda a, b: a // b,
    "Mod": lambda a, b: a % b,
    "Min": min,
    "Max": max,
    "Floor": math.floor,
    "Ceil": math.ceil,
    "Trunc": math.trunc,
    "Round": round,
    "And": operator.and_,
    "Or": operator.or_,
    "Xor": operator.xor,
    "Power": operator.pow,
    "BitLength": int.bit_length,
    "Isqrt": math.isqrt,
    "Gcd": math.gcd,
}
#: functions that are computed apart, not within sizes that kernels work out
OPAQUE = frozenset(FUNCTIONS) - {"FloorDiv", "Mod", "Min", "Max"}


def atom_value(atom: Atom, numbers: Mapping[str, int]) -> int:
    """The number that an atom is when symbols have these values."""
    if not atom.kind:
        return numbers[atom.text]
    return FUNCTIONS[atom.kind](*[argument.value(numbers) for argument in atom.args])


_small: dict[int, Poly] = {}


def const(value: int) -> Poly:
    found = _small.get(value)
    if found is None:
        found = Poly({(): value})
        if -1024 <= value <= 65536:
            _small[value] = found
    return found


ZERO = const(0)
ONE = const(1)


def of_atom(atom: Atom) -> Poly:
    return Poly({(atom,): 1})


def apply(kind: str, *args: Any) -> Poly:
    """The function applied, as an atom; no simplification."""
    rank = 1 + max((atom.rank for argument in args for atom in argument.atoms()), default=0)
    return of_atom(Atom(kind, args, f"{kind}({', '.join(map(str, args))})", rank))


def divide(a: Poly, b: Poly) -> tuple[Poly, Poly]:
    """(q, r) with a == b*q + r, taking into q what divides visibly; r is a itself where nothing does."""
    if not b.terms:
        raise ZeroDivisionError("integer division or modulo by zero")
    lead = min(b.terms, key=_order)
    factor = b.terms[lead]
    quotient, rest = ZERO, a
    if len(b.terms) == 1:
        taken: dict[Monomial, int] = {}
        left: dict[Monomial, int] = {}
        for monomial, value in a.terms.items():
            smaller = _without(monomial, lead)
            if smaller is None:
                left[monomial] = value
                continue
            # of a constant the remainder is to be small and positive, of other terms it keeps the sign
            whole = value // factor if not monomial or value % factor == 0 else int(value / factor)
            if value != whole * factor:
                left[monomial] = value - whole * factor
            if whole:
                taken[smaller] = whole
        return Poly(taken), Poly(left)
    for _ in range(len(a.terms) + 4):
        step = None
        for monomial in sorted(rest.terms, key=_order):
            smaller = _without(monomial, lead)
            if smaller is not None and rest.terms[monomial] % factor == 0:
                step = Poly({smaller: rest.terms[monomial] // factor})
                break
        if step is None:
            break
        quotient, rest = quotient + step, rest - step * b
        if not rest.terms:
            return quotient, rest
    return ZERO, a


def _without(monomial: Monomial, part: Monomial) -> Monomial | None:
    left = list(monomial)
    for atom in part:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


def total(polys: Iterable[Poly]) -> Poly:
    return reduce(lambda a, b: a + b, polys, ZERO)
