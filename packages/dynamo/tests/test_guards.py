"""The guard tree on its own: every kind holds and fails, and nothing that was remembered outlives what it was read from."""

from __future__ import annotations

import collections
import gc
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fxloom_dynamo
from fxloom_dynamo import optimize
from fxloom_dynamo.guard.guards import Guard, GuardKind, TensorProperties, global_state_guard, identity_guard
from fxloom_dynamo.guard.tree import FrameNames, build_tree
from fxloom_interfaces import telemetry
from fxloom_interfaces.sources import (
    AttrSource,
    CallSource,
    DictItemSource,
    DictKeySource,
    GlobalsSource,
    InstanceDictSource,
    LocalSource,
    ObjectSource,
    SequenceItemSource,
    SizeSource,
    Source,
    TypeSource,
)

X = LocalSource("x")


class Tree:
    """A guard tree for frames of `def f(x)`. Calling it tells the index of the first guard that fails, -1 if none."""

    def __init__(self, *guards: Guard, inputs: tuple[Source, ...] = ()) -> None:
        self.tree = build_tree(guards, inputs, FrameNames({"x": 0}, {}))

    def __call__(self, x: Any, global_names: dict[str, Any] | None = None) -> int:
        return self.tree.check([x], (), global_names or {}, {}, None)


class Plain:
    """Instances have an ordinary instance dict."""


def function() -> None: ...


def other() -> None: ...


HOLDS_AND_FAILS: dict[str, tuple[Guard, Any, Any]] = {
    "identity": (Guard(X, GuardKind.IDENTITY, function), function, other),
    "type": (Guard(X, GuardKind.TYPE, int), 1, True),
    "equality int": (Guard(X, GuardKind.EQUALITY, 1), 1, 2),
    "equality of types": (Guard(X, GuardKind.EQUALITY, 1), 1, 1.0),
    "equality zero": (Guard(X, GuardKind.EQUALITY, 0.0), 0.0, -0.0),
    "equality nan": (Guard(X, GuardKind.EQUALITY, float("nan")), float("nan"), 0.0),
    "equality nested": (Guard(X, GuardKind.EQUALITY, (1, (2.0, "a"))), (1, (2.0, "a")), (1, (2, "a"))),
    "length": (Guard(X, GuardKind.LENGTH, 2), [1, 2], [1]),
    "keys": (Guard(X, GuardKind.DICT_KEYS, ("a", "b")), {"a": 1, "b": 2}, {"b": 1, "a": 2}),
    "contains": (Guard(X, GuardKind.CONTAINS, ("a", True)), {"a": 1}, {"b": 1}),
    "lacks": (Guard(X, GuardKind.CONTAINS, ("a", False)), {"b": 1}, {"a": 1}),
    "attribute": (Guard(X, GuardKind.HAS_ATTRIBUTE, ("bit_length", True)), 1, "a"),
    "truth": (Guard(X, GuardKind.TRUTH, True), [1], []),
    "code": (Guard(X, GuardKind.FUNCTION_CODE, function.__code__), function, other),
    "attribute value": (Guard(AttrSource(X, "real"), GuardKind.EQUALITY, 1), 1, 2),
    "instance dict": (Guard(DictItemSource(InstanceDictSource(X), "a"), GuardKind.EQUALITY, 1), types.SimpleNamespace(a=1), Plain()),
    "dict item": (Guard(DictItemSource(X, "a"), GuardKind.EQUALITY, 1), {"a": 1}, {}),
    "dict key": (Guard(DictKeySource(X, 1), GuardKind.EQUALITY, "b"), {"a": 1, "b": 2}, {"a": 1}),
    "list item": (Guard(SequenceItemSource(X, 1), GuardKind.EQUALITY, 2), [1, 2], [1]),
    "deque item": (Guard(SequenceItemSource(X, 1), GuardKind.EQUALITY, 2), collections.deque([1, 2]), collections.deque([1])),
    "tuple item": (Guard(SequenceItemSource(X, 1), GuardKind.EQUALITY, 2), (1, 2), (1, 3)),
    "type of": (Guard(TypeSource(X), GuardKind.IDENTITY, int), 1, "a"),
    "call": (Guard(CallSource(X, len, "len({})"), GuardKind.EQUALITY, 2), "ab", "abc"),
    "size": (Guard(SizeSource(X, "size", 0), GuardKind.EQUALITY, 3), torch.ones(3), torch.ones(4)),
    "stride": (Guard(SizeSource(X, "stride", 0), GuardKind.EQUALITY, 1), torch.ones(3), torch.ones(6)[::2]),
    "offset": (Guard(SizeSource(X, "storage_offset"), GuardKind.EQUALITY, 0), torch.ones(3), torch.ones(3)[1:]),
    "same object": (
        Guard(SequenceItemSource(X, 0), GuardKind.SAME_OBJECT, (SequenceItemSource(X, 1),)), [function, function], [function, other],
    ),
    "distinct objects": (
        Guard(SequenceItemSource(X, 0), GuardKind.DISTINCT_OBJECTS, (SequenceItemSource(X, 1),)), [function, other], [other, other],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOLDS_AND_FAILS)
def test_kind_holds_and_fails(name: str) -> None:
    guard, good, bad = HOLDS_AND_FAILS[name]
    tree = Tree(guard)
    for _ in range(2):  # the second time from what was remembered
        assert tree(good) == -1
        assert tree(bad) == 0
        assert tree(good) == -1


def test_weak_identity_does_not_keep_the_object() -> None:
    thing = Plain()
    alive = weakref.ref(thing)
    tree = Tree(identity_guard(X, thing))
    assert tree(thing) == -1 and tree(Plain()) == 0
    del thing
    gc.collect()
    assert alive() is None
    assert tree(Plain()) == 0


BASE = torch.ones(3, 4)
TENSOR_CHANGES: dict[str, Callable[[], Any]] = {
    "type": lambda: torch.nn.Parameter(BASE.clone(), requires_grad=False),
    "dtype": lambda: BASE.double(),
    "device": lambda: BASE.to("meta"),
    "shape": lambda: torch.ones(4, 4),
    "rank": lambda: torch.ones(12),
    "stride": lambda: torch.ones(4, 3).t(),
    "requires_grad": lambda: BASE.clone().requires_grad_(),
    "layout": lambda: BASE.to_sparse(),
    "negated view": lambda: torch.ones(3, 4, dtype=torch.cfloat).conj().imag,
    "no tensor": lambda: 3,
}


@pytest.mark.parametrize("name", TENSOR_CHANGES)
def test_tensor_properties(name: str) -> None:
    tree = Tree(Guard(X, GuardKind.TENSOR, TensorProperties.of(BASE)))
    assert tree(torch.zeros(3, 4)) == -1
    assert tree(TENSOR_CHANGES[name]()) == 0


def test_tensor_under_inference_mode_differs() -> None:
    tree = Tree(Guard(X, GuardKind.TENSOR, TensorProperties.of(BASE)))
    with torch.inference_mode():
        made = torch.ones(3, 4)
    assert tree(made) == 0


GLOBAL_CHANGES: dict[str, Callable[[], Any]] = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "device": lambda: torch.device("meta"),
}


@pytest.mark.parametrize("name", GLOBAL_CHANGES)
def test_global_state(name: str) -> None:
    tree = Tree(global_state_guard())
    assert tree(1) == -1
    with GLOBAL_CHANGES[name]():
        assert tree(1) == 0
    assert tree(1) == -1


@pytest.mark.parametrize("device", torch._C._autocast_supported_devices())
def test_autocast_of_every_device(device: str) -> None:
    """Also of devices that plugins bring and that this machine lacks."""
    tree = Tree(global_state_guard())
    dtype = torch.get_autocast_dtype(device)
    other = torch.bfloat16 if dtype is torch.float16 else torch.float16
    try:
        torch.set_autocast_enabled(device, True)
        assert tree(1) == 0
        torch.set_autocast_enabled(device, False)
        assert tree(1) == -1
        torch.set_autocast_dtype(device, other)
        assert tree(1) == 0
    finally:
        torch.set_autocast_enabled(device, False)
        torch.set_autocast_dtype(device, dtype)
    assert tree(1) == -1


@pytest.mark.parametrize(
    ("read", "write", "value"),
    [
        (torch.get_default_dtype, torch.set_default_dtype, torch.float64),
        (torch.get_num_threads, torch.set_num_threads, 1 + torch.get_num_threads()),
        (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True),
    ],
)
def test_global_settings(read: Callable[[], Any], write: Callable[[Any], Any], value: Any) -> None:
    tree = Tree(global_state_guard())
    before = read()
    assert tree(1) == -1
    try:
        write(value)
        assert tree(1) == 0
    finally:
        write(before)
    assert tree(1) == -1


# ---- what the tree remembers of dicts -------------------------------------------------------------------------------


def write_slot(target: Any, value: Any) -> None:
    target.a = value


CHANGES: dict[str, Callable[[Any], Any]] = {
    "setattr": lambda o: setattr(o, "a", 5),
    "store": lambda o: write_slot(o, 5),
    "object.__setattr__": lambda o: object.__setattr__(o, "a", 5),
    "delattr": lambda o: delattr(o, "a"),
    "setitem": lambda o: o.__dict__.__setitem__("a", 5),
    "pop": lambda o: o.__dict__.pop("a"),
    "update": lambda o: o.__dict__.update(a=5),
    "or": lambda o: o.__dict__.__ior__({"a": 5}),
    "clear": lambda o: o.__dict__.clear(),
    "popitem": lambda o: o.__dict__.popitem(),
    "new name": lambda o: setattr(o, "absent", 1),
    "setdefault": lambda o: o.__dict__.setdefault("absent", 1),
    "whole dict": lambda o: setattr(o, "__dict__", {"a": 5}),
}


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "specialized"])
@pytest.mark.parametrize("name", CHANGES)
def test_every_change_of_an_instance_dict_is_seen(name: str, warm: bool) -> None:
    thing = Plain()
    thing.a = 1  # type: ignore[attr-defined]
    if warm:
        for _ in range(100):
            write_slot(thing, 1)
    tree = Tree(
        Guard(DictItemSource(InstanceDictSource(X), "a"), GuardKind.EQUALITY, 1),
        Guard(InstanceDictSource(X), GuardKind.CONTAINS, ("absent", False)),
    )
    for _ in range(3):
        assert tree(thing) == -1
    CHANGES[name](thing)
    assert tree(thing) >= 0
    thing.__dict__.clear()
    thing.a = 1  # type: ignore[attr-defined]
    assert tree(thing) == -1


def test_order_of_an_ordered_dict_is_part_of_its_keys() -> None:
    names = collections.OrderedDict(a=1, b=2)
    tree = Tree(Guard(X, GuardKind.DICT_KEYS, ("a", "b")))
    assert tree(names) == -1
    names.move_to_end("a")
    assert tree(names) == 0
    assert tree(collections.OrderedDict(a=1)) == 0
    assert tree(collections.OrderedDict(a=1, b=2, c=3)) == 0


def test_what_a_dict_holds_is_looked_into_again() -> None:
    """A list, a tensor or an object in an unchanged dict may have changed itself."""
    inner = Plain()
    inner.flag = True  # type: ignore[attr-defined]
    tensor = torch.ones(2)
    names = {"list": [1], "object": inner, "tensor": tensor, "set": {1}}
    tree = Tree(
        Guard(DictItemSource(X, "list"), GuardKind.LENGTH, 1),
        Guard(DictItemSource(InstanceDictSource(DictItemSource(X, "object")), "flag"), GuardKind.IDENTITY, True),
        Guard(DictItemSource(X, "tensor"), GuardKind.TENSOR, TensorProperties.of(tensor)),
        Guard(DictItemSource(X, "set"), GuardKind.EQUALITY, {1}),
        Guard(DictItemSource(X, "object"), GuardKind.TYPE, Plain),
    )
    changes: list[tuple[Callable[[], Any], Callable[[], Any]]] = [
        (lambda: names["list"].append(2), lambda: names["list"].pop()),  # type: ignore[attr-defined]
        (lambda: setattr(inner, "flag", False), lambda: setattr(inner, "flag", True)),
        (lambda: tensor.requires_grad_(), lambda: tensor.requires_grad_(False)),
        (lambda: names["set"].add(2), lambda: names["set"].remove(2)),  # type: ignore[attr-defined]
        (lambda: setattr(inner, "__class__", type("Other", (Plain,), {})), lambda: setattr(inner, "__class__", Plain)),
    ]
    for change, undo in changes:
        assert tree(names) == -1
        assert tree(names) == -1
        change()
        assert tree(names) >= 0
        undo()
    assert tree(names) == -1


def test_class_attributes_are_seen() -> None:
    class Flagged:
        flag = True

    source = InstanceDictSource(ObjectSource("Flagged", Flagged, id(Flagged)))
    tree = Tree(
        Guard(DictItemSource(source, "flag"), GuardKind.IDENTITY, True),
        Guard(source, GuardKind.CONTAINS, ("more", False)),
    )
    assert tree(1) == -1
    Flagged.flag = False
    assert tree(1) >= 0
    Flagged.flag = True
    assert tree(1) == -1
    Flagged.more = 1  # type: ignore[attr-defined]
    assert tree(1) >= 0


def test_globals_are_seen() -> None:
    names: dict[str, Any] = {"scale": 2}
    tree = Tree(Guard(DictItemSource(GlobalsSource(), "scale"), GuardKind.EQUALITY, 2))
    assert tree(1, names) == -1
    exec("scale = 3", names)
    assert tree(1, names) == 0
    exec("def put():\n    global scale\n    scale = 2\nfor _ in range(50): put()", names)
    assert tree(1, names) == -1


def test_a_guard_that_changes_the_dict_it_is_read_from() -> None:
    """Getters may run Python code; what they change must not be taken for what was checked."""
    names: dict[str, Any] = {"a": 1, "b": 2}

    def meddle(value: Any) -> Any:
        names["a"] = object()
        gc.collect()
        return value

    tree = Tree(
        Guard(CallSource(DictItemSource(X, "b"), meddle, "meddle({})"), GuardKind.EQUALITY, 2),
        Guard(DictItemSource(X, "a"), GuardKind.TYPE, int),
    )
    for _ in range(5):
        names["a"] = 1
        first = tree(names)
        assert tree(names) == 1, "the second look sees what the first one's getter wrote"
        assert first in (-1, 1)


def test_inputs_are_collected_from_unchanged_dicts() -> None:
    class Module:
        def __init__(self) -> None:
            self.weight = torch.ones(2)

    module = Module()
    source = DictItemSource(InstanceDictSource(X), "weight")
    tree = Tree(
        Guard(source, GuardKind.TENSOR, TensorProperties.of(module.weight)),
        Guard(source, GuardKind.DISTINCT_STORAGES, (DictItemSource(InstanceDictSource(X), "bias"),)),
        inputs=(source,),
    )
    module.bias = torch.ones(2)  # type: ignore[attr-defined]
    for _ in range(3):
        assert tree(module) == -1
    module.bias.set_(module.weight)  # type: ignore[attr-defined]  # same object, other storage
    assert tree(module) == 1
    references = [sum(1 for r in gc.get_referrers(module.weight)) for _ in range(2)]
    for _ in range(100):
        tree(module)
    assert sum(1 for r in gc.get_referrers(module.weight)) == references[0]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["set", "pop", "check"]), st.integers(0, 2)), max_size=30))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_remembering_changes_no_answer(steps: list[tuple[str, str, int]]) -> None:
    """A tree that has seen the dict through all its changes answers as a fresh one does."""

    def fresh() -> Tree:
        return Tree(
            Guard(DictItemSource(X, "a"), GuardKind.EQUALITY, 1),
            Guard(X, GuardKind.CONTAINS, ("b", False)),
            Guard(X, GuardKind.LENGTH, 1),
        )

    tree, names = fresh(), {"a": 1}
    for key, action, value in steps:
        if action == "set":
            names[key] = value
        elif action == "pop":
            names.pop(key, None)
        assert (tree(names) == -1) == (fresh()(names) == -1)


@pytest.mark.parametrize(
    ("guard", "text"),
    [
        (Guard(X, GuardKind.TENSOR, TensorProperties.of(torch.ones(3, 4).t())), "L['x'] tensor float32[4, 3] strides (1, 4) cpu"),
        (
            Guard(X, GuardKind.TENSOR, TensorProperties.of(torch.ones(2, 3, requires_grad=True), frozenset({0}))),
            "L['x'] tensor float32[*, 3] strides (*, *) cpu requires_grad",
        ),
        (Guard(X, GuardKind.TENSOR, TensorProperties.of(torch.nn.Parameter(torch.ones(())))), "L['x'] tensor float32[] strides () cpu requires_grad torch.nn.parameter.Parameter"),
        (Guard(X, GuardKind.LENGTH, 2), "L['x'] length 2"),
        (Guard(X, GuardKind.DISTINCT_OBJECTS, (AttrSource(X, "y"), LocalSource("z"))), "distinct objects: L['x'], L['x'].y, L['z']"),
    ],
    ids=["layout", "changing sizes", "parameter", "length", "relation"],
)
def test_a_guard_prints_what_it_demands(guard: Guard, text: str) -> None:
    assert str(guard) == text


def test_fakes_leave_no_guards_on_what_the_program_never_saw() -> None:
    found = fxloom_dynamo.export(lambda x: torch.softmax(x + 1, -1), torch.ones(3))
    assert [str(guard) for guard in found.guards if "FakeTensor" in str(guard) or "__eq__" in str(guard)] == []


def test_a_guard_prints_what_a_user_knows() -> None:
    source = GlobalsSource()
    assert str(Guard(source, GuardKind.IDENTITY, torch.softmax)) == "G is torch.softmax"
    assert str(Guard(source, GuardKind.IDENTITY, torch._C._nn.gelu)) == "G is torch._C._nn.gelu"
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        text = str(global_state_guard())
    assert text.startswith("global state: grad_mode=False, inference_mode=False, autocast=cpu bfloat16, autocast_cache=True, ")
    assert f"default_dtype=float32, deterministic=False, deterministic_warn_only=False, threads={torch.get_num_threads()}, " in text


def test_replacement_code_shows_the_compiled_graph() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    found = []
    with telemetry.listen(found.append, artifacts=True):
        optimize()(program)(torch.ones(2))
    texts = [event.text for event in found if isinstance(event, telemetry.ArtifactWritten) and event.name == "bytecode_after.txt"]
    assert f"(<compiled graph of {program.__qualname__}>)" in texts[0]
