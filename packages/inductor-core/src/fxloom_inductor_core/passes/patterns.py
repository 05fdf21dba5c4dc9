"""A small language for patterns of calls in a graph.

In: a pattern, a node. Out: the ways in which the node's value has the form of the pattern (`matches`), each with what was captured and
which nodes it covers. Invariant: matching changes nothing.

    product = Op("matmul", Capture("q"), Capture("kt"))
    scores = Through("to", Either(Op("mul", product, Number("scale"), commutative=True), product))

A pattern does not see nodes but calls as a *reader* gives them, so one language serves several dialects: `read_aten` gives
overloads with all their arguments by position, `torch_calls.read_torch` one name for the many spellings of a torch function.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch
import torch.fx


@dataclass(frozen=True, slots=True)
class Call:
    """One call as patterns see it. args: in the order of the signature; trailing ones that have their default may be left out."""

    target: Any
    args: tuple[Any, ...]
    defaults: tuple[Any, ...] = ()


#: how a node reads; None for what patterns don't look into
Reader: TypeAlias = Callable[[torch.fx.Node], Call | None]


@dataclass(frozen=True, slots=True)
class Match:
    """captures: by name. nodes: the calls that the pattern covers, the root first."""

    reader: Reader
    captures: Mapping[str, Any] = field(default_factory=dict)
    nodes: tuple[torch.fx.Node, ...] = ()

    def __getitem__(self, name: str) -> Any:
        return self.captures[name]

    def get(self, name: str, default: Any = None) -> Any:
        return self.captures.get(name, default)

    def bind(self, name: str, value: Any) -> Match | None:
        """With a capture more; None where the name stands for something else already."""
        if name in self.captures:
            return self if self.captures[name] is value or _same_number(self.captures[name], value) else None
        return replace(self, captures={**self.captures, name: value})

    def covering(self, node: torch.fx.Node) -> Match:
        return replace(self, nodes=(*self.nodes, node))

    def is_closed(self, ignored: Callable[[torch.fx.Node], bool] = lambda user: False) -> bool:
        """True when nothing outside of the match uses a node in it, but for the root. ignored: users that don't count."""
        inside = set(self.nodes)
        return all(user in inside or ignored(user) for node in self.nodes[1:] for user in node.users)


class Pattern(ABC):
    """Root of patterns."""

    @abstractmethod
    def matches(self, value: Any, found: Match) -> Iterator[Match]:
        """The ways in which `value`, an argument of a call, has this form, going on from what was found already."""


Condition: TypeAlias = Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class Capture(Pattern):
    """Any value, by name; the same value wherever the name stands again. where: a condition on it."""

    name: str
    where: Condition | None = None

    def matches(self, value: Any, found: Match) -> Iterator[Match]:
        if self.where is None or self.where(value):
            bound = found.bind(self.name, value)
            if bound is not None:
                yield bound


@dataclass(frozen=True, slots=True)
class Anything(Pattern):
    """Any value, not kept."""

    def matches(self, value: Any, found: Match) -> Iterator[Match]:
        yield found


@dataclass(frozen=True, slots=True)
class Number(Pattern):
    """A Python number that is known when the graph is compiled; kept where it has a name. where: a condition on it."""

    name: str = ""
    where: Condition | None = None

    def matches(self, value: Any, found: Match) -> Iterator[Match]:
        if type(value) not in (int, float) or (self.where is not None and not self.where(value)):
            return
        bound = found.bind(self.name, value) if self.name else found
        if bound is not None:
            yield bound


@dataclass(frozen=True, slots=True)
class Op(Pattern):
    """A call of one of `targets` with these arguments: patterns, or plain values that have to be equal.

    Arguments that are not said have their defaults. commutative: the first two may be the other way round. users: how many calls use
    the result. where: a condition on the node.
    """

    targets: Any
    args: tuple[Any, ...]
    commutative: bool = False
    users: int | None = None
    where: Condition | None = None

    def __init__(
        self, targets: Any, *args: Any, commutative: bool = False, users: int | None = None, where: Condition | None = None
    ) -> None:
        for name, value in (
            ("targets", as_targets(targets)), ("args", args), ("commutative", commutative), ("users", users), ("where", where),
        ):  # fmt: skip
            object.__setattr__(self, name, value)

    def matches(self, value: Any, found: Match) -> Iterator[Match]:
        call = found.reader(value) if isinstance(value, torch.fx.Node) else None
        if call is None or call.target not in self.targets or len(call.args) < len(self.args):
            return
        rest = slice(len(self.args), None)
        if not all(_equal(given, default) for given, default in zip(call.args[rest], call.defaults[rest], strict=False)):
            return
        if (self.users is not None and len(value.users) != self.users) or (self.where is not None and not self.where(value)):
            return
        found = found.covering(value)
        yield from _all_match(self.args, call.args, found)
        if self.commutative:
            yield from _all_match(self.args, (call.args[1], call.args[0], *call.args[2:]), found)


@dataclass(frozen=True, slots=True)
class Through(Pattern):
    """`inner`, or calls of `targets` on it, up to `most` of them, whose first argument is what they pass on: casts, views, copies.

    where: a condition on each node that is passed through.
    """

    targets: Any
    inner: Pattern
    where: Condition | None = None
    most: int = 4

    def matches(self, value: Any, found: Match) -> Iterator[Match]:
        targets = as_targets(self.targets)
        for _ in range(self.most + 1):
            yield from self.inner.matches(value, found)
            call = found.reader(value) if isinstance(value, torch.fx.Node) else None
            if call is None or call.target not in targets or (self.where is not None and not self.where(value)):
                return
            found, value = found.covering(value), call.args[0]


@dataclass(frozen=True, slots=True)
class Either(Pattern):
    """One of several forms, tried in order."""

    alternatives: tuple[Pattern, ...]

    def __init__(self, *alternatives: Pattern) -> None:
        object.__setattr__(self, "alternatives", alternatives)

    def matches(self, value: Any, found: Match) -> Iterator[Match]:
        for alternative in self.alternatives:
            yield from alternative.matches(value, found)


def find(pattern: Pattern, node: torch.fx.Node, reader: Reader) -> Iterator[Match]:
    """All ways in which `node` has the form of `pattern`."""
    return pattern.matches(node, Match(reader))


def as_targets(targets: Any) -> Collection[Any]:
    """One target, or several, as something to look in."""
    return targets if isinstance(targets, (tuple, list, set, frozenset, dict)) else (targets,)


def read_aten(node: torch.fx.Node) -> Call | None:
    """An overload's call with all its arguments by position, defaults filled in."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return None
    arguments = node.target._schema.arguments
    defaults = tuple([argument.default_value if argument.has_default_value() else None for argument in arguments])
    args = list(node.args) + [
        node.kwargs.get(argument.name, default)
        for argument, default in itertools.islice(zip(arguments, defaults, strict=True), len(node.args), None)
    ]
    return Call(node.target, tuple(args), defaults)


def _all_match(patterns: tuple[Any, ...], values: tuple[Any, ...], found: Match) -> Iterator[Match]:
    if not patterns:
        yield found
        return
    first, value = patterns[0], values[0]
    if isinstance(first, Pattern):
        for match in first.matches(value, found):
            yield from _all_match(patterns[1:], values[1:], match)
    elif _equal(value, first):
        yield from _all_match(patterns[1:], values[1:], found)


def _equal(a: Any, b: Any) -> bool:
    """Equality of plain arguments; nodes and symbolic numbers equal themselves only."""
    if a is b:
        return True
    plain = (int, float, bool, str, torch.dtype, torch.device, torch.memory_format)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(_equal(x, y) for x, y in zip(a, b, strict=True))
    return type(a) in plain and type(b) in plain and a == b if not isinstance(a, torch.fx.Node) else False


def _same_number(a: Any, b: Any) -> bool:
    return type(a) is type(b) and type(a) in (int, float) and a == b
