"""Refuse calls whose result may or may not alias their argument, where the program could tell the difference.

`reshape`, `contiguous` and their kind give a view where they can, and copy where they can't. Where that depends on unbacked sizes,
the trace assumed a copy (`AmbiguousCopy` on the memory). In: the raw log of the forward part, the program's inputs and outputs.
Out: nothing, or GraphRejected at the call, which then runs by itself. Invariant: what is left in the graph computes the same with a
view as with a copy. The difference shows when one of the two is written while the other is still in use, when both can be seen
from outside, and in the strides of a result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from fxloom_aot.functional.views import is_dense
from fxloom_aot.nests import values_of
from fxloom_aot.recording.recorder import Entry
from fxloom_interfaces.errors import GraphBreak, GraphRejected
from fxloom_ops.schema import schema_info
from fxloom_shapes import FakeStorage, FakeTensor, SymbolEnv
from fxloom_shapes.fake.tensor import AmbiguousCopy


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A call that may copy. place: in the log; dense: the original had no gaps, so that a view has the strides of a copy."""

    place: int
    entry: Entry
    copy: FakeStorage
    found: AmbiguousCopy
    dense: bool


@dataclass(slots=True)
class _Family:
    """Memories that may be one."""

    members: set[int]
    candidates: list[_Candidate] = field(default_factory=list)


def refuse_ambiguous_aliasing(
    entries: Sequence[Entry], inputs: Sequence[FakeTensor], outputs: Sequence[FakeTensor], env: SymbolEnv
) -> None:
    """See the module's docstring."""
    candidates = list(_candidates(entries))
    if not candidates:
        return
    given = {fake.storage_token.ident for fake in inputs}
    shown = {fake.storage_token.ident for fake in outputs}
    last_use, writes = _uses(entries)
    last_use |= dict.fromkeys(given | shown, len(entries))
    for family in _families(candidates):
        results = shown & family.members
        if results and len(family.members & (given | shown)) > 1:
            _settle(family.candidates, env, "a result may share the memory of an input or of another result")
        odd = [candidate for candidate in family.candidates if candidate.copy.ident in results and not candidate.dense]
        _settle(odd, env, "the strides of a result depend on it")
        for place, written in writes:
            if written in family.members and any(last_use[other] > place for other in family.members if other != written):
                _settle([candidate for candidate in family.candidates if candidate.place < place], env, "one of both is written")


def _candidates(entries: Sequence[Entry]) -> Iterator[_Candidate]:
    known: set[int] = set()
    dense: dict[int, bool] = {}
    for place, entry in enumerate(entries):
        for fake in values_of([entry.out]):
            copy = fake.storage_token
            found = copy.ambiguous_copy
            if found is None or copy.ident in known:
                continue
            known.add(copy.ident)
            source = entry.args[0]
            # `_unsafe_view` of a copy: what was copied is what counts
            whole = is_dense(source.desc) if source.storage_token is found.origin else dense[source.storage_token.ident]
            dense[copy.ident] = whole
            yield _Candidate(place, entry, copy, found, whole)


def _uses(entries: Sequence[Entry]) -> tuple[dict[int, int], list[tuple[int, int]]]:
    """(by memory: the place in the log that uses it last, [(place, memory that is written there)])."""
    last: dict[int, int] = {}
    writes: list[tuple[int, int]] = []
    for place, entry in enumerate(entries):
        for fake in values_of([entry.args, entry.kwargs, entry.out]):
            last[fake.storage_token.ident] = place
        for position, name, _ in schema_info(entry.op).writes:
            target = entry.args[position] if position < len(entry.args) else entry.kwargs.get(name)
            writes += [(place, fake.storage_token.ident) for fake in values_of([target])]
    return last, writes


def _families(candidates: Sequence[_Candidate]) -> list[_Family]:
    families: list[_Family] = []
    for candidate in candidates:
        pair = {candidate.copy.ident, candidate.found.origin.ident}
        joined = [family for family in families if family.members & pair]
        families = [family for family in families if not family.members & pair]
        merged = _Family(pair.union(*(family.members for family in joined)))
        merged.candidates = sorted([candidate, *(g for family in joined for g in family.candidates)], key=lambda g: g.place)
        families.append(merged)
    return families


def _settle(candidates: Sequence[_Candidate], env: SymbolEnv, why: str) -> None:
    for candidate in candidates:
        node = candidate.entry.node
        assert node is not None  # of the forward part
        reason = f"whether it copies or gives a view is known only when the program runs, and {why}"
        try:
            if all(map(env.settle, candidate.found.assumptions)):
                continue
        except GraphBreak as error:
            reason = f"{reason} ({error.details})"
        raise GraphRejected(node, reason)  # by itself the call serves all sizes
