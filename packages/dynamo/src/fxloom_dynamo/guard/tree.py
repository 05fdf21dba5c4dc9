"""The C++ tree that checks guards on a frame which has not started, and collects the inputs of its graph on the way.

In: guards, the sources of the graph's inputs, and where the frame keeps its variables. Out: a `_native.GuardTree` whose `check` gives the
number of a guard that fails, or -1. Each source is one node, read once however many guards and inputs stand on it. Relations between
several values, and statements about sizes, are checked last.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fxloom_dynamo import _native
from fxloom_dynamo.guard.guards import RELATIONS, Guard, GuardKind
from fxloom_interfaces.errors import InternalError
from fxloom_interfaces.sources import (
    AttrSource,
    BuiltinsSource,
    CallSource,
    ClosureCellSource,
    ClosureSource,
    DictItemSource,
    DictKeySource,
    FunctionSource,
    GlobalsSource,
    InstanceDictSource,
    LocalSource,
    ObjectSource,
    SequenceItemSource,
    SizeSource,
    Source,
    TypeSource,
)

# The order of these two lists is that of the enums in native/guard_tree.h.
_ACCESS = {
    name: number
    for number, name in enumerate(
        [
            "local", "closure", "cell", "globals", "builtins", "function", "constant", "attribute", "instance_dict",
            "dict_item", "dict_key", "sequence_item", "type", "call", "tensor_size", "tensor_stride", "tensor_offset",
        ]
    )
}  # fmt: skip
_CHECK = {
    name: number
    for number, name in enumerate(
        ["identity", "weak_identity", "type", "equality", "length", "dict_keys", "contains", "has_attribute", "truth", "function_code"]
        + ["tensor"]  # made by add_tensor_check
    )
}
#: Cheap and often failing first; within one value only.
_ORDER = {
    GuardKind.TENSOR: 0,
    GuardKind.TYPE: 0,
    GuardKind.IDENTITY: 1,
    GuardKind.FUNCTION_CODE: 1,
    GuardKind.EQUALITY: 2,
    GuardKind.LENGTH: 2,
    GuardKind.TRUTH: 3,
    GuardKind.DICT_KEYS: 4,
    GuardKind.CONTAINS: 4,
    GuardKind.HAS_ATTRIBUTE: 5,
}


@dataclass(frozen=True, slots=True)
class FrameNames:
    """Where the frame keeps its variables: index of each parameter and of each free variable."""

    parameters: Mapping[str, int]
    free: Mapping[str, int]

    @staticmethod
    def of(code: types.CodeType) -> FrameNames:
        return FrameNames(
            {name: index for index, name in enumerate(code.co_varnames)},
            {name: index for index, name in enumerate(code.co_freevars)},
        )


def build_tree(guards: Sequence[Guard], inputs: Sequence[Source], names: FrameNames) -> _native.GuardTree:
    """The tree that checks `guards` on frames of a code object and collects `inputs`, in order, as a tuple."""
    builder = _TreeBuilder(names)
    order = sorted(range(len(guards)), key=lambda number: _ORDER.get(guards[number].kind, 9))
    relations = []
    for number in order:
        guard = guards[number]
        if guard.kind is GuardKind.GLOBAL_STATE:
            builder.tree.add_state_check(guard.expected, number)
        elif guard.kind in RELATIONS or guard.kind is GuardKind.SIZES:
            relations.append((number, guard))
        else:
            _add_check(builder.tree, builder.node(guard.source, number), guard, number)
    for slot, source in enumerate(inputs):
        builder.tree.export_value(builder.node(source, -1), slot)
    slots = len(inputs)
    for number, guard in relations:
        members = guard.expected.sources if guard.kind is GuardKind.SIZES else (guard.source, *guard.expected)
        for offset, source in enumerate(members):
            builder.tree.export_value(builder.node(source, number), slots + offset)
        own = list(range(slots, slots + len(members)))
        if guard.kind is GuardKind.SIZES:
            builder.tree.add_size_program(own, list(guard.expected.code), number)
        else:
            builder.tree.add_relation(RELATIONS[guard.kind], own, number)
        slots += len(members)
    builder.tree.freeze(len(inputs), slots)
    return builder.tree


class _TreeBuilder:
    """Makes one node per source, shared prefixes once."""

    def __init__(self, names: FrameNames) -> None:
        self.tree = _native.GuardTree()
        self._names = names
        self._nodes: dict[Source, int] = {}

    def node(self, source: Source, guard: int) -> int:
        known = self._nodes.get(source)
        if known is not None:
            return known
        # Roots first; without recursion, since chains are as deep as models are.
        chain = [source]
        while (parent := chain[-1].parent) is not None and parent not in self._nodes:
            chain.append(parent)
        number = self._nodes[parent] if parent is not None else -1
        for link in reversed(chain):
            access, index, key = self._access(link)
            number = self.tree.add_node(number, _ACCESS[access], index, key, max(guard, 0))
            self._nodes[link] = number
        return number

    def _access(self, source: Source) -> tuple[str, int, Any]:
        match source:
            case LocalSource(local=name):
                return "local", self._index(self._names.parameters, name, source), None
            case ClosureSource(var=name):
                return "closure", self._index(self._names.free, name, source), None
            case ClosureCellSource(var=name):
                return "cell", self._index(self._names.free, name, source), None
            case GlobalsSource():
                return "globals", 0, None
            case BuiltinsSource():
                return "builtins", 0, None
            case FunctionSource():
                return "function", 0, None
            case ObjectSource(value=value):
                return "constant", 0, value
            case AttrSource(attr=name):
                return "attribute", 0, name
            case InstanceDictSource():
                return "instance_dict", 0, None
            case DictItemSource(key=key):
                return "dict_item", 0, key
            case DictKeySource(index=index):
                return "dict_key", index, None
            case SequenceItemSource(index=index):
                return "sequence_item", index, None
            case TypeSource():
                return "type", 0, None
            case CallSource(getter=getter):
                return "call", 0, getter
            case SizeSource(what=what, dim=dim):
                return {"size": "tensor_size", "stride": "tensor_stride", "storage_offset": "tensor_offset"}[what], dim, None
        raise InternalError("guards", f"no accessor for source {source!r}")

    @staticmethod
    def _index(table: Mapping[str, int], name: str, source: Source) -> int:
        if name not in table:
            raise InternalError("guards", f"{source.name}: the frame has no such variable (it has {sorted(table)})")
        return table[name]


def _add_check(tree: _native.GuardTree, node: int, guard: Guard, number: int) -> None:
    kind, expected = guard.kind, guard.expected
    if kind is GuardKind.TENSOR:
        tree.add_tensor_check(node, expected, number)
    elif kind is GuardKind.IDENTITY:
        if not isinstance(expected, weakref.ref):
            tree.add_check(node, _CHECK["identity"], 0, expected, number)
        else:
            tree.add_check(node, _CHECK["weak_identity"], 0, expected, number)
    elif kind in (GuardKind.LENGTH, GuardKind.TRUTH):
        tree.add_check(node, _CHECK["length" if kind is GuardKind.LENGTH else "truth"], int(expected), None, number)
    else:
        name = {
            GuardKind.TYPE: "type",
            GuardKind.EQUALITY: "equality",
            GuardKind.DICT_KEYS: "dict_keys",
            GuardKind.CONTAINS: "contains",
            GuardKind.HAS_ATTRIBUTE: "has_attribute",
            GuardKind.FUNCTION_CODE: "function_code",
        }[kind]
        tree.add_check(node, _CHECK[name], 0, expected, number)
