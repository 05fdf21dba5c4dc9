"""The symbol environment of one compilation: symbols with their sources and hints, and what a trace decided about them.

In: sizes (and integers, floats) of the call that is traced, with where each came from. Out: `torch.SymInt`s over nodes of
our own, and, when the trace is done, the guards that say for which other sizes it would have been the same.
Invariant: a question answered from a hint leaves a guard; one that ranges and earlier guards answer leaves none. Equal
expressions are one object, so fakes can be compared and cached by identity of their sizes.

Here are symbols, their numbers, and deciding; `assumptions` has what is answered without a hint, `specialization` which numbers are
fixed, `final_guards` what is left to check at calls.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from fxloom_interfaces.errors import InternalError, Site
from fxloom_interfaces.sources import Source
from fxloom_shapes.errors import ConstraintViolated, DataDependent, Specialized
from fxloom_shapes.expressions.floats import FloatExpr
from fxloom_shapes.expressions.polynomials import FUNCTIONS, SIGNED, Atom, Poly, const, of_atom
from fxloom_shapes.expressions.statements import Comparison, Relation, Statement, relation, symbols_of
from fxloom_shapes.solver import generalization
from fxloom_shapes.solver.constraints import ConstraintSolver
from fxloom_shapes.symbols import assumptions, specialization
from fxloom_shapes.symbols.final_guards import final_guards
from fxloom_shapes.symbols.float_nodes import FloatNode
from fxloom_shapes.symbols.messages import in_program_terms
from fxloom_shapes.symbols.nodes import IntNode
from fxloom_shapes.symbols.options import EnvOptions, QueryOrigin, Tracer
from fxloom_shapes.symbols.symbol import LARGEST, SPECIAL, SizeGuard, Symbol

_DEFAULTS = EnvOptions()


class _ByLabel(NamedTuple):
    """Dimensions of one name have one size, and one symbol."""

    label: str


class _ByNumber(NamedTuple):
    """Equal numbers share a symbol (duck sizing), if what else is known of them is equal as well.

    duck_key: None; of a dimension that was seen to change the sizes seen there, since those that changed alike go together;
    of one that the user asked to be dynamic its place, since it is equal to another by chance only.
    """

    hint: int
    duck_key: Any


class _FloatAt(NamedTuple):
    """Floats share a symbol where they come from one place."""

    hint: float
    source: Source | None


class SymbolEnv:
    """See the module's docstring.

    `options` never change. `tracer` is the layer that traces now (`begin_retrace` passes the environment on), and `queried_by` says where
    queries come from. What the trace relied on is in `guards`, `deferred` (checked when the graph runs), `offsets` and
    `pinned_floats`; once the environment is `frozen`, relying on more is an InternalError. `runtime_scalars`, `plans`, `interned`,
    `descriptors` and `constants` are caches of other modules: their entries hold in this environment only.
    """

    def __init__(self, options: EnvOptions = _DEFAULTS) -> None:
        self.options = options
        self.tracer = Tracer()
        self.query_origin = QueryOrigin.PROGRAM
        self._hints: dict[str, int] = {}
        self.solver = ConstraintSolver(self._hints)
        self.symbols: dict[str, Symbol] = {}
        #: there are unbacked symbols, whose numbers are known only at run time
        self.has_unbacked = False
        #: statements about unbacked symbols that were answered by default since the program's last call (`fake.AmbiguousCopy`)
        self.assumptions: list[tuple[Statement, bool]] = []

        self.guards: dict[Statement, SizeGuard] = {}
        #: statements about unbacked symbols that the program asserted; checked when the graph runs
        self.deferred: dict[Statement, SizeGuard] = {}
        #: storage offsets of inputs that the trace relied on
        self.offsets: dict[Source, tuple[int, Site | None]] = {}
        #: float symbols whose very value the trace relied on
        self.pinned_floats: dict[str, SizeGuard] = {}
        self.frozen = False
        #: a captured program is traced once more: a number that is read out of a tensor is one that capture left in the graph
        self.retracing = False

        #: symbols of numbers and counts that were read from tensors before, by what was read
        self.runtime_scalars: dict[Any, Any] = {}
        #: plans of operators by key (`propagate`)
        self.plans: dict[Any, Any] = {}
        #: descriptors by key
        self.interned: dict[Any, Any] = {}
        #: of real tensors whose fakes have symbolic sizes, by id
        self.descriptors: dict[int, tuple[weakref.ref[torch.Tensor], Any]] = {}
        #: nodes of plain ints
        self.constants: dict[int, IntNode] = {}

        self._keeps_floats_symbolic = False
        #: whether an operator wanted a plain float within `keep_floats_symbolic`
        self.float_value_wanted = False

        self._shared: dict[_ByLabel | _ByNumber | _FloatAt, Symbol] = {}
        self._numbers: dict[Poly, torch.SymInt | int] = {}

    # --- origins of queries ---

    @contextmanager
    def queried_by(self, origin: QueryOrigin) -> Iterator[None]:
        """Within the block, queries count as coming from `origin`."""
        before, self.query_origin = self.query_origin, origin
        try:
            yield
        finally:
            self.query_origin = before

    @contextmanager
    def keep_floats_symbolic(self) -> Iterator[None]:
        """Within the block nothing gets the plain number of a symbolic float: asking raises, and sets `float_value_wanted`."""
        before, self._keeps_floats_symbolic, self.float_value_wanted = self._keeps_floats_symbolic, True, False
        try:
            yield
        finally:
            self._keeps_floats_symbolic = before

    def refuse_float_value(self, expr: FloatExpr) -> None:
        """Raise where the plain number of a symbolic float is wanted within `keep_floats_symbolic`."""
        if self._keeps_floats_symbolic:
            self.float_value_wanted = True
            raise Specialized(str(expr), "one that changes")

    @property
    def in_operator(self) -> bool:
        """True while queries come from an operator or from torch, not from the program."""
        return self.query_origin in (QueryOrigin.OPERATOR, QueryOrigin.MEMORY)

    def begin_retrace(self, tracer: Tracer) -> None:
        """The captured program is traced once more, by `tracer`: its own branches are decided, further queries are operators'."""
        self.tracer, self.query_origin, self.retracing = tracer, QueryOrigin.OPERATOR, True

    # --- symbols ---

    def create(
        self,
        hint: int,
        source: Source | None = None,
        *,
        low: int | None = None,
        high: int | None = None,
        pinned: bool = False,
        label: str = "",
        duck_key: Any = None,
    ) -> int | torch.SymInt:
        """The symbolic number for `hint`; `hint` itself where it is specialized.

        duck_key: what besides the number has to be equal for two to share a symbol (`_ByNumber`).
        """
        if self.options.specialize and hint in SPECIAL:
            if pinned:
                where = source.name if source is not None else label
                raise ConstraintViolated(
                    where,
                    f"{where} == {hint}: 0 and 1 are compiled for apart",
                    self.tracer.site(),
                    "Mark it at calls with a larger one only, or use maybe_mark_dynamic; mark_unbacked serves 0 and 1 alike.",
                )
            return hint
        self.refuse_outside(hint, low, high, source.name if source is not None else label)
        key = _ByLabel(label) if label else _ByNumber(hint, duck_key)
        shared = self._shared.get(key) if self.options.duck or label else None
        if shared is None:
            shared = self._new("s" if hint >= 0 else SIGNED, hint)
            shared.promised = (low, high)
            self.solver.ranges[shared.atom] = self._first_range(hint, low, high)
            if self.options.duck or label:
                self._shared[key] = shared
        elif shared.hint != hint:
            where = source.name if source is not None else label
            raise ConstraintViolated(
                where,
                f"{where} == {hint}, though {label!r} is {shared.hint} elsewhere",
                self.tracer.site(),
                "Dimensions of one name have one size: give them different names.",
            )
        if source is not None and source not in shared.sources:
            shared.sources.append(source)
        shared.pinned = shared.pinned or pinned
        shared.label = shared.label or label
        return self.number(of_atom(shared.atom))

    def refuse_outside(self, hint: int, low: int | None, high: int | None, where: str) -> None:
        """Raise where a number is not in the range that the user promised for it."""
        if low is not None and hint < low or high is not None and hint > high:
            ends = f"[{'-inf' if low is None else low}, {'inf' if high is None else high}]"
            raise ConstraintViolated(
                where, f"{where} == {hint}, out of the promised range {ends}", self.tracer.site(), "Promise a range that has it."
            )

    def _first_range(self, hint: int, low: int | None, high: int | None) -> tuple[int | None, int | None]:
        least = 2 if self.options.specialize else 0
        if hint >= least:
            return (least if low is None else max(low, least)), (LARGEST if high is None else high)
        return low, (-1 if high is None else high)

    def create_unbacked(self, low: int | None = None, high: int | None = None, source: Source | None = None) -> torch.SymInt:
        """A new unbacked symbol. source: the input dimension that it is (`mark_unbacked`); None for a number that the program computes."""
        made = self._new("u" if low is not None and low >= 0 else SIGNED, None)
        self.solver.ranges[made.atom] = made.promised = (low, high)
        made.sources += [] if source is None else [source]
        result = self.number(of_atom(made.atom))
        assert not isinstance(result, int)
        return result

    def create_float_unbacked(self) -> torch.SymFloat:
        """A new unbacked float symbol."""
        made = self._new("z", None)
        made.is_float = True
        return torch.SymFloat(self.float_node(FloatExpr("symbol", (made.atom,))))

    def create_float(self, hint: float, source: Source | None = None, *, pinned: bool = False) -> torch.SymFloat:
        """The symbolic number for a Python float."""
        key = _FloatAt(hint, source)
        made = self._shared.get(key)
        if made is None:
            made = self._shared[key] = self._new("f", hint)
            made.is_float = True
        if source is not None and source not in made.sources:
            made.sources.append(source)
        made.pinned = made.pinned or pinned
        return torch.SymFloat(self.float_node(FloatExpr("symbol", (made.atom,))))

    def _new(self, prefix: str, hint: int | float | None) -> Symbol:
        count = sum(1 for name in self.symbols if name.startswith(prefix))
        atom = Atom("", (), f"{prefix}{count}", len(self.symbols))
        made = self.symbols[atom.text] = Symbol(atom, hint)
        self.tracer.on_symbol()
        if hint is None:
            self.has_unbacked = True
            made.computed_by = self.tracer.expression()
        else:
            self._hints[atom.text] = hint  # type: ignore[assignment]  # floats are read by their own nodes
        return made

    # --- numbers ---

    def number(self, poly: Poly) -> int | torch.SymInt:
        """A plain int for a constant, else the one SymInt of this (simplified) polynomial."""
        poly = self.solver.simplify(poly)
        found = self._numbers.get(poly)
        if found is None:
            value = poly.constant
            found = self._numbers[poly] = torch.SymInt(IntNode(self, poly)) if value is None else value
        return found

    def node(self, poly: Poly) -> IntNode:
        """The node of a polynomial, constant or not."""
        found = self.number(poly)
        if not isinstance(found, int):
            return found.node
        made = self.constants.get(found)
        if made is None:
            made = self.constants[found] = IntNode(self, const(found))
        return made

    def float_node(self, expr: FloatExpr) -> FloatNode:
        """The node of a float expression; `float_arithmetic.computed` is where arithmetic that may raise is checked."""
        return FloatNode(self, expr)

    def hint(self, poly: Poly) -> int | None:
        """The number that `poly` is in the traced call; None when an unbacked symbol is in it."""
        try:
            return poly.value(self._hints)
        except KeyError:
            return None

    @property
    def hints(self) -> Mapping[str, Any]:
        return self._hints

    # --- queries ---

    def decide(self, statement: Statement | bool, *, assume: bool = True) -> bool:
        """The truth of a statement: proven, or that of the traced call, which leaves a guard.

        assume: where unbacked symbols are in it, an operator's assumption will do (`assumptions`).
        """
        if isinstance(statement, bool):
            return statement
        known = self.solver.proves(statement)
        if known is not None:
            return known
        try:
            truth = statement.holds(self._hints)
        except KeyError:
            assumed = assumptions.assumed_truth(self, statement) if assume else None
            if assumed is not None:
                return assumed
            raise DataDependent(
                "size",
                f"{in_program_terms(self, statement)} is asked of a number known only at run time; torch._check it first",
                assumptions.violated(self, statement),
            ) from None
        self.guard(statement if truth else statement.negated())
        return truth

    def proven(self, statement: Statement | bool) -> bool | None:
        """True or False where it is certain, None else. Leaves no guard."""
        return statement if isinstance(statement, bool) else self.solver.proves(statement)

    def decide_or(self, statement: Statement | bool, default: bool) -> bool:
        """As `decide`; `default` where the answer depends on an unbacked symbol, or makes no difference but to memory."""
        if self.query_origin is QueryOrigin.MEMORY:
            known = self.proven(statement)
            return default if known is None else known
        try:
            return self.decide(statement, assume=False)
        except DataDependent:
            assert not isinstance(statement, bool)
            self.assumptions.append((statement, default))
            return default

    def settle(self, assumption: tuple[Statement, bool]) -> bool:
        """True where a default answer is proven, or is assumed and checked at run time; DataDependent where neither is possible."""
        statement, answer = assumption
        return self.decide(statement, assume=self.options.one_graph) is answer

    def expect(self, statement: Statement | bool, message: str = "", error: str = "RuntimeError", numbers: tuple[Any, ...] = ()) -> bool:
        """The program asserts it: a guard, or a check at run time where unbacked symbols are in it, which raises as in `SizeGuard`."""
        if isinstance(statement, bool):
            return statement
        known = self.solver.proves(statement)
        if known is not None:
            return known
        if any(self.symbols[atom.text].hint is None for atom in symbols_of(statement)):
            if self.query_origin is QueryOrigin.MEMORY:
                return True
            unknown = assumptions.unknown_ranges(self, symbols_of(statement))
            usual = generalization.truths_alike(statement, unknown, self._hints) if self.in_operator else set()
            if usual == {True} and generalization.is_about_strides(statement):
                return True  # the check that a tensor fits into its memory; an empty tensor need not
            if usual == {False} and generalization.is_about_leading_part(statement):
                raise DataDependent("size", f"an operator expects {statement}, which holds of sizes 0 and 1 only")
            assumptions.assume(self, statement, "", message, error, numbers)
            return True
        return self.decide(statement)

    def evaluate_sym_node(self, node: Any, size_oblivious: bool = False, fallback_value: bool | None = None) -> Any:
        """The entry point that torch's Python helpers (`guard_or_false` and the like) call on an environment."""
        if isinstance(node.expr, bool):
            return node.expr
        statement = getattr(node, "statement", None)
        if statement is None:
            return node.guard_int("", 0) if node.is_int() else node.guard_float("", 0)
        return self.decide(statement) if fallback_value is None else self.decide_or(statement, fallback_value)

    def guard(self, statement: Statement) -> None:
        """The trace holds only where the statement does."""
        if self.frozen:
            raise InternalError("shapes", f"{statement} is asked after the guards were taken")
        site = self.tracer.site()
        self.guards.setdefault(statement, SizeGuard(statement, site))
        self.solver.state(statement)
        specialization.refuse_specialization(self, statement, site)

    def specialize_number(self, poly: Poly) -> int:
        """The number as a plain int, guarded to be what it is now."""
        poly = self.solver.simplify(poly)
        value = poly.constant
        if value is not None:
            return value
        value = self.hint(poly)
        if value is None:
            assumed = assumptions.assumed_number(self, poly)
            if assumed is not None:
                return assumed
            violated = assumptions.violated(self, Relation("==", poly))
            raise DataDependent("size", f"{poly} is known only at run time", violated)
        statement = relation("==", poly - const(value))
        if self.options.compiled_values:
            symbols = [self.symbols[atom.text] for atom in poly.symbols()]
            if len(symbols) > 1 or isinstance(statement, bool) or specialization.has_one_value(self, symbols[0], statement):
                specialization.refuse_respecialization(self, symbols)
        self.decide(statement)
        return value

    def pin_floats(self, expr: FloatExpr) -> None:
        """The trace holds only for the present values of the symbols in `expr`."""
        self.refuse_float_value(expr)
        for atom in expr.symbols():
            symbol = self.symbols[atom.text]
            if symbol.is_float:
                specialization.refuse_respecialization(self, [symbol])
                if symbol.pinned:
                    raise ConstraintViolated(symbol.sources[0].name, f"{symbol.sources[0].name} == {symbol.hint}", self.tracer.site())
                self.pinned_floats[atom.text] = SizeGuard(Relation("==", const(0)), self.tracer.site())
            elif symbol.hint is not None:
                self.specialize_number(of_atom(symbol.atom))

    def rely_on_offset(self, source: Source, offset: int) -> None:
        """The trace holds only where the tensor at `source` begins at `offset` in its storage."""
        known = self.offsets.get(source)
        if known is None:
            if self.frozen:
                raise InternalError("shapes", f"the offset of {source.name} is relied on after the guards were taken")
            self.offsets[source] = (offset, self.tracer.site())

    def expect_finite(self, expr: FloatExpr) -> None:
        """Guard that the float is finite; raise what Python raises where it is not in this call."""
        try:
            value = expr.value(self._hints)
        except KeyError:
            return  # known only at run time, which raises then
        except (ArithmeticError, ValueError):
            self.pin_floats(expr)
            raise
        if isinstance(value, complex):
            raise DataDependent("float", f"{expr} is a complex number here")
        if math.isfinite(value):
            self.decide(Comparison("finite", (expr,)))
        else:
            self.pin_floats(expr)

    def is_finite(self, expr: FloatExpr) -> bool:
        return self.decide(Comparison("finite", (expr,)))

    def opaque_node(self, kind: str, *args: Poly | FloatExpr) -> IntNode:
        """The node of an opaque function (`OPAQUE`), whose result has to fit into 64 bits."""
        made = self.solver.opaque(kind, *args)
        if made.constant is None and kind == "Power":
            value = self.hint(made)
            if value is not None and abs(value) > LARGEST:
                return self.node(const(FUNCTIONS[kind](*[self.specialize_number(part) for part in args])))  # type: ignore[arg-type]
            self.decide(relation(">=", const(LARGEST) - made))
        return self.node(made)

    # --- results ---

    def size_guards(self) -> list[SizeGuard]:
        """The guards in their final form, without those that others imply. Ranges of symbols are not in it."""
        return final_guards(self.guards, self.solver)

    def specialized_sources(self) -> dict[str, int | float | None]:
        """The numbers that the trace was specialized to, by the names of their sources."""
        return specialization.specialized_sources(self)

    def range_of(self, symbol: Symbol) -> tuple[int | None, int | None]:
        """The range that a symbol's number must lie in for the trace to hold."""
        return self.solver.ranges.get(symbol.atom, (None, None))

    def symbols_in(self, values: Sequence[Any]) -> dict[str, Symbol]:
        """Symbols in numbers, by name, in order of appearance."""
        found: dict[str, Symbol] = {}
        for value in values:
            poly = getattr(getattr(value, "node", None), "poly", None)
            if poly is not None:
                for atom in self.solver.simplify(poly).symbols():
                    found[atom.text] = self.symbols[atom.text]
        return found
