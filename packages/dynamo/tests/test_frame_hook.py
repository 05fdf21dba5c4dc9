"""The hook, entries and guard trees on hand-made replacement code: the evaluator takes no part."""

from __future__ import annotations

import gc
import sys
import threading
import types
import weakref
from typing import Any

import pytest
import torch

from fxloom_dynamo import _native
from fxloom_dynamo.bytecode import assemble, disassemble, snippets
from fxloom_dynamo.bytecode.disassemble import localsplus_names
from fxloom_dynamo.guard.entries import INPUTS_LOCAL
from fxloom_dynamo.guard.guards import Guard, GuardKind, TensorProperties, identity_guard
from fxloom_dynamo.guard.tree import FrameNames, build_tree
from fxloom_interfaces.sources import (
    AttrSource,
    ClosureSource,
    DictItemSource,
    GlobalsSource,
    InstanceDictSource,
    LocalSource,
    SequenceItemSource,
)


def returns_inputs(code: types.CodeType, tag: Any) -> types.CodeType:
    """Code with `code`'s signature that returns `(tag, inputs)`."""
    body = disassemble(code)
    start = next(i for i, inst in enumerate(body.instructions) if inst.opname == "RESUME") + 1
    body.instructions[start:] = [
        *snippets.load_const(tag),
        *snippets.load_fast(INPUTS_LOCAL),
        *snippets.build_tuple(2),
        *snippets.return_value(),
    ]
    body.regions = []
    return assemble(body, code, varnames=(*code.co_varnames, INPUTS_LOCAL))


class Harness:
    """A region that installs `returns_inputs` entries with given guards and inputs on every miss."""

    def __init__(self, function: types.FunctionType, make: Any) -> None:
        self.misses: list[Any] = []
        self.make = make
        self.target = function.__code__
        # as in the runtime: the native region must not keep its owner alive
        this = weakref.ref(self)
        self.region = _native.Region(lambda view, failures: this().on_miss(view, failures))
        self.call = _native.CompiledCallable(function, self.region)

    def on_miss(self, view: Any, failures: Any) -> bool | None:
        code = view[0]
        if code is not self.target:
            return None
        self.misses.append([guard for _, guard in failures])
        guards, inputs = self.make(view)
        replacement = returns_inputs(code, len(self.misses))
        slot = localsplus_names(replacement).index(INPUTS_LOCAL)
        tree = build_tree(guards, inputs, FrameNames.of(code))
        self.region.install(code, replacement, tree, slot, guards)
        return False


X = LocalSource("x")


def test_hit_runs_replacement_with_inputs() -> None:
    def f(x: Any, *rest: Any, key: int = 3, **more: Any) -> Any:
        return x

    inputs = (X, LocalSource("key"), SequenceItemSource(LocalSource("rest"), 1), DictItemSource(LocalSource("more"), "z"))
    harness = Harness(f, lambda view: ((Guard(X, GuardKind.TYPE, type(view[2]["x"])),), inputs))
    assert harness.call(1, 2, 5, z=7) == (1, (1, 3, 5, 7))
    assert harness.call(2, 3, 4, z=6, key=9) == (1, (2, 9, 4, 6))
    assert harness.misses == [[]]
    assert harness.call("a", 3, 4, z=6) == (2, ("a", 3, 4, 6))  # a new entry, since the type guard fails
    assert f(5) == 5  # outside the region nothing changes
    assert harness.misses == [[], [0]]


def test_closure_globals_and_instance_dict_are_read_at_entry() -> None:
    captured = [1]
    thing = types.SimpleNamespace(weight=[10, 20])

    def f(x: Any) -> Any:
        return x, captured, sys

    sources = (
        ClosureSource("captured"),
        DictItemSource(GlobalsSource(), "sys"),
        SequenceItemSource(DictItemSource(InstanceDictSource(X), "weight"), 1),
        AttrSource(X, "weight"),
    )
    harness = Harness(f, lambda view: ((), sources))
    assert harness.call(thing) == (1, (captured, sys, 20, [10, 20]))
    captured = [2]
    assert harness.call(thing)[1][0] == [2]
    assert len(harness.misses) == 1


def call(function: Any, guards: Any, *args: Any) -> int:
    """The first guard that fails for a call of `function`, -1 when all hold."""
    code = function.__code__
    tree = build_tree(guards, (), FrameNames.of(code))
    return tree.check(list(args), function.__closure__ or (), function.__globals__, __builtins__, function)


def two(x: Any, y: Any) -> None: ...


KINDS: list[tuple[GuardKind, Any, Any, Any]] = [
    (GuardKind.EQUALITY, 1, 1, True),
    (GuardKind.EQUALITY, 0.0, 0.0, -0.0),
    (GuardKind.EQUALITY, float("nan"), float("nan"), 1.0),
    (GuardKind.EQUALITY, (1, (2.0,)), (1, (2.0,)), (1, (2,))),
    (GuardKind.EQUALITY, torch.float32, torch.float32, torch.float64),
    (GuardKind.TYPE, list, [1], (1,)),
    (GuardKind.LENGTH, 2, [1, 2], [1]),
    (GuardKind.DICT_KEYS, ("a", "b"), {"a": 1, "b": 2}, {"b": 1, "a": 2}),
    (GuardKind.CONTAINS, ("a", True), {"a": 1}, {}),
    (GuardKind.CONTAINS, (3, False), {1, 2}, {3}),
    (GuardKind.HAS_ATTRIBUTE, ("real", True), 1, []),
    (GuardKind.TRUTH, True, [1], []),
    (GuardKind.FUNCTION_CODE, two.__code__, two, call),
    (GuardKind.IDENTITY, None, None, 0),
]


@pytest.mark.parametrize(("kind", "expected", "good", "bad"), KINDS, ids=lambda v: getattr(v, "value", None))
def test_guard_kinds_hold_and_fail(kind: GuardKind, expected: Any, good: Any, bad: Any) -> None:
    guards = (Guard(X, kind, expected),)
    assert call(two, guards, good, None) == -1
    assert call(two, guards, bad, None) == 0


def test_tensor_guard_sees_every_property() -> None:
    base = torch.randn(4, 3)
    guards = (Guard(X, GuardKind.TENSOR, TensorProperties.of(base)),)
    assert call(two, guards, torch.zeros(4, 3), None) == -1
    others = [
        torch.zeros(4, 4), torch.zeros(4, 3).double(), torch.zeros(3, 4).t(), torch.zeros(4, 3, requires_grad=True),
        torch.nn.Parameter(torch.zeros(4, 3), requires_grad=False), torch.zeros(4, 3, device="meta"), torch.zeros(4),
        torch.zeros(4, 3).to_sparse(), None, "x",
    ]  # fmt: skip
    for other in others:
        assert call(two, guards, other, None) == 0, other
    dynamic = (Guard(X, GuardKind.TENSOR, TensorProperties.of(base, frozenset({0}))),)
    assert call(two, dynamic, torch.zeros(9, 3), None) == -1
    assert call(two, dynamic, torch.zeros(9, 4), None) == 0


def test_relations() -> None:
    a, b = torch.zeros(3), torch.zeros(3)
    same = (Guard(X, GuardKind.SAME_OBJECT, (LocalSource("y"),)),)
    distinct = (Guard(X, GuardKind.DISTINCT_OBJECTS, (LocalSource("y"),)),)
    storages = (Guard(X, GuardKind.DISTINCT_STORAGES, (LocalSource("y"),)),)
    assert (call(two, same, a, a), call(two, same, a, b)) == (-1, 0)
    assert (call(two, distinct, a, a), call(two, distinct, a, b)) == (0, -1)
    assert (call(two, storages, a, a[1:]), call(two, storages, a, b)) == (0, -1)


def test_global_state_guard() -> None:
    from fxloom_dynamo.guard.guards import global_state_guard
    from fxloom_dynamo.guard.messages import explain

    guard = global_state_guard()
    assert call(two, (guard,), 1, 2) == -1
    with torch.no_grad():
        assert call(two, (guard,), 1, 2) == 0
        assert "grad_mode" in explain(guard, None)
    with torch.autocast("cpu"):
        assert call(two, (guard,), 1, 2) == 0
    with torch.inference_mode():
        assert call(two, (guard,), 1, 2) == 0
    assert call(two, (guard,), 1, 2) == -1


def test_identity_guard_does_not_keep_objects_alive() -> None:
    class Thing:
        pass

    thing = Thing()
    guard = identity_guard(X, thing)
    assert call(two, (guard,), thing, None) == -1
    assert call(two, (guard,), Thing(), None) == 0
    gone = weakref.ref(thing)
    del thing
    gc.collect()
    assert gone() is None
    assert call(two, (guard,), None, None) == 0


def test_a_value_that_is_gone_is_a_failed_guard() -> None:
    guard = Guard(DictItemSource(AttrSource(X, "table"), "k"), GuardKind.EQUALITY, 1)
    assert call(two, (guard,), types.SimpleNamespace(table={"k": 1}), None) == -1
    assert call(two, (guard,), types.SimpleNamespace(table={}), None) == 0
    assert call(two, (guard,), types.SimpleNamespace(), None) == 0


def test_dropping_the_callable_frees_entries() -> None:
    class Thing:
        pass

    def f(x: Any) -> Any:
        return x

    token = Thing()
    gone = weakref.ref(token)

    def make(view: Any, token: Any = token) -> Any:
        return (Guard(X, GuardKind.TYPE, int),), (X,)

    harness = Harness(f, make)
    harness.region.install(
        f.__code__, returns_inputs(f.__code__, token), build_tree((), (X,), FrameNames.of(f.__code__)),
        localsplus_names(returns_inputs(f.__code__, token)).index(INPUTS_LOCAL), None,
    )  # fmt: skip
    assert harness.call(1)[0] is token
    del harness, make, token
    gc.collect()
    assert gone() is None
    assert f(2) == 2


def test_errors_of_the_callback_reach_the_caller() -> None:
    def f(x: Any) -> Any:
        return x

    def fail(view: Any, failures: Any) -> Any:
        raise KeyError("from the callback")

    compiled = _native.CompiledCallable(f, _native.Region(fail))
    with pytest.raises(KeyError, match="from the callback"):
        compiled(1)
    assert not _native.in_region()
    assert f(1) == 1


def test_recursion_limit_is_the_interpreters() -> None:
    def deep(n: int) -> int:
        return 0 if n == 0 else 1 + deep(n - 1)

    compiled = _native.CompiledCallable(deep, _native.Region(lambda view, failures: None))
    room = sys.getrecursionlimit() - len(__import__("inspect").stack()) - 30
    assert compiled(room) == room
    with pytest.raises(RecursionError):
        compiled(sys.getrecursionlimit() + 10)


def test_frames_without_room_are_called_instead() -> None:
    """Large frames at growing depth meet the end of a data stack chunk sooner or later."""

    def f(x: Any, depth: int) -> Any:
        return x

    harness = Harness(f, lambda view: ((), (X, LocalSource("depth"))))

    def nest(depth: int) -> Any:
        return harness.call("v", depth) if depth == 0 else nest(depth - 1)

    before = _native.full_chunks()
    for depth in range(400):
        assert nest(depth) == (1, ("v", 0))
    assert _native.full_chunks() > before


def test_uncaptured_switches_the_region_off() -> None:
    seen: list[bool] = []

    def inner() -> None:
        seen.append(_native.in_region())

    off = _native.Uncaptured(inner)

    def f() -> None:
        inner()
        off()
        inner()

    _native.CompiledCallable(f, _native.Region(lambda view, failures: None))()
    assert seen == [True, False, True]
    assert not _native.in_region()


def test_threads_have_their_own_region() -> None:
    def f(x: Any) -> Any:
        return x

    harness = Harness(f, lambda view: ((), (X,)))
    outside: list[Any] = []

    def run() -> None:
        for _ in range(1000):
            outside.append(f(3))

    thread = threading.Thread(target=run)
    thread.start()
    inside = [harness.call(4) for _ in range(1000)]
    thread.join()
    assert set(outside) == {3}
    assert set(inside) == {(1, (4,))}


def test_callable_binds_as_a_method() -> None:
    def f(self: Any, x: Any) -> Any:
        return x

    harness = Harness(f, lambda view: ((), (LocalSource("self"), X)))

    class Owner:
        method = harness.call

    owner = Owner()
    assert owner.method(2) == (1, (owner, 2))


def test_a_million_hits_do_not_grow() -> None:
    import resource

    def f(x: Any) -> Any:
        return x

    harness = Harness(f, lambda view: ((Guard(X, GuardKind.TYPE, int),), (X,)))
    for _ in range(10_000):
        harness.call(1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refs = sys.getrefcount(X)
    for _ in range(1_000_000):
        harness.call(1)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2048  # KiB
    assert sys.getrefcount(X) == refs
