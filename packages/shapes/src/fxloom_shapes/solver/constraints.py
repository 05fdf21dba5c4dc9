"""What is known about symbols, and the constraint solver that decides statements about them from it.

In: symbols with ranges, statements that hold. Out: True, False or None (not known) for a new statement. Decides by bounds of
polynomials over boxes: shifting every atom to its nearest bound, then intervals, then differences to known statements.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fxloom_shapes.expressions.floats import FloatExpr
from fxloom_shapes.expressions.polynomials import FUNCTIONS, ONE, OPAQUE, ZERO, Atom, Poly, apply, const, divide, of_atom
from fxloom_shapes.expressions.statements import Comparison, Logic, Relation, Statement
from fxloom_shapes.solver.counterexamples import Counterexamples

Range = tuple[int | None, int | None]

#: how often a divisor is taken out of what certainly is not less
_MOST_TAKEN = 3
_NO_HINTS: Mapping[str, Any] = {}


class ConstraintSolver:
    """What is known: ranges of atoms, polynomials that are not negative or not zero, atoms that equal something else.

    `state` adds a statement, `proves` decides one, `simplify` rewrites a polynomial by what is known. hints: the symbols' numbers
    in the traced call, for which all that is stated holds. Knowledge only grows; what is derived from it is cached until it does.
    """

    def __init__(self, hints: Mapping[str, Any] = _NO_HINTS) -> None:
        self.ranges: dict[Atom, Range] = {}
        self.nonnegative: list[Poly] = []
        self.nonzero: set[Poly] = set()
        self.equal: dict[Atom, Poly] = {}
        self.compared: dict[tuple[str, tuple[FloatExpr, ...]], bool] = {}
        self.version = 0
        #: cache for callers, cleared when something new is known
        self.memo: dict[Any, Any] = {}
        self._lower: dict[Poly, int | None] = {}
        self._atom_ranges: dict[Atom, Range] = {}
        self.counterexamples = Counterexamples(hints, self.ranges)
        self._simple: dict[Poly, Poly] = {}

    def _changed(self) -> None:
        self.version += 1
        self._lower.clear()
        self._atom_ranges.clear()
        self._simple.clear()
        self.memo.clear()

    # --- simplification ---

    def simplify(self, poly: Poly) -> Poly:
        """`poly` with equal terms substituted, and functions evaluated where that is possible."""
        if not self.equal and all(not atom.kind for monomial in poly.terms for atom in monomial):
            return poly
        found = self._simple.get(poly)
        if found is None:
            found = poly
            for _ in range(8):
                new = self._cancel(found.rebuilt(self._atom))
                if new == found:
                    break
                found = new
            self._simple[poly] = found
        return found

    def _atom(self, atom: Atom) -> Poly | None:
        known = self.equal.get(atom)
        if known is not None:
            return known
        if not atom.kind:
            return None
        if atom in self.ranges:
            low, high = self.atom_range(atom)
            if low is not None and low == high:  # narrowed to one number
                return const(low)
        if atom.kind in OPAQUE:
            new = self.opaque(atom.kind, *[self._argument(argument) for argument in atom.args])
        else:
            args = [self.simplify(argument) for argument in atom.args]
            new = self.function(atom.kind, args[0], args[1])
        return None if new.terms == {(atom,): 1} else new

    def _argument(self, argument: Any) -> Any:
        return argument.rebuilt(self.simplify) if isinstance(argument, FloatExpr) else self.simplify(argument)

    def opaque(self, kind: str, *args: Any) -> Poly:
        """A function of `OPAQUE` kinds applied to simplified arguments."""
        if not any(argument.symbols() for argument in args):
            return const(FUNCTIONS[kind](*[argument.value({}) for argument in args]))
        return apply(kind, *args)

    def _cancel(self, poly: Poly) -> Poly:
        """a % b is a - b * (a // b), where that makes less of it; (a // b) * b is a where b divides a."""
        for monomial, value in poly.terms.items():
            if len(monomial) == 1 and monomial[0].kind == "Mod":
                a, b = monomial[0].args
                whole = poly - Poly({monomial: value}) + (a - b * apply("FloorDiv", a, b)).scaled(value)
                if len(whole.terms) < len(poly.terms):
                    return whole
        while len(poly.terms) > 1:
            less = _halved(poly)
            if less is poly:
                break
            poly = less
        if not any(value == ZERO for value in self.equal.values()):
            return poly
        for monomial, value in poly.terms.items():
            for atom in monomial:
                if atom.kind != "FloorDiv" or self._remainder(atom.args[0], atom.args[1]) != ZERO:
                    continue
                rest = list(monomial)
                rest.remove(atom)
                whole, left = divide(Poly({tuple(rest): value}), atom.args[1])
                if not left.terms:
                    return poly - Poly({monomial: value}) + whole * atom.args[0]
        return poly

    def _remainder(self, a: Poly, b: Poly) -> Poly | None:
        made = apply("Mod", a, b)
        return self.equal.get(next(iter(made.atoms())))

    def function(self, kind: str, a: Poly, b: Poly) -> Poly:
        """`kind` applied to simplified arguments; b is positive for FloorDiv and Mod."""
        if kind in ("FloorDiv", "Mod"):
            return self._division(kind == "Mod", a, b)
        low = kind == "Min"
        if self.proves(Relation(">=", b - a)):
            return a if low else b
        if self.proves(Relation(">=", a - b)):
            return b if low else a
        first, second = sorted((a, b), key=repr)
        return apply(kind, first, second)

    def _division(self, remainder: bool, a: Poly, b: Poly, taken: int = 0) -> Poly:
        quotient, rest = divide(a, b)
        value, divisor = rest.constant, b.constant
        if value is not None and divisor is not None:
            return const(value % divisor) if remainder else quotient + const(value // divisor)
        if divisor is not None:
            for monomial, factor in rest.terms.items():
                # (a + c * (x % m)) // d -> (a + c*x) // d - c*m/d * (x // m) where d divides c*m
                if len(monomial) == 1 and monomial[0].kind == "Mod":
                    x, m = monomial[0].args
                    times = m.constant
                    if times is not None and times * factor % divisor == 0:
                        inside = self._division(remainder, rest - Poly({monomial: factor}) + x.scaled(factor), b)
                        return inside if remainder else quotient + inside - self._division(False, x, m).scaled(times * factor // divisor)
        if self._is_nonnegative(rest) and self._lies_below(rest, b):
            return rest if remainder else quotient
        if divisor is None and taken < _MOST_TAKEN:  # a // b -> 1 + (a - b) // b where b <= a
            less = self.simplify(rest - b)
            if self._is_nonnegative(less):
                left = self._division(remainder, less, b, taken + 1)
                return left if remainder else quotient + ONE + left
        factor = Poly({**rest.terms}).content()
        common = _gcd(factor, b.content())
        if not remainder and rest.terms and common > 1:  # (g*a) // (g*b) -> a // b
            rest, b = _shrunk(rest, common), _shrunk(b, common)
            return quotient + self._division(False, rest, b)
        inner = next(iter(rest.atoms()), None) if len(rest.terms) == 1 and next(iter(rest.terms.values())) == 1 else None
        alone = inner is not None and rest.terms == {(inner,): 1}
        if alone and inner is not None and inner.kind == "FloorDiv" and not remainder:  # (a // b) // c -> a // (b*c)
            return quotient + self._division(False, inner.args[0], inner.args[1] * b)
        if not remainder and divisor is not None:
            joined = _joined(rest)
            if joined is not None:  # (a // m + r) // d -> (a + m*r) // (m*d)
                return quotient + self._division(False, joined[0], const(joined[1] * divisor))
            if rest.key[0][1] < 0:  # -a // d -> -((a + d - 1) // d)
                return quotient - self._division(False, const(divisor - 1) - rest, b)
        known = self._remainder(rest, b)
        if known is not None and remainder:
            return known
        made = apply("Mod" if remainder else "FloorDiv", rest, b)
        return made if remainder else quotient + made

    def _lies_below(self, a: Poly, b: Poly) -> bool:
        return self.proves(Relation(">=", b - a - const(1))) is True

    # --- bounds ---

    def lower(self, poly: Poly) -> float:
        low = self._low(poly)
        return float("-inf") if low is None else low

    def _is_nonnegative(self, poly: Poly) -> bool:
        """Certainly so. The examples are asked first, which costs little."""
        return not self.counterexamples.signs(poly)[0] and self.lower(poly) >= 0

    def bounds(self, poly: Poly) -> Range:
        """Numbers between which `poly` certainly lies; None where there is none."""
        value = poly.constant
        return (value, value) if value is not None else (self._low(poly), _negative(self._low(-poly)))

    def _low(self, poly: Poly) -> int | None:
        value = poly.constant
        if value is not None:
            return value
        if poly not in self._lower:  # which ends, as functions give way to their arguments
            self._lower[poly] = _best(max, self._least(poly), self._interval(poly)[0])
        return self._lower[poly]

    def _least(self, poly: Poly) -> int | None:
        """A lower bound, with functions replaced by what bounds them (c * (a // c) lies in [a - c + 1, a])."""
        low = self._shifted(poly)
        for monomial, value in poly.terms.items():
            if len(monomial) != 1 or not monomial[0].kind:
                continue
            if monomial[0].kind in OPAQUE:
                continue
            a, b = monomial[0].args
            rest = poly - Poly({monomial: value})
            if monomial[0].kind == "FloorDiv" and (divisor := b.constant) is not None and divisor > 0:
                bound = self._low(rest.scaled(divisor) + (a if value < 0 else a - const(divisor - 1)).scaled(value))
                low = _best(max, low, None if bound is None else -(-bound // divisor))
            elif monomial[0].kind in ("Max", "Min"):
                sides = [self._low(rest + side.scaled(value)) for side in (a, b)]
                if (monomial[0].kind == "Max") == (value > 0):  # as large as both
                    low = _best(max, low, _best(max, *sides))
                elif sides[0] is not None and sides[1] is not None:
                    low = _best(max, low, min(sides[0], sides[1]))
        return low

    def _shifted(self, poly: Poly) -> int | None:
        """A lower bound: with atom = low + t every coefficient but the constant's is non-negative."""
        degree = max(map(len, poly.terms), default=0)
        if any(value < 0 for monomial, value in poly.terms.items() if monomial and len(monomial) == degree):
            return None  # the shifts leave these as they are
        shifts: dict[Atom, Poly] = {}
        for atom in poly.atoms():
            low, _ = self.atom_range(atom)
            if low is None:
                return None
            shifts[atom] = of_atom(atom) + const(low)
        moved = poly.rebuilt(shifts.get)
        if all(value >= 0 for monomial, value in moved.terms.items() if monomial):
            return moved.terms.get((), 0)
        return None

    def _interval(self, poly: Poly) -> Range:
        low: int | None = 0
        high: int | None = 0
        for monomial, value in poly.terms.items():
            part: Range = (value, value)
            for atom in monomial:
                part = _times(part, self.atom_range(atom))
            low = None if low is None or part[0] is None else low + part[0]
            high = None if high is None or part[1] is None else high + part[1]
        return low, high

    def atom_range(self, atom: Atom) -> Range:
        """Numbers between which an atom lies."""
        if not atom.kind:
            return self.ranges.get(atom, (None, None))
        found = self._atom_ranges.get(atom)
        if found is None:
            found = self._atom_ranges[atom] = self._function_range(atom)
        return found

    def _function_range(self, atom: Atom) -> Range:
        own = self.ranges.get(atom, (None, None))
        if atom.kind in OPAQUE:
            found = self._opaque_range(atom)
            return _best(max, found[0], own[0]), _best(min, found[1], own[1])
        a, b = (self.bounds(argument) for argument in atom.args)
        if atom.kind == "Mod":
            low: int | None = 0
            high = None if b[1] is None else b[1] - 1
            if a[0] is not None and a[0] >= 0 and a[1] is not None:
                high = a[1] if high is None else min(high, a[1])
        elif atom.kind == "FloorDiv":
            low = high = None
            if a[0] is not None and b[0] is not None and b[0] > 0:
                low = a[0] // b[0] if a[0] < 0 else (a[0] // b[1] if b[1] is not None else 0)
            if a[1] is not None and b[0] is not None and b[0] > 0:
                high = a[1] // b[0] if a[1] >= 0 else (a[1] // b[1] if b[1] is not None else -1)
        elif atom.kind == "Min":
            low = None if a[0] is None or b[0] is None else min(a[0], b[0])
            high = _best(min, a[1], b[1])
        else:
            low = _best(max, a[0], b[0])
            high = None if a[1] is None or b[1] is None else max(a[1], b[1])
        return _best(max, low, own[0]), _best(min, high, own[1])

    def _opaque_range(self, atom: Atom) -> Range:
        if atom.kind in ("Floor", "Ceil", "Trunc", "Round"):
            low, high = atom.args[0].bounds(self.bounds)
            function = FUNCTIONS[atom.kind]
            return (function(low) if math.isfinite(low) else None), (function(high) if math.isfinite(high) else None)
        bounds = [self.bounds(argument) for argument in atom.args]
        if atom.kind in ("BitLength", "Isqrt", "Gcd"):
            return 0, None
        nonnegative = all(low is not None and low >= 0 for low, _ in bounds)
        return (0 if nonnegative else None), (bounds[0][1] if nonnegative and atom.kind == "And" else None)

    # --- deciding ---

    def proves(self, statement: Statement) -> bool | None:
        """True or False when the statement certainly holds or fails, None when neither is known."""
        if isinstance(statement, Comparison):
            return self._proves_comparison(statement)
        if isinstance(statement, Logic):
            values = [self.proves(part) for part in statement.parts]
            decisive = statement.kind == "or"
            if decisive in values:
                return decisive
            return None if None in values else not decisive
        if statement.op == "!=":
            value = self.proves(statement.negated())
            return None if value is None else not value
        poly = self.simplify(statement.poly)
        if statement.op == ">=":
            below, above = self.counterexamples.signs(poly)
            if not below and self._follows(poly):
                return True
            return False if not above and self._follows(-poly - const(1)) else None
        if not poly.terms:
            return True
        if self.counterexamples.is_zero(poly):
            return None
        if self.lower(poly) > 0 or self.lower(-poly) > 0:
            return False
        if poly in self.nonzero or -poly in self.nonzero:
            return False
        one = const(1)
        for fact in self.nonnegative:
            for side in (poly, -poly):
                if self.counterexamples.never_above(fact, side) and self.lower(side - fact - one) >= 0:
                    return False
        common = poly - const(poly.terms.get((), 0))
        factor = common.content()
        return False if factor > 1 and poly.terms.get((), 0) % factor else None

    def _follows(self, poly: Poly) -> bool:
        """poly >= 0, from ranges or from one fact."""
        if self.lower(poly) >= 0:
            return True
        return any(self.counterexamples.never_above(fact, poly) and self.lower(poly - fact) >= 0 for fact in self.nonnegative)

    def _proves_comparison(self, statement: Comparison) -> bool | None:
        known = self.compared.get((statement.op, statement.args))
        if known is not None:
            return known is statement.truth
        low, high = statement.args[0].bounds(self.bounds)
        if statement.op == "finite":
            return statement.truth if math.isfinite(low) and math.isfinite(high) else None
        return None

    def state(self, statement: Statement, unbacked: frozenset[Atom] = frozenset()) -> None:
        """From now on the statement holds. unbacked: symbols whose numbers are known only at run time; equations are solved for these."""
        self.counterexamples.stated(statement)
        if isinstance(statement, Comparison):
            self.compared[(statement.op, statement.args)] = statement.truth
            self._changed()
            return
        if isinstance(statement, Logic):
            if statement.kind == "and":
                for part in statement.parts:
                    self.state(part, unbacked)
            return
        poly = self.simplify(statement.poly)
        if statement.op == "!=":
            self.nonzero.add(poly)
            self._trim_ends(poly)
        elif statement.op == ">=":
            if not self._narrow(poly):
                self.nonnegative.append(poly)
        else:
            self._equate(poly, unbacked)
        self._changed()

    def _trim_ends(self, poly: Poly) -> None:
        for atom, value in _alone(poly):
            low, high = self.atom_range(atom)
            if low == value:
                self.ranges[atom] = (value + 1, high)
            elif high == value:
                self.ranges[atom] = (low, value - 1)

    def _narrow(self, poly: Poly) -> bool:
        """Take `c*atom + k >= 0` into the atom's range."""
        offset = poly.terms.get((), 0)
        rest = poly - const(offset)
        if len(rest.terms) != 1:
            return False
        ((monomial, factor),) = rest.terms.items()
        if len(monomial) != 1:
            return False
        low, high = self.ranges.get(monomial[0], (None, None))
        if factor > 0:
            self.ranges[monomial[0]] = (_best(max, low, -(offset // factor)), high)
        else:
            self.ranges[monomial[0]] = (low, _best(min, high, offset // -factor))
        return True

    def _equate(self, poly: Poly, unbacked: frozenset[Atom]) -> None:
        """Take `poly == 0` in: an atom that stands alone is replaced from now on.

        An unbacked one first, since others must not be made of it; then functions, then the youngest with coefficient 1 or -1.
        """
        alone = {monomial[0]: value for monomial, value in poly.terms.items() if len(monomial) == 1}
        candidates = [atom for atom, value in alone.items() if abs(value) == 1 or atom in unbacked]
        candidates.sort(key=lambda atom: (atom in unbacked, bool(atom.kind), atom.rank), reverse=True)
        for atom in candidates:
            factor = alone[atom]
            rest = poly - Poly({(atom,): factor})
            if rest.contains(atom):  # replacing it would go round
                continue
            sign = 1 if factor > 0 else -1
            value = self.function("FloorDiv", rest.scaled(-sign), const(abs(factor)))  # the equation says that it divides
            low, high = self.atom_range(atom)
            self.equal[atom] = value
            for known, old in list(self.equal.items()):
                if known is not atom:
                    self.equal[known] = old.rebuilt({atom: value}.get)
            single = next(iter(value.atoms()), None)
            if single is not None and value.terms == {(single,): 1}:
                self.ranges[single] = (
                    _best(max, low, self.atom_range(single)[0]),
                    _best(min, high, self.atom_range(single)[1]),
                )
            return
        self.nonnegative += [poly, -poly]


def _alone(poly: Poly) -> list[tuple[Atom, int]]:
    """[(atom, value)] when poly == 0 means atom == value."""
    offset = poly.terms.get((), 0)
    rest = poly - const(offset)
    if len(rest.terms) != 1:
        return []
    ((monomial, factor),) = rest.terms.items()
    return [(monomial[0], -offset // factor)] if len(monomial) == 1 and offset % factor == 0 else []


def _joined(poly: Poly) -> tuple[Poly, int] | None:
    """(a, m) where `poly`, which has one quotient by a number and other terms, is a // m."""
    quotients = [
        (monomial, value, monomial[0].args[1].constant)
        for monomial, value in poly.terms.items()
        if len(monomial) == 1 and monomial[0].kind == "FloorDiv" and abs(value) == 1
    ]
    if len(quotients) != 1 or len(poly.terms) == 1:
        return None
    ((monomial, value, divisor),) = quotients
    if divisor is None or divisor <= 0:
        return None
    inside, rest = monomial[0].args[0], poly - Poly({monomial: value})
    if value < 0:  # -(a // m) -> (m - 1 - a) // m
        inside = const(divisor - 1) - inside
    return inside + rest.scaled(divisor), divisor


def _halved(poly: Poly) -> Poly:
    """a - a // 2 is (a + 1) // 2, a - (a + 1) // 2 is a // 2, the sum of the two is a, and a + a % 2 is 2 * ((a + 1) // 2): less terms."""
    for monomial, value in poly.terms.items():
        for place, atom in enumerate(monomial):
            if atom.kind not in ("FloorDiv", "Mod") or atom.args[1] != _TWO:
                continue
            others = Poly({monomial[:place] + monomial[place + 1 :]: abs(value)})
            inside, sign = atom.args[0], 1 if value > 0 else -1
            if atom.kind == "FloorDiv":
                pair = (others * apply("FloorDiv", inside + ONE, _TWO)).scaled(sign)
                if all(poly.terms.get(part) == number for part, number in pair.terms.items()):
                    return poly - Poly({monomial: value}) - pair + (others * inside).scaled(sign)
            choices = [(inside, inside + ONE)] if atom.kind == "Mod" else [(inside, inside + ONE), (inside - ONE, inside - ONE)]
            for whole, half in choices:
                if whole.constant is not None:
                    continue
                same_sign = atom.kind == "Mod"  # a + a % 2; a - a // 2
                change = (others * whole).scaled(sign if same_sign else -sign)
                if not all(poly.terms.get(part) == number for part, number in change.terms.items()):
                    continue
                made = apply("FloorDiv", half, _TWO).scaled(2 * sign if same_sign else -sign)
                return poly - Poly({monomial: value}) - change + others * made
    return poly


_TWO = const(2)


def _gcd(a: int, b: int) -> int:
    while b:
        a, b = b, a % b
    return a


def _shrunk(poly: Poly, factor: int) -> Poly:
    return Poly({monomial: value // factor for monomial, value in poly.terms.items()})


def _best(choose: Any, a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else choose(a, b)


def _negative(value: int | None) -> int | None:
    return None if value is None else -value


def _times(a: Range, b: Range) -> Range:
    if None not in a and None not in b:
        corners = [x * y for x in a for y in b]  # type: ignore[operator]  # None was excluded
        return min(corners), max(corners)
    for one, other in ((a, b), (b, a)):
        if one[0] is not None and one[0] == one[1]:
            if one[0] == 0:
                return 0, 0
            scaled = [None if x is None else x * one[0] for x in other]
            return (scaled[0], scaled[1]) if one[0] > 0 else (scaled[1], scaled[0])
    if all(low is not None and low >= 0 for low in (a[0], b[0])):
        return a[0] * b[0], None  # type: ignore[operator]  # None was excluded
    return None, None
