"""Copies that may be views: where it would show, the call that made one is refused.

`reshape`, `contiguous` and their kind give a view where they can, and copy where they can't. Where that depends on numbers
that only running the program tells, the trace has taken it for a copy (`GuessedCopy` on the memory). In: the raw log of the
forward part, the program's inputs and outputs. Out: nothing, or GraphRejected at the call, which then runs by itself.
Invariant: what is left in the graph computes the same with a view as with a copy. It shows when one of the two is written
while the other is still in use, when both can be seen from outside, and in the strides of a result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from fxloom_aot.log import values_of
from fxloom_aot.recorder import Entry
from fxloom_aot.views import is_dense
from fxloom_interfaces.errors import GraphBreak, GraphRejected
from fxloom_shapes import FakeStorage, FakeTensor, SymbolEnv
from fxloom_shapes.fake.operators import facts_of
from fxloom_shapes.fake.tensor import GuessedCopy


@dataclass(frozen=True, slots=True)
class _Guess:
    """A copy made on a guess. place: in the log; dense: the original had no gaps, so that a view has the strides of a copy."""

    place: int
    entry: Entry
    copy: FakeStorage
    found: GuessedCopy
    dense: bool


@dataclass(slots=True)
class _Family:
    """Memories that may be one."""

    members: set[int]
    guesses: list[_Guess] = field(default_factory=list)


def refuse_guessed_copies(
    entries: Sequence[Entry], inputs: Sequence[FakeTensor], outputs: Sequence[FakeTensor], env: SymbolEnv
) -> None:
    """See the module's docstring."""
    guesses = list(_guesses(entries))
    if not guesses:
        return
    given = {fake.storage_token.ident for fake in inputs}
    shown = {fake.storage_token.ident for fake in outputs}
    last_use, writes = _uses(entries)
    last_use |= dict.fromkeys(given | shown, len(entries))
    for family in _families(guesses):
        results = shown & family.members
        if results and len(family.members & (given | shown)) > 1:
            _settle(family.guesses, env, "a result may share the memory of an input or of another result")
        odd = [guess for guess in family.guesses if guess.copy.ident in results and not guess.dense]
        _settle(odd, env, "the strides of a result depend on it")
        for place, written in writes:
            if written in family.members and any(last_use[other] > place for other in family.members if other != written):
                _settle([guess for guess in family.guesses if guess.place < place], env, "one of both is written")


def _guesses(entries: Sequence[Entry]) -> Iterator[_Guess]:
    known: set[int] = set()
    dense: dict[int, bool] = {}
    for place, entry in enumerate(entries):
        for fake in values_of([entry.out]):
            copy = fake.storage_token
            found = copy.guessed_copy
            if found is None or copy.ident in known:
                continue
            known.add(copy.ident)
            source = entry.args[0]
            # `_unsafe_view` of a copy: what was copied is what counts
            whole = is_dense(source.desc) if source.storage_token is found.origin else dense[source.storage_token.ident]
            dense[copy.ident] = whole
            yield _Guess(place, entry, copy, found, whole)


def _uses(entries: Sequence[Entry]) -> tuple[dict[int, int], list[tuple[int, int]]]:
    """(by memory: the place in the log that uses it last, [(place, memory that is written there)])."""
    last: dict[int, int] = {}
    writes: list[tuple[int, int]] = []
    for place, entry in enumerate(entries):
        for fake in values_of([entry.args, entry.kwargs, entry.out]):
            last[fake.storage_token.ident] = place
        for position, name, _ in facts_of(entry.op).writes:
            target = entry.args[position] if position < len(entry.args) else entry.kwargs.get(name)
            writes += [(place, fake.storage_token.ident) for fake in values_of([target])]
    return last, writes


def _families(guesses: Sequence[_Guess]) -> list[_Family]:
    families: list[_Family] = []
    for guess in guesses:
        pair = {guess.copy.ident, guess.found.origin.ident}
        joined = [family for family in families if family.members & pair]
        families = [family for family in families if not family.members & pair]
        merged = _Family(pair.union(*(family.members for family in joined)))
        merged.guesses = sorted([guess, *(g for family in joined for g in family.guesses)], key=lambda g: g.place)
        families.append(merged)
    return families


def _settle(guesses: Sequence[_Guess], env: SymbolEnv, why: str) -> None:
    for guess in guesses:
        node = guess.entry.node
        assert node is not None  # of the forward part
        reason = f"whether it copies or gives a view is known only when the program runs, and {why}"
        try:
            if all(map(env.settle, guess.found.guesses)):
                continue
        except GraphBreak as error:
            reason = f"{reason} ({error.details})"
        raise GraphRejected(node, reason)  # by itself the call serves all sizes
