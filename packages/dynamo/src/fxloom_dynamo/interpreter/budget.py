"""How many instructions capture may evaluate without meeting an operator; code that takes more is left to the interpreter.

In: the code that runs, at every 1,024th instruction (so that the loop pays one decrement), and how many operators were recorded
by then. Out: whether the limit is passed; code that took a tenth of the samples or more counts as long from then on, in all
regions. Evaluating is some hundred times slower than running, and Python that computes for long is rarely worth it: a tokenizer,
a search, a simulation. A break hands it over.
"""

from __future__ import annotations

import collections
import types
from collections.abc import Callable

from fxloom_dynamo.bytecode.continuations import origin_of

#: instructions between two samples
SAMPLE = 1024
#: part of the samples from which on code counts as what took the time
_SHARE = 0.1

#: code that took too long, by id (comparing code compares all its constants); kept until `reset`
_LONG: dict[int, types.CodeType] = {}


def is_long(code: types.CodeType) -> bool:
    """True for code that took too long before, in any region."""
    return id(code) in _LONG


def reset() -> None:
    """Give all code another chance."""
    _LONG.clear()


class InstructionBudget:
    """What one attempt has spent since it last met an operator. operators: how many it has recorded by now."""

    def __init__(self, limit: int, operators: Callable[[], int]) -> None:
        self.limit = limit
        self.operators = operators
        self._seen = 0
        self._samples: collections.Counter[types.CodeType] = collections.Counter()

    def sample(self, code: types.CodeType) -> bool:
        """Note that `code` runs; True when the limit is passed. What took the time is marked long then."""
        operators = self.operators()
        if operators != self._seen:
            self._seen = operators
            self._samples.clear()
        self._samples[origin_of(code)] += 1
        total = self._samples.total()
        if total * SAMPLE <= self.limit:
            return False
        for code, count in self._samples.items():
            if count >= _SHARE * total:
                _LONG[id(code)] = code
        return True
