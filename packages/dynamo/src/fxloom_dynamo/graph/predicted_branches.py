"""Branches that a graph takes for granted, and the check of them when it has run.

In: a compiled graph whose last output is the truth of its predictions (`semantics.predictions`), and its random generators. Out:
a callable that gives the truth first, as a bool. Invariant: where it is False, the random generators are as they were before the
graph ran.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fxloom_dynamo.graph.random_state import Generator

if TYPE_CHECKING:
    from fxloom_interfaces.errors import Site


@dataclass(frozen=True, slots=True)
class Prediction:
    """A branch that was taken for granted. step: of the captured frame, for a break there."""

    step: int
    site: Site | None


def checked(compiled: Callable[..., Any], generators: Sequence[Generator]) -> Callable[..., Any]:
    """`compiled`, whose last output is the truth of the predictions, with that first, as a bool.

    Where it is False the random generators are as they were before.
    """

    def run(*inputs: Any) -> tuple[Any, ...]:
        states = [generator.get_state() for generator in generators]
        *outputs, truth = compiled(*inputs)
        if truth:
            return (True, *outputs)
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
        return (False, *outputs)

    return run
