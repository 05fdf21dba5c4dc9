"""Everything that a program read is changed, one thing at a time; the captured program has to follow (fxloom_dynamo.testing)."""

from __future__ import annotations

import collections
import copy
import dataclasses
import enum
import functools
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

import fxloom_dynamo.guard.guards
from fxloom_dynamo.guard.guards import Guard, GuardKind
from fxloom_dynamo.perturbation.comparison import same
from fxloom_dynamo.testing import Program, perturb
from fxloom_interfaces.sources import CallSource, LocalSource

MAKERS: dict[str, Callable[[], Program]] = {}


def program(make: Callable[[], Program]) -> Callable[[], Program]:
    MAKERS[make.__name__] = make
    return make


SCALE = 2
ROWS = [1, 2, 3]
TABLE = {"gain": 1.5, "bias": 2}
SHARED = ROWS


def helper(x: Any, by: Any = 2, *, off: float = 1.0) -> Any:
    return x * by + off


class Kind(enum.Enum):
    SUM = 1
    MEAN = 2


class Point(NamedTuple):
    left: int
    right: float


@dataclasses.dataclass
class Options:
    width: int = 3
    kind: Kind = Kind.SUM
    names: list[str] = dataclasses.field(default_factory=lambda: ["a", "bc"])


class Doubled:
    """A data descriptor."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = f"_{name}"

    def __get__(self, obj: Any, owner: type) -> Any:
        return getattr(obj, self.name) * 2

    def __set__(self, obj: Any, value: Any) -> None:
        setattr(obj, self.name, value)


class Base:
    factor = 3
    twice = Doubled()

    def __init__(self) -> None:
        self.twice = 2
        self.parts = {"a": [1, 2]}

    @property
    def area(self) -> int:
        return self.factor * self.twice

    @classmethod
    def offset(cls) -> int:
        return cls.factor + 1

    @staticmethod
    def shift(x: Any) -> Any:
        return x - 1

    def apply(self, x: Any) -> Any:
        return x * self.area

    def __len__(self) -> int:
        return len(self.parts)

    def __getattr__(self, name: str) -> Any:
        if name == "made_up":
            return 4
        raise AttributeError(name)


class Derived(Base):
    def apply(self, x: Any) -> Any:
        return super().apply(x) + self.offset()


@program
def module() -> Program:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.linear = torch.nn.Linear(3, 3)
            self.dropout = torch.nn.Dropout(0.5)
            self.extra = None
            self.blocks = torch.nn.ModuleDict({"a": torch.nn.ReLU(), "b": torch.nn.Identity()})
            self.register_buffer("shift", torch.ones(3))

        def forward(self, x: Any) -> Any:
            y = self.dropout(self.linear(x))
            for block in self.blocks.values():
                y = block(y)
            if self.extra is not None:
                y = y + self.extra
            return y * 2 if self.training else y + self.shift

    return Net().eval(), (torch.ones(2, 3),)


@program
def globals_and_functions() -> Program:
    def f(x: Any) -> Any:
        for row in ROWS:
            x = helper(x, off=row)
        if SHARED is ROWS:
            x = x + 1
        return x * SCALE * TABLE["gain"], len(TABLE), list(TABLE), helper.__name__

    return f, (torch.ones(2),)


@program
def closures() -> Program:
    scale, names = 2.5, ["a"]
    state = {"calls": 0}

    def inner(x: Any) -> Any:
        return x * scale + len(names)

    def f(x: Any, more: Any = (1, 2)) -> Any:
        state["seen"] = "yes"
        return inner(x) + sum(more), functools.reduce(lambda a, b: a + b, more)

    return f, (torch.ones(2),)


@program
def classes() -> Program:
    thing = Derived()

    def f(x: Any) -> Any:
        y = thing.apply(x) + len(thing) + thing.made_up
        y = Derived.shift(y) if isinstance(thing, Base) else y
        return y, hasattr(thing, "more"), getattr(thing, "missing", 5), bool(thing), type(thing).__name__

    return f, (torch.ones(2),)


@program
def plain_data() -> Program:
    def f(x: Any, options: Options, point: Point, table: Any) -> Any:
        y = x * options.width if options.kind is Kind.SUM else x
        for i, name in enumerate(options.names):
            y = y + i * len(name)
        for key in table:
            y = y + len(key) * table[key]
        return y * point.left + point.right, "a" in table, {v: k for k, v in table.items()}

    return f, (torch.ones(2), Options(), Point(1, 2.0), collections.OrderedDict(a=1, bb=2))


@program
def containers() -> Program:
    queue, members = collections.deque([1, 2], maxlen=4), {1, 2}
    counts: Any = collections.defaultdict(int, a=1)
    both = [1]
    nested = {"left": both, "right": both}

    def f(x: Any, items: list[Any]) -> Any:
        items.append(len(items))
        for value in queue:
            x = x + value
        nested["left"].append(2)
        return x * len(members) + sum(nested["right"]), counts["b"], 1 in members, items[-1]

    return f, (torch.ones(2), [1, 2])


@program
def tensors() -> Program:
    def f(a: Any, b: Any) -> Any:
        a.add_(1)
        c = a + b
        if a.requires_grad or a.dtype is torch.float64 or a.dim() == 2 or not a.is_contiguous():
            c = c * 2
        return c, torch.is_grad_enabled(), torch.ones(2) if c.shape[0] == 2 else None

    return f, (torch.ones(2), torch.zeros(2))


@program
def tensors_of_one_name() -> Program:
    def f(x: Any) -> Any:
        return x.sin() if x.shape[0] == 2 else x.cos()

    return f, (torch.ones(2),)


@program
def breaks() -> Program:
    weights = [1.0, 2.0]

    def f(x: Any, table: Any) -> Any:
        y = x * weights[0]
        table["n"] = len(table)
        if y.sum() > 0:
            y = y + SCALE
        weights_now = [w * 2 for w in weights]
        return y * weights_now[1], table["n"]

    return f, (torch.ones(2), {"a": 1})


@program
def partials_and_methods() -> Program:
    thing = Derived()
    bound = thing.apply
    partial = functools.partial(helper, by=3)

    def f(x: Any) -> Any:
        return partial(bound(x)) + partial.keywords["by"]

    return f, (torch.ones(2),)


@program
def exceptions() -> Program:
    table: dict[str, Any] = {"a": 1}

    def f(x: Any) -> Any:
        try:
            x = x * table["b"]
        except KeyError as error:
            x = x + len(error.args)
        try:
            x = x + table["a"].missing
        except AttributeError:
            x = x - 1
        return x

    return f, (torch.ones(2),)


#: Changes tried in every run; the rest are `slow`.
QUICK = 25
#: Calls after which guards that held are checked by comparing what they read (native/guard_tape.h).
HELD = 4


@pytest.mark.parametrize("name", MAKERS)
def test_a_sample_of_changes(name: str) -> None:
    report = perturb(MAKERS[name], limit=QUICK, calls=HELD)
    assert not report.wrong, report
    assert report.fired and len(report.findings) > QUICK / 2


@pytest.mark.slow
@pytest.mark.parametrize("calls", [1, HELD])
@pytest.mark.parametrize("name", MAKERS)
def test_every_change(name: str, calls: int) -> None:
    report = perturb(MAKERS[name], calls=calls)
    assert not report.wrong, report
    assert report.fired > 15


def test_a_missing_guard_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tool itself can fail: without guards on equality, changed numbers go unnoticed.

    Those on how far an iterator is stay: without them a loop would not end.
    """
    build = fxloom_dynamo.guard.tree.build_tree

    def without(guards: Any, inputs: Any, names: Any) -> Any:
        kept = [guard for guard in guards if guard.kind is not GuardKind.EQUALITY or isinstance(guard.source, CallSource)]
        return build(kept, inputs, names)

    monkeypatch.setattr("fxloom_dynamo.code_cache.misses.build_tree", without)
    report = perturb(MAKERS["globals_and_functions"])
    assert any("TABLE" in finding.change or "'gain'" in finding.change for finding in report.wrong)
    assert "no guard fired" in str(report)


def _asks_for_an_attribute() -> Any:
    return (lambda x: x + getattr(x, "extra", 0)), (torch.ones(2),)


def _asks_a_parameter() -> Any:
    model = torch.nn.Linear(2, 2)
    return (lambda x: x + sum(hasattr(p, "extra") for p in model.parameters())), (torch.ones(2),)


def _asks_a_namespace() -> Any:
    names = types.SimpleNamespace(number=1)
    return (lambda x: x + names.number + getattr(names, "extra", 0)), (torch.ones(2),)


def _reads_an_exception() -> Any:
    error = ValueError("a", 1)
    return (lambda x: (x + error.args[1], str(error))), (torch.ones(2),)


def _asks_torch() -> Any:
    return (lambda x: (x + torch.backends.cudnn.benchmark, torch.get_float32_matmul_precision())), (torch.ones(2),)


def _inherits() -> Any:
    class Base:
        number = 1

    class Child(Base):
        pass

    child = Child()
    return (lambda x: x * child.number), (torch.ones(2),)


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (_asks_for_an_attribute, ".extra: set"),
        (_asks_a_parameter, ".extra: set"),
        (_asks_a_namespace, ".extra: set"),
        (_reads_an_exception, ".args: one more"),
        (_asks_torch, "cuDNN benchmark: flipped"),
        (_asks_torch, "precision of float32 products: high"),
        (_inherits, "another base, with another number"),
    ],
)
def test_what_no_object_holds_is_changed_too(make: Any, change: str) -> None:
    report = perturb(make)
    assert not report.wrong, report
    assert [finding.captures for finding in report.findings if change in finding.change][:1] == [1]


def test_changes_are_undone() -> None:
    before = copy.deepcopy((SCALE, ROWS, TABLE, helper.__defaults__, helper.__kwdefaults__, set(vars(Base))))
    code = helper.__code__
    for name in ("globals_and_functions", "classes"):
        perturb(MAKERS[name], limit=60)
    assert before == (SCALE, ROWS, TABLE, helper.__defaults__, helper.__kwdefaults__, set(vars(Base)))
    assert helper.__code__ is code and SHARED is ROWS
    assert torch.get_default_dtype() is torch.float32 and torch.is_grad_enabled()


def test_a_program_that_is_left_to_eager_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    build = fxloom_dynamo.guard.tree.build_tree

    def failing(guards: Any, inputs: Any, names: Any) -> Any:
        never = Guard(LocalSource("x"), GuardKind.EQUALITY, "never")
        return build([never, *guards[1:]], inputs, names)

    monkeypatch.setattr("fxloom_dynamo.code_cache.misses.build_tree", failing)
    monkeypatch.setattr("fxloom_dynamo.code_cache.misses.explain", lambda guard, view: "it was made to fail")
    with pytest.raises(AssertionError, match="in eager from now on"):
        perturb(MAKERS["tensors_of_one_name"])


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        (torch.ones(2), torch.ones(2), True),
        (torch.ones(2), torch.ones(2).double(), False),
        (torch.ones(2), torch.ones(2, requires_grad=True), False),
        (torch.ones(2, 3), torch.ones(3, 2).t(), False),
        (torch.tensor(float("nan")), torch.tensor(float("nan")), True),
        ([1, {"a": (2.0,)}], [1, {"a": (2.0,)}], True),
        ([1], (1,), False),
        (1, True, False),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, False),
        (Options(), Options(width=4), False),
        (Derived(), Derived(), True),
    ],
)
def test_same(left: Any, right: Any, equal: bool) -> None:
    assert same(left, right) is equal
