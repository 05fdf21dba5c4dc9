"""Counterexamples: cases that satisfy all known statements. A statement that is false in one of them needs no attempt at a proof.

In: the values of symbols in the traced call, their ranges, and each statement that is stated. Out: the value of a polynomial in each
case. The first case is the traced call; others have multiples and neighbours of its numbers, and are dropped with the first
statement that they do not satisfy. Cases only refute, so which ones there are never makes an answer wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from fxloom_shapes.expressions.polynomials import FUNCTIONS, Atom, Poly

Range = tuple[int | None, int | None]
#: number of the traced call, and which symbol it is of -> number of another case
_VARIATIONS: tuple[Callable[[int, int], int], ...] = (
    lambda hint, place: 2 * hint,
    lambda hint, place: hint * (3 if place % 2 else 1),
    lambda hint, place: hint * (1 if place % 2 else 3),
    lambda hint, place: hint + 1 + place,
    lambda hint, place: hint + 24 * (place + 1),
    lambda hint, place: 16 * hint,
    lambda hint, place: 2 + place % 3,
)


class Holds(Protocol):
    """A statement."""

    def holds(self, numbers: Mapping[str, Any]) -> bool: ...


class Case(Mapping[str, Any]):
    """One case: a number for each symbol of the traced call."""

    def __init__(self, hints: Mapping[str, Any], ranges: Mapping[Atom, Range], vary: Callable[[int, int], int] | None) -> None:
        self._hints, self._ranges, self._vary = hints, ranges, vary
        self._own: dict[str, Any] = {}
        self._atoms: dict[Atom, int] = {}
        self._values: dict[Poly, int | None] = {}

    def __getitem__(self, name: str) -> Any:
        if self._vary is None:
            return self._hints[name]
        if name not in self._own:
            hint = self._hints[name]
            number = self._vary(hint, len(self._own)) if isinstance(hint, int) else hint
            low, high = self._ranges.get(name, (None, None))  # type: ignore[call-overload]  # an atom is its text
            number = number if low is None else max(number, low)
            self._own[name] = number if high is None else min(number, high)
        return self._own[name]

    def __iter__(self) -> Any:
        return iter(self._hints)

    def __len__(self) -> int:
        return len(self._hints)

    def value(self, poly: Poly) -> int | None:
        """What `poly` is in this case; None where that is unknown."""
        if poly not in self._values:
            try:
                self._values[poly] = self._value(poly)
            except (KeyError, ArithmeticError, ValueError):
                self._values[poly] = None
        return self._values[poly]

    def _value(self, poly: Poly) -> int:
        total = 0
        for monomial, factor in poly.terms.items():
            for atom in monomial:
                known = self._atoms.get(atom)
                if known is None:
                    known = self._atoms[atom] = self._atom(atom)
                factor *= known
            total += factor
        return total

    def _atom(self, atom: Atom) -> int:
        if not atom.kind:
            return self[atom.text]  # type: ignore[no-any-return]  # that of a size
        args = [self._value(part) if isinstance(part, Poly) else part.value(self) for part in atom.args]
        return FUNCTIONS[atom.kind](*args)


class Counterexamples:
    """See the module's docstring."""

    def __init__(self, hints: Mapping[str, Any], ranges: Mapping[Atom, Range]) -> None:
        self._cases = [Case(hints, ranges, None), *(Case(hints, ranges, vary) for vary in _VARIATIONS)]

    def stated(self, statement: Holds) -> None:
        """From now on the statement holds."""
        self._cases[1:] = [case for case in self._cases[1:] if _holds(statement, case)]

    def signs(self, poly: Poly) -> tuple[bool, bool]:
        """(it is below 0 in some case, it is 0 or above in some)."""
        first = self._cases[0].value(poly)
        if first is None:
            return False, False
        below = first < 0
        if _is_simple(poly):
            return below, not below
        for case in self._cases[1:]:
            value = case.value(poly)
            if value is not None and (value < 0) is not below:
                return True, True
        return below, not below

    def is_zero(self, poly: Poly) -> bool:
        """It is 0 in some case."""
        return any(case.value(poly) == 0 for case in (self._cases[:1] if _is_simple(poly) else self._cases))

    def never_above(self, fact: Poly, poly: Poly) -> bool:
        """`fact <= poly` in every case whose numbers are known."""
        for case in self._cases:
            one, other = case.value(fact), case.value(poly)
            if one is not None and other is not None and one > other:
                return False
        return True


def _is_simple(poly: Poly) -> bool:
    """A proof costs less than more cases."""
    return len(poly.terms) <= 3 and not any(atom.kind for monomial in poly.terms for atom in monomial)


def _holds(statement: Holds, case: Case) -> bool:
    try:
        return statement.holds(case)
    except KeyError:
        return True  # of what is known only at run time
    except (ArithmeticError, ValueError, TypeError):
        return False
