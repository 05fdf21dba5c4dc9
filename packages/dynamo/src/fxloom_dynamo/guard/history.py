"""What earlier calls of the same code showed, and which sizes and numbers are dynamic by it.

In: values with their sources, in the order in which capture meets them. Out: policies for `fxloom_shapes`. Static first: a
number becomes dynamic when a second value is seen at its place (`History`, one per region and code object).
Invariant: asking twice about one call gives the same answer, so that a restarted capture sees what the first one saw.
"""

from __future__ import annotations

import enum
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from fxloom_dynamo.guard.dynamic_shapes import DYNAMIC, MAYBE_DYNAMIC, STATIC, NumberSpec, dimension_of
from fxloom_interfaces.errors import ConfigError
from fxloom_interfaces.sources import AttrSource, DictItemSource, InstanceDictSource, LocalSource, SequenceItemSource, Source
from fxloom_shapes.fake.symbolize import DimPolicy
from fxloom_shapes.symbols.symbol import SPECIAL

CHANGES = object()


class EffectOrder(enum.Enum):
    """What a capture has to know of the order of writes, effects and operators that may raise; learned from the one before."""

    FREE = "nothing"
    NOTED = "whether an operator may raise amid effects"
    SPLIT = "the first write into an input, before which the graph ends"


@dataclass(slots=True)
class _Seen:
    """Values seen at one place, in order of first sight; the last one is the newest call's."""

    values: list[Any] = field(default_factory=list)
    last: Any = None

    def note(self, value: Any) -> bool:
        """True when more than one value was seen, this one included."""
        if value not in self.values:
            self.values.append(value)
        self.last = value
        return len(self.values) > 1


@dataclass(slots=True)
class History:
    """What calls of one code object looked like so far, by the names of sources."""

    tensors: dict[str, tuple[int, list[_Seen], list[_Seen]]] = field(default_factory=dict)
    numbers: dict[str, _Seen] = field(default_factory=dict)
    #: place -> how far the iterator there was at first
    iterators: dict[str, Any] = field(default_factory=dict)
    #: place -> values there that a trace with a symbol for the number relied on
    specialized: dict[str, list[Any]] = field(default_factory=dict)
    #: whether a call ran as it is, because a lazy module was to be initialized
    uninitialized: bool = False
    #: (text, category) of warnings that capture has issued for the program
    warned: set[tuple[str, type[Warning]]] = field(default_factory=set)
    #: whether the backend may make constants of numbers (`graph.foreign_backends`)
    only_tensors: bool = False
    #: torch's own functions whose code asked for the value of a tensor when it ran on fakes: it is evaluated, like the program's
    evaluated: set[types.CodeType] = field(default_factory=set)
    order: EffectOrder = EffectOrder.FREE
    #: whether an optimizer's update was met that reads numbers out of tensors: these stay in the graph then
    updates_by_numbers: bool = False
    #: place -> the first text there, or the first length of a list; `CHANGES` once another was met
    held: dict[str, Any] = field(default_factory=dict)
    #: places whose texts and lists are compiled for all the same, since the program looks at them
    revealed: set[str] = field(default_factory=set)
    #: calls of cached functions, in order, that the attempts of the current capture have made, with their results
    answers: list[tuple[Any, Any]] = field(default_factory=list)

    def note_specialized(self, numbers: Mapping[str, Any]) -> None:
        for name, value in numbers.items():
            self.specialized.setdefault(name, []).append(value)


@dataclass(frozen=True, slots=True)
class Policy:
    """Answers for one capture. dynamic: the option; shapes: of `parse_dynamic_shapes`.

    static: every number is compiled for, whatever was asked: the backend takes none (`graph.foreign_backends`).
    """

    history: History
    dynamic: bool | None
    shapes: Mapping[str, Any]
    static: bool = False

    def tensor(self, real: torch.Tensor, source: Source, static: bool) -> tuple[dict[int, DimPolicy], frozenset[int]]:
        """(policies of dynamic dims, dims whose stride may change). static: a parameter or buffer, dynamic when marked only."""
        if real.layout is not torch.strided:
            return {}, frozenset()
        asked: dict[int, DimPolicy | None] = dict.fromkeys(getattr(real, STATIC, {}), None)
        for attribute in (MAYBE_DYNAMIC, DYNAMIC):
            asked |= {dim: policy for dim, policy in getattr(real, attribute, {}).items() if dim not in asked}
        spec = self._spec(source)
        if isinstance(spec, NumberSpec):
            raise ConfigError(f"dynamic_shapes for {source.name}: it is a tensor; say which of its {real.dim()} dimensions")
        if isinstance(spec, dict) and all(isinstance(key, int) for key in spec):
            asked |= {dimension_of(real, dim, source): policy for dim, policy in spec.items()}
        if self.static:
            return {}, frozenset()
        found = {dim: policy for dim, policy in asked.items() if policy is not None}
        if static or self.dynamic is False:
            return found, frozenset()
        rank, sizes, strides = self.history.tensors.get(source.name, (-1, [], []))
        if rank != real.dim():
            rank = real.dim()
            sizes, strides = [_Seen() for _ in range(rank)], [_Seen() for _ in range(rank)]
            self.history.tensors[source.name] = (rank, sizes, strides)
        moved = set()
        for dim in range(rank):
            changed = sizes[dim].note(int(real.shape[dim]))
            if strides[dim].note(int(real.stride(dim))) or self.dynamic:
                moved.add(dim)
            if dim in asked:
                policy = found.get(dim)
                if policy is not None and policy.pinned and policy.duck_key is None:
                    found[dim] = policy = replace(policy, duck_key=(source.name, dim))  # equal to another by chance only
                if policy is not None and policy.pinned and changed and int(real.shape[dim]) in SPECIAL:
                    found[dim] = replace(policy, pinned=False)  # the other sizes have code of their own
                continue
            if changed or self.dynamic:
                found[dim] = DimPolicy(duck_key=dim if self.dynamic else tuple(sizes[dim].values))
        return found, frozenset(moved)

    def number(self, value: int | float, source: Source) -> DimPolicy | None:
        """The policy of a Python int or float at `source`; None where it is to be compiled for."""
        spec = self._spec(source)
        if isinstance(spec, NumberSpec) and not self.static:
            asked = spec.policy
            changed = self.history.numbers.setdefault(source.name, _Seen()).note(value)
            if asked is not None and asked.pinned and changed and type(value) is int and value in SPECIAL:
                return replace(asked, pinned=False)  # the other numbers have code of their own
            return asked
        if self.static or self.dynamic is False:
            return None
        changed = self.history.numbers.setdefault(source.name, _Seen()).note(value)
        return DimPolicy() if changed or self.dynamic and not _is_setting(source) else None

    def leaves_unguarded(self, value: Any, source: Source) -> bool:
        """Whether the text, or the number of items, at `source` changes, and nothing is known to look at it (`objects.unguarded`)."""
        held = self.history.held
        if held.setdefault(source.name, value) != value:
            held[source.name] = CHANGES
        return held[source.name] is CHANGES and self.may_carry(source)

    def may_carry(self, source: Source) -> bool:
        """Whether nothing is known to look at what is at `source`."""
        return source.name not in self.history.revealed

    def reveal(self, names: Iterable[str]) -> None:
        self.history.revealed.update(names)

    def iterator(self, state: Any, source: Source) -> bool:
        """Whether to specialize on how far an iterator is: where that changes it stays outside, one item at a time."""
        return bool(self.history.iterators.setdefault(source.name, state) == state)

    def _spec(self, source: Source) -> Any:
        """What `dynamic_shapes` says for a place."""
        if not self.shapes:
            return None
        steps: list[Any] = []
        here: Source | None = source
        while isinstance(here, (SequenceItemSource, DictItemSource)):
            steps.append(here.index if isinstance(here, SequenceItemSource) else here.key)
            here = here.parent
        if not isinstance(here, LocalSource):
            return None
        spec = self.shapes.get(here.local)
        for step in reversed(steps):
            listed = isinstance(spec, list) and isinstance(step, int) and step < len(spec)
            if spec is None or (not listed and not (isinstance(spec, dict) and step in spec)):
                return None
            spec = spec[step]
        return spec


def _is_setting(source: Source) -> bool:
    """True for numbers that programs mostly leave as they are: attributes of objects and what lies in these, defaults.

    They are dynamic when a second value is seen. What callers pass, also in containers, and what cells hold may change from
    call to call.
    """
    here: Source | None = source
    while here is not None:
        if isinstance(here, (AttrSource, InstanceDictSource)):
            return True
        here = here.parent
    return False
