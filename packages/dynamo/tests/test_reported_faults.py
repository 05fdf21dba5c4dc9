"""Programs after public bug reports about capture, and others of their kinds: stale code, wrong values, wrong flags."""

import dataclasses
import enum
import inspect
import itertools
import sys
import types
from collections import deque

import pytest
import torch

from fxloom_dynamo import optimize

TABLE = [1, 2, 3]


def first_helper(x):
    return x + 100


helper = first_helper


class Knobs:
    gain = 1.0
    names = {"low": 2.0}


def same(program, *calls, between=None, fullgraph=True):
    """Compare each call with eager, one compiled callable for all."""
    compiled = optimize(fullgraph=fullgraph)(program)
    for number, args in enumerate(calls):
        if between is not None:
            between(number)
        expected, got = program(*args), compiled(*args)
        expected, got = (value if isinstance(value, tuple) else (value,) for value in (expected, got))
        assert len(expected) == len(got)
        for one, other in zip(expected, got, strict=True):
            assert type(one) is type(other)
            if isinstance(one, torch.Tensor):
                assert torch.equal(one, other)
                assert one.requires_grad == other.requires_grad
            else:
                assert one == other


def doubling(queue, upto):
    for item in queue:
        if len(queue) < upto:
            queue.append(item * 2)
        yield item


def popping(queue):
    for item in queue:
        if len(queue) > 2:
            queue.pop()
        yield item


@pytest.mark.parametrize("walk", [lambda xs: doubling(xs, 4), popping], ids=["grows", "shrinks"])
def test_a_list_changes_while_it_is_walked(walk):
    same(lambda x: torch.stack(list(walk([x.mean(), x.sum(), x.amax()]))), (torch.tensor([1.0, 3.0]),))


@pytest.mark.parametrize("size", [lambda x: x.amax(1, keepdim=True).size(), lambda x: x.shape[:1], lambda x: torch.Size([2])])
def test_the_legacy_constructor_takes_a_size_as_a_shape(size):
    same(lambda x: torch.Tensor(size(x)).fill_(1.5), (torch.arange(12.0).view(3, 4),))


@pytest.mark.parametrize(
    "make",
    [reversed, iter, lambda xs: iter(tuple(xs)), lambda xs: map(torch.neg, xs), lambda xs: itertools.islice(xs, 3), lambda xs: zip(xs)],
    ids=["reversed", "list", "tuple", "map", "islice", "zip"],
)
def test_iter_of_a_half_used_iterator_goes_on(make):
    def program(x):
        it = make([x, x * 10, x * 100])
        parts = [next(it), next(iter(it)), next(iter(it))]
        parts = [part[0] if isinstance(part, tuple) else part for part in parts]
        return parts[0] - parts[1] + parts[2]

    same(program, (torch.tensor([1.0, 2.0]),))


@pytest.mark.parametrize(
    "change",
    [lambda y: y.detach_(), lambda y: y.detach().requires_grad_(), lambda y: y.data, lambda y: y.detach()],
    ids=["detach_", "requires_grad_", "data", "detach"],
)
def test_flags_of_gradients_are_those_of_eager(change):
    def program(x):
        y = torch.exp(x)
        z = change(y)
        return y * x, int(y.requires_grad), int(z.requires_grad), z

    same(program, (torch.ones(3, requires_grad=True),), fullgraph=False)


def test_a_global_function_is_rebound(monkeypatch):
    def between(number):
        monkeypatch.setitem(globals(), "helper", first_helper if number == 0 else (lambda x: x - 1))

    same(lambda x: helper(x) * 2, *[(torch.ones(3),)] * 3, between=between)


def test_default_arguments_are_replaced(monkeypatch):
    def scaled(x, factor=2.0, *, shift=1.0):
        return x * factor + shift

    def between(number):
        scaled.__defaults__ = (2.0 + number,)
        scaled.__kwdefaults__["shift"] = 1.0 - number

    same(lambda x: scaled(x), *[(torch.ones(3),)] * 3, between=between)


def test_an_argument_is_the_list_that_a_global_names():
    one = torch.ones(2)
    lists = [TABLE, [3, 2, 1], [7, 8], [5, 5, 5, 9], TABLE]
    same(lambda items, x: x * TABLE[-1] + items[-1], *[(items, one) for items in lists])


def test_an_argument_is_the_deque_of_another_argument():
    shared = deque([1, 2])
    calls = [(shared, shared), (shared, deque([1, 2])), (deque([1, 2]), shared)]
    same(lambda left, right, x=torch.ones(1): x * (left is right) + left[0] * right[-1], *calls)


def test_class_attributes_change(monkeypatch):
    def between(number):
        monkeypatch.setattr(Knobs, "gain", (1.0, 10.0, 0.25)[number])
        monkeypatch.setitem(Knobs.names, "low", float(number))

    same(lambda x: x * Knobs.gain + Knobs.names["low"], *[(torch.tensor([4.0]),)] * 3, between=between)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(3, 2)
        self.both = True

    def forward(self, x):
        y = torch.nn.functional.dropout(self.lin(x), 1.0, self.training)
        return (y, x) if self.both else y


def test_flags_of_a_module_flip():
    net = Net()

    def between(number):
        net.both = number != 1
        net.train(number == 2)

    compiled = optimize(fullgraph=True)(net)
    x = torch.ones(1, 3)
    for number in (0, 1, 2, 0):
        between(number)
        expected, got = net(x), compiled(x)
        assert isinstance(got, tuple) == isinstance(expected, tuple) == (number != 1)
        assert torch.equal(expected[0], got[0])


@pytest.mark.parametrize("make", [lambda: torch.nn.LazyConv1d(4, 3), lambda: torch.nn.LazyLinear(4)], ids=["conv", "linear"])
def test_a_lazy_module_as_an_argument_makes_its_parameters(make):
    x = torch.randn(2, 3, 8)

    def program(module, x):
        return module(x) * 2

    results = []
    for call in (program, optimize()(program)):
        torch.manual_seed(0)
        module = make()
        results.append((call(module, x), call(module, x), type(module)))
    assert all(torch.equal(one, other) for one, other in zip(results[0][:2], results[1][:2], strict=True))
    assert results[0][2] is results[1][2]


def test_a_hook_that_is_always_called_runs_when_forward_raises():
    class Picky(torch.nn.Module):
        def forward(self, x):
            if x.shape[0] == 2:
                raise ValueError("two")
            return x + 1

    noted = []
    module = Picky()
    module.register_forward_hook(lambda *given: noted.append(given[-1]), always_call=True)
    compiled = optimize()(module)
    for _ in range(2):
        with pytest.raises(ValueError, match="two"):
            compiled(torch.ones(2))
    assert noted == [None, None]
    assert torch.equal(compiled(torch.ones(3)), noted[2]) and len(noted) == 3


def test_a_guard_on_a_gradient_reads_it_without_a_word():
    compiled = optimize(fullgraph=True)(lambda x: x * 2 if not x.is_leaf or x.grad is None else x)
    x = torch.ones(2, requires_grad=True)
    for given in (x, x * 1, torch.ones(2), x * 1):
        assert compiled(given).tolist() == [2.0, 2.0]  # a warning is an error
    x.grad = torch.zeros(2)
    assert compiled(x) is x


def test_an_imported_module_is_the_one_of_the_call():
    def program(x):
        import fxloom_made_up

        return x + fxloom_made_up.number

    compiled = optimize(fullgraph=True)(program)
    with pytest.raises(ModuleNotFoundError):
        compiled(torch.zeros(1))
    try:
        for number in (1, 2):
            sys.modules["fxloom_made_up"] = made = types.ModuleType("fxloom_made_up")
            made.number = number
            assert compiled(torch.zeros(1)).item() == number
    finally:
        del sys.modules["fxloom_made_up"]
    with pytest.raises(ModuleNotFoundError):
        compiled(torch.zeros(1))


SENTINEL = Knobs()


def described(first, items=[1], other=SENTINEL):  # noqa: B006  # what is looked at
    return first


ITEMS, OTHER = (inspect.signature(described).parameters[name] for name in ("items", "other"))


@dataclasses.dataclass
class Described:
    first: int
    second: int = dataclasses.field(default=3, metadata={"notes": [1]})


def reads_a_field(x):
    return x + 1, dataclasses.fields(Described)[0].default is dataclasses.MISSING, SENTINEL is OTHER.default


def adds_to_a_default(x):
    ITEMS.default.append(2)
    return x * len(ITEMS.default), ITEMS.default is described.__defaults__[0], len(described.__defaults__[0])


def reads_a_signature(x):
    return x * len(inspect.signature(described).parameters["items"].default)


def adds_to_metadata(x):
    notes = dataclasses.fields(Described)[1].metadata["notes"]
    notes.append(1)
    return x * len(notes)


@pytest.mark.parametrize("program", [reads_a_field, adds_to_a_default, reads_a_signature, adds_to_metadata])
def test_what_describes_code_refers_to_the_programs_objects(program):
    global ITEMS
    results = []
    for run in (program, optimize()(program)):
        described.__defaults__ = ([1], SENTINEL)
        ITEMS = inspect.signature(described).parameters["items"]
        dataclasses.fields(Described)[1].metadata["notes"][:] = [1]
        found = [run(torch.ones(1)), run(torch.ones(1))]
        ITEMS.default.append(7)
        found += [run(torch.ones(1))]
        described.__defaults__ = ([1, 2, 3, 4, 5], SENTINEL)
        results.append(str([*found, run(torch.ones(1))]))
    assert results[0] == results[1]


class Level(enum.Enum):
    LOW = [1]
    HIGH = 2


def test_members_of_enums_have_attributes_that_change():
    def program(x):
        Level.LOW.asked += 1
        Level.LOW.value.append(1)
        return x * Level.HIGH.extra + Level.HIGH.value, Level.LOW.asked, len(Level.LOW.value)

    results = []
    for run in (program, optimize()(program)):
        Level.LOW.asked, Level.HIGH.extra, Level.HIGH._value_ = 0, 2, 2
        Level.LOW.value[:] = [1]
        found = [run(torch.ones(1)), run(torch.ones(1))]
        Level.HIGH.extra = 5
        found.append(run(torch.ones(1)))
        Level.HIGH._value_ = 7
        results.append(str([*found, run(torch.ones(1))]))
    Level.HIGH._value_ = 2
    assert results[0] == results[1]


def closes_over():
    held = [1]
    return (lambda: held), held


@pytest.mark.parametrize("looks", [True, False])
def test_a_cell_is_the_same_whoever_names_it(looks):
    def both(compiled):
        getter, held = closes_over()

        def program(x):
            if looks:
                getter.__closure__[0].cell_contents.append(1)
            else:
                getter.__closure__[0].cell_contents = held
            return x * len(held), getter() is held

        run = compiled(program)
        return str([run(torch.ones(1)), run(torch.ones(1)), held])

    assert both(optimize()) == both(lambda fn: fn)


def test_a_size_given_to_a_constructor_is_a_shape():
    def program(x):
        made = [x.new(torch.Size([])), x.new(x.shape), x.new(torch.Size([2, 3])), x.new(2, 3), x.new(), torch.Tensor(torch.Size([])),
                torch.Tensor(x.shape)]  # fmt: skip
        return [tuple(value.shape) for value in made], x.new((2, 3)), torch.distributions.Exponential(x[0]).sample().shape

    for dynamic in (None, True):
        x = torch.ones(4)
        assert str(optimize(fullgraph=True, dynamic=dynamic)(program)(x)) == str(program(x))


def test_descriptions_and_members_that_the_program_makes_itself():
    def program(x):
        class Own(enum.Enum):
            ONE = 1
            TWO = [2]

        @dataclasses.dataclass
        class Pair:
            left: int
            right: int = 4

        names = [(field.name, field.default is dataclasses.MISSING) for field in dataclasses.fields(Pair)]
        return x + Own.ONE.value, Own.TWO.value, Own.ONE.name, len(Own), names, Pair(1).right

    compiled = optimize(fullgraph=True)(program)
    assert str(compiled(torch.ones(1))) == str(compiled(torch.ones(1))) == str(program(torch.ones(1)))
