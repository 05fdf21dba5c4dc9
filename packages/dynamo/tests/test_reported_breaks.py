"""Programs after reports of needless breaks: eager's answer, in as few graphs as the program means, without a break."""

import copy
import dataclasses
import functools
import threading
from collections import Counter

import pytest
import torch
from counted import compare, compared
from torch import nn

from fxloom_dynamo import disable, optimize


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.asked = 0

    @functools.cached_property
    def scale(self):
        self.asked += 1
        return torch.full((2,), 3.0)

    def forward(self, x):
        return x * self.scale + self.scale


def caches_a_property(compiled):
    module = Scaled()
    run = compiled(module)
    return [run(torch.ones(2)).tolist() for _ in range(3)], module.asked, "scale" in vars(module)


@functools.singledispatch
def describe(value):
    return "something"


@describe.register
def _(value: int):
    return "a number"


@describe.register(list)
def _(value):
    return "a list"


class Shop:
    @functools.singledispatchmethod
    def price(self, item):
        return 1.0

    @price.register
    def _(self, item: torch.Tensor):
        return item * 2


def dispatches_on_a_class(compiled):
    run = compiled(lambda x: (x + 1, describe(True), describe([]), describe("text"), Shop().price(x), Shop().price(3)))
    first = [str(item) for item in run(torch.ones(2))]
    describe.register(str)(lambda value: "a text")
    second = [str(item) for item in run(torch.ones(2))]
    describe.registry  # noqa: B018  # a read-only view: what was registered is taken back below
    describe.register(str)(lambda value: "something")
    return first, second


def sets_deletes_and_looks_again(compiled):
    class Holder:
        pass

    def program(x, holder):
        holder.t = x
        y = holder.t + 1
        del holder.t
        try:
            holder.t  # noqa: B018  # raises
        except AttributeError:
            y = y * 2
        holder.t = x
        return y

    def deletes(x, names):
        names["k"] = x
        del names["k"]
        return x + 1, "k" in names

    run, holder = compiled(program), Holder()
    holder.first = 0
    found = [run(torch.ones(2), holder).tolist() for _ in range(3)]
    other = Holder()
    other.t, other.last = 1, 2
    found.append(run(torch.ones(2), other).tolist())
    run = compiled(deletes)
    names = [{}, {"k": 1, "l": 2}, {}]
    found += [str(run(torch.ones(1), given)) for given in names]
    return found, list(vars(holder)), list(vars(other)), names


class Anything(type):
    def __getattr__(cls, name):
        return f"{cls.__name__}.{name}"


class Eager(metaclass=Anything):
    def __init__(self, x):
        self.x = x


def has_a_metaclass_that_answers_everything(compiled):
    def program(x, given):
        made = Eager(x + 1)
        return made.x * given.x, made, Eager.nothing

    y, made, text = compiled(program)(torch.ones(2), Eager(torch.ones(2)))
    return y.tolist(), type(made), made.x.tolist(), text


helper = optimize("eager")(lambda x: x * 2)


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = optimize("eager")(nn.Linear(2, 2))
        self.layers = nn.ModuleList([self.inner, nn.ReLU()])

    def forward(self, x):
        self.inner.calls = getattr(self.inner, "calls", 0) + 1
        for layer in self.layers:
            x = layer(x)
        return x + self.inner.weight.sum() + self.inner.in_features


def calls_what_is_compiled(compiled):
    module = Inner()
    run = compiled(lambda x: helper(module(x)) + 1)
    found = [run(torch.ones(2)).tolist() for _ in range(2)]
    module.inner._orig_mod.register_forward_hook(lambda module, args, result: result * 3)
    return [*found, run(torch.ones(2)).tolist()], module.inner._orig_mod.calls


class Decorated(nn.Module):
    """Its methods are compiled one by one."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.plus = optimize("eager")(lambda x: x + 1)

    @optimize("eager")
    def forward(self, x):
        return self.half(self.linear(x)) + self.kind(x) + self.ones(x)

    @optimize("eager", fullgraph=True)
    def half(self, x):
        return self.plus(x) / 2

    @classmethod
    @optimize("eager")
    def kind(cls, x):
        return x * len(cls.__name__)

    @staticmethod
    @optimize("eager")
    def ones(x):
        return torch.ones_like(x)


def calls_compiled_methods(compiled):
    module = Decorated()
    whole = nn.Sequential(module, nn.ReLU())
    bound = optimize("eager")(module.half)
    run = compiled(lambda x: (whole(x), bound(x), Decorated.ones(x), module.half is module.half))
    return [str(run(torch.ones(2))) for _ in range(2)]


class Shared:
    state = {}

    def __init__(self):
        self.__dict__ = Shared.state


def shares_a_dict(compiled):
    Shared.state.clear()
    one, two = Shared(), Shared()
    one.n = 1

    def program(x, one, two):
        one.n += 1
        return x + two.n

    return [compiled(program)(torch.ones(1), one, two).tolist() for _ in range(2)], one.n, two.n


class Logged(torch.Tensor):
    """Notes what is called, as text where it has no name."""

    calls = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.calls.append(getattr(func, "__name__", str(func)))
        return super().__torch_function__(func, types, args, kwargs or {})


def notes_functions_by_name(compiled):
    Logged.calls.clear()
    run = compiled(lambda x: (x * 2 + 1, x.shape, torch.relu(x).sum(), x.dtype, str(torch.Tensor.add), str(notes_functions_by_name)))
    found = [[str(part.as_subclass(torch.Tensor) if isinstance(part, Logged) else part) for part in run(x)] for x in two_logged()]
    return found, list(Logged.calls)


def two_logged():
    return [torch.ones(2).as_subclass(Logged) for _ in range(2)]


def logs_in_a_transform(compiled):
    log, scale = [], [2.0]

    def loss(x):
        log.append(tuple(x.shape))
        return (x * scale[0]).sum()

    run, found = compiled(lambda x: torch.func.vmap(torch.func.grad(loss))(x) + len(log)), []
    for value in (2.0, 2.0, 5.0):
        scale[0] = value
        log.clear()
        found.append((run(torch.ones(2, 3)).tolist(), list(log)))
    return found


class Slots:
    __slots__ = ("one", "two")


def looks_for_an_empty_slot(compiled):
    def program(x, slots):
        try:
            return x * slots.two, hasattr(slots, "one")
        except AttributeError as error:
            return x * slots.one, str(error)

    run, slots, found = compiled(program), Slots(), []
    slots.one = 2
    for change in (lambda: None, lambda: setattr(slots, "two", 50), lambda: delattr(slots, "two")):
        change()
        found.append(str(run(torch.ones(2), slots)))
    return found


PROGRAMS = [
    (caches_a_property, 2), (dispatches_on_a_class, 2), (sets_deletes_and_looks_again, 5), (has_a_metaclass_that_answers_everything, 1),
    (calls_what_is_compiled, 3), (calls_compiled_methods, 1),
    (shares_a_dict, 2), (notes_functions_by_name, 2),
    (logs_in_a_transform, 2), (looks_for_an_empty_slot, 2),
]  # fmt: skip


@pytest.mark.parametrize(("program", "graphs"), PROGRAMS, ids=lambda value: getattr(value, "__name__", ""))
def test_it_is_captured_without_a_break(program, graphs):
    compare(program, graphs)


def test_a_function_that_keeps_a_tensor_of_a_transform_is_a_break():
    """In eager it is a wrapped one, which a graph does not have."""
    kept = []

    def loss(x):
        kept.append(x)
        return x.sum()

    def program(compiled):
        kept.clear()
        return compiled(lambda x: torch.func.grad(loss)(x) + 1)(torch.ones(2)).tolist(), len(kept)

    count = compared(program)
    assert len(count.breaks) == 1 and "changes an object" in count.breaks[0]
    assert not [frame for frame in count.frames if "loss" in frame.info.name]


class Wrapped(torch.Tensor):
    """A wrapper subclass, whose operators arrive beneath autograd."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        result = func(*[arg.inner if isinstance(arg, Wrapped) else arg for arg in args], **(kwargs or {}))
        return Wrapped(result) if isinstance(result, torch.Tensor) else result


def test_what_the_dispatcher_calls_is_not_captured():
    def program(compiled):
        result = compiled(lambda x: x * 2 + 1)(Wrapped(torch.ones(2)))
        return type(result), result.inner.tolist()

    count = compared(program)
    assert not [frame.info.name for frame in count.frames if "__torch_dispatch__" in frame.info.name]
    assert all("a tensor of type Wrapped, whose operators are Python code" in text for text in count.breaks)


LOCK = threading.RLock()


def test_a_lock_that_was_there_before_is_a_break_that_says_so():
    def program(x):
        with LOCK:
            return x + 1

    count = compared(lambda compiled: compiled(program)(torch.ones(2)).tolist())
    assert len(count.breaks) == 2  # where it is entered and left
    assert "enters a lock (RLock)" in count.breaks[0] and all("with LOCK:" in text for text in count.breaks)


class Partly:
    @disable
    def outside(self, x):
        return x * 2

    def __call__(self, x):
        return self.outside(x + 1) + 1


def test_a_disabled_method_is_one_break_by_its_name():
    count = compared(lambda compiled: compiled(Partly().__call__)(torch.ones(2)).tolist())
    assert len(count.breaks) == 1 and "Partly.outside is not to be captured" in count.breaks[0]
    assert count.graphs == 2


class Holder:
    def __init__(self, value):
        self.value = value
        self.items = [1]


@dataclasses.dataclass
class Pair:
    left: int = 1
    right: object = None


def copies_an_instance(compiled):
    def program(held, x):
        made = copy.copy(Holder(x + 1))
        other = copy.copy(held)
        other.extra = 2
        return made.value, other.items is held.items, hasattr(held, "extra"), type(other) is Holder, other.value

    return str(compiled(program)(Holder(5), torch.ones(2)))


def copies_a_module(compiled):
    def program(module, x):
        other = copy.copy(module)
        other.training = False
        return other(x), module.training, other.training

    return str(compiled(program)(nn.Dropout(0.5), torch.ones(2)))


def counts_by_keywords(compiled):
    def program(x):
        counts = Counter(a=3)
        counts.update({"b": 1}, a=1)
        return counts, x + 1

    return str(compiled(program)(torch.ones(2)))


def shows_a_dataclass(compiled):
    def program(x):
        pair = Pair(3)
        pair.right = [pair]
        return repr(pair), f"{Pair(right=Pair())}", x + 1

    return str(compiled(program)(torch.ones(2)))


@pytest.mark.parametrize(
    "program", [copies_an_instance, copies_a_module, counts_by_keywords, shows_a_dataclass], ids=lambda program: program.__name__
)
def test_library_code_between_a_program_and_its_objects(program):
    compare(program, 1)
