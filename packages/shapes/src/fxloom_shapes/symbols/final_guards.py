"""The guards that a finished trace leaves, in their final form.

In: the guards in the order in which the trace asked, and the solver that knows what follows from them. Out: an equal condition without
those that others and the ranges of symbols imply.
"""

from __future__ import annotations

from fxloom_shapes.expressions.statements import Relation, Statement, relation
from fxloom_shapes.solver.constraints import ConstraintSolver
from fxloom_shapes.symbols.symbol import SizeGuard


def final_guards(guards: dict[Statement, SizeGuard], solver: ConstraintSolver) -> list[SizeGuard]:
    """The guards in their final form, without those that others imply. Ranges of symbols are not in it."""
    result: dict[Statement, SizeGuard] = {}
    judge = ConstraintSolver()
    judge.ranges = {atom: bounds for atom, bounds in solver.ranges.items() if not atom.kind}
    for atom, value in solver.equal.items():
        judge.equal[atom] = value
    for guard in reversed(guards.values()):
        statement = guard.statement
        if isinstance(statement, Relation):
            equal = statement.op == "=="
            if not equal:
                simple = relation(statement.op, judge.simplify(statement.poly))
                if isinstance(simple, bool) or judge.proves(simple) is True:
                    continue
                judge.nonnegative += [simple.poly] if simple.op == ">=" else []
                if simple.op == "!=":
                    judge.nonzero.add(simple.poly)
                statement = simple
        elif judge.proves(statement) is True:
            continue
        result.setdefault(statement, SizeGuard(statement, guard.site))
    return list(reversed(result.values()))
