"""Whole programs: what Python constructs mean when they are captured."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import functools
import itertools
import math
import sys
from typing import Any, NamedTuple

import pytest
import torch
from programs import check

from fxloom_dynamo.code_cache.callables import compile_callable
from fxloom_dynamo.config import CaptureConfig
from fxloom_interfaces import telemetry

X = torch.tensor([0.5, -1.0, 2.0, -0.25])


def one_graph(fn: Any, *args: Any) -> None:
    counts = check(fn, *args, fullgraph=True)
    assert (counts.graphs, counts.breaks, counts.frames) == (1, (), 1)


def test_loops_and_containers() -> None:
    def program(x: Any) -> Any:
        out, table = [x], {}
        for i in range(4):
            out.append(torch.sin(out[-1]) * i)
            table[f"k{i}"] = out[-1].shape[0]
        return out, table, tuple(reversed(out)), {k: v for k, v in sorted(table.items(), reverse=True)}

    one_graph(program, X)


def test_closure_cells_are_written() -> None:
    def program(x: Any) -> Any:
        count = 0

        def step(value: Any) -> Any:
            nonlocal count
            count += 1
            return value + count

        return step(step(x)), count, step

    one_graph(program, X)


def test_generators_are_lazy() -> None:
    def program(x: Any) -> Any:
        log: list[str] = []

        def numbers() -> Any:
            try:
                for i in range(3):
                    log.append(f"make {i}")
                    sent = yield x * i
                    if sent is not None:
                        log.append(sent)
            finally:
                log.append("end")

        def outer() -> Any:
            result = yield from numbers()
            log.append(f"result {result}")

        gen = outer()
        first = next(gen)
        second = gen.send("hello")
        rest = list(gen)
        return first, second, rest, log, sum(t for t in numbers()), list(map(torch.sin, numbers()))

    one_graph(program, X)


def test_generator_throw_and_close() -> None:
    def program(x: Any) -> Any:
        log: list[str] = []

        def gen() -> Any:
            while True:
                try:
                    yield x
                except ValueError as error:
                    log.append(str(error))
                except GeneratorExit:
                    log.append("closed")
                    raise

        g = gen()
        next(g)
        g.throw(ValueError("a"))
        g.close()
        return log, x + len(log)

    one_graph(program, X)


def test_list_grows_while_iterated() -> None:
    def program(x: Any) -> Any:
        queue = [x]
        seen = []
        for item in queue:
            if len(queue) < 4:
                queue.append(item * 2)
            seen.append(item)
        return seen

    one_graph(program, X)


def test_exceptions() -> None:
    def program(x: Any) -> Any:
        log: list[Any] = []
        for value in ("3", "z", None):
            try:
                log.append(int(value))  # type: ignore[arg-type]
            except ValueError as error:
                log.append(("value", str(error)))
            except TypeError:
                log.append("type")
            else:
                log.append("fine")
            finally:
                log.append("finally")
        try:
            try:
                raise KeyError("inner")
            except KeyError as error:
                raise RuntimeError("outer") from error
        except RuntimeError as error:
            log.append((str(error), type(error.__cause__).__name__))
        return log, x + len(log)

    one_graph(program, X)


def test_exception_leaves_state_as_eager() -> None:
    def program(x: Any, log: list[Any]) -> Any:
        log.append(x + 1)
        raise ValueError(f"shape {tuple(x.shape)}")

    check(program, X, [])


class Meter:
    unit = 2

    def __init__(self) -> None:
        self.total = 0
        self.seen: list[Any] = []

    @property
    def double(self) -> int:
        return self.total * self.unit

    @double.setter
    def double(self, value: int) -> None:
        self.total = value // self.unit

    def step(self, x: Any) -> Any:
        self.total += 1
        self.seen.append(x)
        return x * self.double

    def __call__(self, x: Any) -> Any:
        return self.step(x)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("dyn_"):
            return name[4:]
        raise AttributeError(name)


class FineMeter(Meter):
    def step(self, x: Any) -> Any:
        return super().step(x) + 1


def test_objects() -> None:
    def program(meter: Any, x: Any) -> Any:
        y = meter(x)
        meter.double = 10
        made = FineMeter()
        z = made.step(y)
        return z, made, meter.dyn_name, hasattr(meter, "nothing"), meter.total

    one_graph(program, FineMeter(), X)


def test_containers_in_place() -> None:
    def program(items: list[Any], table: dict[Any, Any], bag: set[int], line: Any, x: Any) -> Any:
        items.append(x)
        items[0] = x * 2
        items.extend([1, 2])
        items.remove(1)
        del table["old"]
        table["new"] = x + 1
        table.setdefault("list", []).append(3)
        bag.add(7)
        line.appendleft(x)
        return items[-1], len(table), table.pop("gone", None)

    one_graph(program, [1], {"old": 1, "list": [1]}, {1}, collections.deque([1, 2]), X)


def test_aliased_lists_stay_aliased() -> None:
    shared: list[Any] = [1]

    def program(pair: Any, x: Any) -> Any:
        pair[0].append(x)
        return x + len(pair[1]), pair[0] is pair[1]

    one_graph(program, (shared, shared), X)


class Point(NamedTuple):
    left: Any
    right: Any = 3


@dataclasses.dataclass
class Box:
    width: Any
    height: int = 2
    tags: list[str] = dataclasses.field(default_factory=list)

    def area(self) -> Any:
        return self.width * self.height


class Color(enum.Enum):
    RED = 1
    BLUE = 2


def test_library_classes() -> None:
    def program(x: Any) -> Any:
        point = Point(x)
        box = Box(x, tags=["a"])
        counter = collections.OrderedDict(a=1)
        counter["b"] = 2
        counter.move_to_end("a")
        groups = collections.defaultdict(list)
        groups["q"].append(x)
        scaled = functools.partial(torch.mul, x)
        return (
            point._replace(left=x + 1), box, box.area(), list(counter), dict(groups), scaled(3), Color.RED.name, Color(2) is Color.BLUE,
            dataclasses.replace(box, height=4).area(), [f.name for f in dataclasses.fields(box)],
        )  # fmt: skip

    one_graph(program, X)


def test_iteration_tools() -> None:
    def program(x: Any) -> Any:
        pairs = list(zip(range(3), itertools.count(5)))
        chained = list(itertools.chain([1], (2,), {3: 4}))
        best = max([3, 1, 2], key=lambda v: -v), min("cab"), sorted([(2, "b"), (1, "a")], key=lambda p: p[1])
        total = functools.reduce(lambda a, b: a + b, [x, x, x])
        groups = [(k, list(g)) for k, g in itertools.groupby([1, 1, 2], key=lambda v: v)]
        return pairs, chained, best, total, any(v > 2 for v in chained), all([]), groups, list(filter(None, [0, 1])), *enumerate("ab")

    one_graph(program, X)


def test_text_and_star_arguments() -> None:
    def program(x: Any, *rest: Any, scale: int = 2, **named: Any) -> Any:
        text = f"{scale:>4}|{rest!r}|{named}" + "-".join(str(r) for r in rest)
        head, *middle, tail = [*rest, 4, 5]
        return x * scale, text, head, middle, tail, {**named, "z": 1}, "%s %d" % ("a", 3)  # noqa: UP031  # the operator is what is tested

    one_graph(functools.partial(program, scale=3, extra="e"), X, 1, 2)


def test_match() -> None:
    def kind(value: Any) -> Any:
        match value:
            case {"a": inner, **rest}:
                return "mapping", inner, rest
            case [first, *_, last]:
                return "sequence", first, last
            case Point(left=1, right=r):
                return "point", r
            case int() | float() as number if number > 3:
                return "big", number
            case _:
                return "other"

    def program(x: Any) -> Any:
        return [kind(v) for v in ({"a": 1, "b": 2}, [1, 2, 3], 7, 1, "s")], x + 1

    one_graph(program, X)


def test_context_managers() -> None:
    @contextlib.contextmanager
    def noted(log: list[str], name: str) -> Any:
        log.append(f"enter {name}")
        try:
            yield name
        except KeyError:
            log.append("swallowed")
        finally:
            log.append(f"exit {name}")

    def program(x: Any) -> Any:
        log: list[str] = []
        with noted(log, "a") as a, noted(log, "b"):
            x = x * 2
            raise KeyError
        with contextlib.suppress(ValueError):
            int("z")
        with torch.no_grad():
            inside = torch.is_grad_enabled()
            x = x + 1
        return x, log, inside, torch.is_grad_enabled(), a

    one_graph(program, X.clone().requires_grad_())


def test_no_grad_is_in_the_graph() -> None:
    def program(x: Any) -> Any:
        with torch.no_grad():
            y = x * 2
        return y.requires_grad, (x * 3).requires_grad, y, x * 3

    one_graph(program, X.clone().requires_grad_())


# ---------------------------------------------------------------------- breaks


def silent() -> None:
    print(end="", file=sys.stdout)


def test_data_dependent_branch_has_both_ways() -> None:
    def program(x: Any) -> Any:
        y = x * 2
        y = y + 1 if y.sum() > 0 else y - 1
        return y * 3

    assert check(program, X).graphs == 2
    assert check(program, -X).breaks == ("data_dependent",)


def test_truth_of_a_comparison_is_asked_for_once_and_as_a_bool() -> None:
    def program(x: Any) -> Any:
        total = x.sum()
        negated = not total > 0, not total
        chained = 0 < total < 5, total > 0 and total < 1, total < 0 or x.max()
        return negated, chained, (x + 1 if (total if x.max() > 1 else x.min()) else x - 1)

    for values in (X, -X, X * 0):
        assert set(check(program, values).breaks) == {"data_dependent"}


def test_iterators_of_a_broken_loop_go_on() -> None:
    def program(x: Any, items: list[int]) -> Any:
        log = []
        for number in range(1, 8, 2):
            silent()
            for place, (a, b) in enumerate(zip(items, reversed(items), strict=True), 1):
                silent()
                log.append((number, place, a - b))
        i = 9
        log.append([(silent(), x * i)[1] for i in range(3)])
        return log, i, sum(x + k for k in range(3) if x.sum() > k), {k: (silent(), k) for k in range(2)}

    check(program, X, [3, 4])


def test_exceptions_made_in_a_graph_outlive_it() -> None:
    class Own(OSError):
        def __init__(self, number: int) -> None:
            super().__init__(number, "text")
            self.number = number

    def program(x: Any) -> Any:
        made = [StopIteration(4), SystemExit(3), Own(7), KeyError("k"), ExceptionGroup("g", [ValueError(1), TypeError(2)])]
        silent()
        stop, leave, own, key, group = made
        parts = [(type(part), part.args) for part in group.exceptions]
        return stop.value, leave.code, (own.errno, own.strerror, own.number), str(key), (group.message, parts), x + 1

    check(program, X)


def test_break_in_loop_does_not_nest() -> None:
    def program(x: Any) -> Any:
        while x.sum() < 1e30:
            x = x.abs() * 1.001 + 1e26
        return x

    counts = check(program, X, calls=1)
    assert counts.frames <= 4


def test_break_in_inlined_call() -> None:
    def inner(x: Any, k: int = 3) -> Any:
        y = x + 1
        silent()
        return y * k

    def program(x: Any) -> Any:
        a = inner(x) + 1
        return inner(a, k=4) - a

    check(program, X)


def test_break_in_with_reenters_the_mode() -> None:
    def program(x: Any) -> Any:
        with torch.no_grad():
            y = x * 2
            silent()
            z = y + x
        return z, z.requires_grad, torch.is_grad_enabled()

    counts = check(program, X.clone().requires_grad_())
    assert counts.graphs == 2


def test_native_exception_finds_its_handler() -> None:
    def program(x: Any, log: list[str]) -> Any:
        y = x + 1
        try:
            print(end=5)  # type: ignore[arg-type]
        except TypeError:
            log.append("caught")
            y = y * 2
        finally:
            log.append("finally")
        return y - 1

    check(program, X, [])


def test_break_with_live_closure_and_mutation() -> None:
    def program(x: Any, log: list[Any], table: dict[str, Any]) -> Any:
        n = 0

        def add(v: Any) -> Any:
            nonlocal n
            n += 1
            log.append(n)
            return v + n

        y = add(x)
        table["y"] = y
        silent()
        y = add(y)
        table["n"] = n
        return y, n, add

    check(program, X, [], {})


def test_item_and_tolist() -> None:
    def program(x: Any) -> Any:
        s = x.sum().item()
        return x * s, x.tolist(), float(x[0]), int(x[2])

    check(program, X)


def test_iterating_a_tensor_with_decisions() -> None:
    def program(x: Any) -> Any:
        return torch.stack([t * 2 if t > 0 else t for t in x])

    check(program, X)


def test_break_inside_except_block() -> None:
    def program(x: Any) -> Any:
        y = x + 1
        try:
            raise KeyError("a")
        except KeyError as error:
            silent()
            y = y * len(error.args)
        return y

    check(program, X)


def test_super_in_a_method_with_a_break() -> None:
    class Base:
        def go(self, x: Any) -> Any:
            return x + 1

    class Child(Base):
        def go(self, x: Any) -> Any:
            y = x * 2
            silent()
            return super().go(y)

    def program(x: Any) -> Any:
        return Child().go(x)

    check(program, X)


def test_fullgraph_names_the_break() -> None:
    from fxloom_interfaces.errors import Unsupported

    def program(x: Any) -> Any:
        silent()
        return x

    with pytest.raises(Unsupported, match=r"native_call[\s\S]*what to change[\s\S]*test_programs.py"):
        check_raises(program)


def check_raises(program: Any) -> None:
    from fxloom_dynamo import optimize

    optimize(fullgraph=True)(program)(X)


# ---------------------------------------------------------------------- modules and guards


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(2)])
        self.head = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(4, 2))
        self.register_buffer("steps", torch.zeros(()))
        self.scale = 2.0
        self.both = True

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        self.steps += 1
        y = self.head(x) * self.scale
        return (y, x) if self.both else y


def test_module_in_one_graph() -> None:
    torch.manual_seed(0)
    net = Net()
    one_graph(lambda n, x: n(x), net, torch.randn(3, 4))


def test_guards_see_changes() -> None:
    from fxloom_dynamo import optimize

    net = Net()
    compiled = optimize()(net)
    x = torch.randn(3, 4)
    steps = 0

    def agree() -> None:
        nonlocal steps
        steps += 2
        expected, got = net(x), compiled(x)
        flat = lambda v: v if isinstance(v, tuple) else (v,)  # noqa: E731
        assert len(flat(expected)) == len(flat(got))
        assert all(torch.equal(a, b) for a, b in zip(flat(expected), flat(got), strict=True))
        assert net.steps.item() == steps

    agree()
    net.both = False
    agree()
    net.scale = 3.0
    agree()
    net.layers[0].register_forward_hook(lambda module, args, out: out * 2)
    agree()
    net.layers.append(torch.nn.Linear(4, 4))
    agree()
    with torch.no_grad():
        agree()
    net.head[1].forward = lambda v: v[:, :2] * 5
    agree()


_FACTOR = 2


class Knobs:
    gain = 1.0


def test_globals_and_class_attributes_are_guarded() -> None:
    from fxloom_dynamo import optimize

    global _FACTOR

    def program(x: Any, k: int = 1) -> Any:
        return x * _FACTOR * Knobs.gain * math.pi + k

    compiled = optimize()(program)
    assert torch.equal(compiled(X), program(X))
    _FACTOR = 5
    assert torch.equal(compiled(X), program(X))
    Knobs.gain = 7.0
    assert torch.equal(compiled(X), program(X))
    program.__defaults__ = (9,)
    assert torch.equal(compiled(X), program(X))


def test_global_writes() -> None:
    from fxloom_dynamo import optimize

    global _COUNT
    _COUNT = 0

    def program(x: Any) -> Any:
        global _COUNT
        _COUNT += 1
        return x * _COUNT

    compiled = optimize()(program)
    assert [compiled(X)[2].item() for _ in range(3)] == [2.0, 4.0, 6.0]
    assert _COUNT == 3


def test_second_call_compiles_nothing() -> None:
    from fxloom_dynamo import optimize

    graphs = []

    def backend(gm: Any, example_inputs: Any) -> Any:
        graphs.append(gm)
        return gm.forward

    compiled = optimize(backend)(lambda x: x.sin() + 1)
    for _ in range(3):
        compiled(X)
    assert len(graphs) == 1
    compiled(torch.ones(2))
    assert len(graphs) == 2


def test_backend_rejection_breaks_at_the_node() -> None:
    from fxloom_dynamo import optimize
    from fxloom_interfaces.errors import GraphRejected

    seen = []

    def backend(gm: Any, example_inputs: Any) -> Any:
        for node in gm.graph.nodes:
            if node.op == "call_method" and node.target == "cos":
                raise GraphRejected(node, "no cosines here")
        seen.append(sum(node.op.startswith("call") for node in gm.graph.nodes))
        return gm.forward

    def program(x: Any) -> Any:
        return (x.sin().cos() + 1).exp()

    assert torch.equal(optimize(backend)(program)(X), program(X))
    assert seen == [1, 2]


class Refusing:
    def __getattribute__(self, name: str) -> Any:
        silent()
        return object.__getattribute__(self, name)

    def scale(self, x: Any) -> Any:
        return x * 2


def test_break_while_loading_a_method() -> None:
    def program(obj: Any, x: Any) -> Any:
        y = x + 1
        return obj.scale(y) - x

    check(program, Refusing(), X)


def test_bound_methods_of_containers_act_on_the_container() -> None:
    items: list[Any] = []
    append, get = items.append, {"a": 1}.get

    def program(x: Any) -> Any:
        append(x)
        return x + len(items) + get("a")

    from fxloom_dynamo import optimize

    compiled = optimize()(program)
    assert [compiled(X)[0].item() for _ in range(3)] == [2.5, 3.5, 4.5]
    assert len(items) == 3


def test_loops_over_generators_of_modules_and_shared_parameters() -> None:
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = torch.nn.Linear(4, 4, bias=False)
            self.b = torch.nn.Linear(4, 4, bias=False)
            self.b.weight = self.a.weight
            self.table = torch.nn.ModuleDict({"x": torch.nn.Tanh(), "y": torch.nn.Identity()})

        def forward(self, x: Any) -> Any:
            for name, module in self.table.items():
                x = module(self.a(x) if name == "x" else self.b(x))
            return x, sum(p.numel() for p in self.parameters()), self.a.weight is self.b.weight

    one_graph(lambda n, x: n(x), Tied(), X)


def test_python_code_that_guards_run_is_not_captured() -> None:
    events: list[str] = []
    watching = True

    def audit(event: str, args: Any) -> None:
        if watching and event == "object.__getattr__":
            events.append(event)

    def helper(x: Any, k: int = 2) -> Any:
        return x * k

    def program(x: Any) -> Any:
        return helper(x)

    sys.addaudithook(audit)  # for good: there is no way to take it off
    try:
        assert check(program, X).frames == 1
    finally:
        watching = False
    assert events  # a guard read `__defaults__`


def test_changed_class_attribute_is_named() -> None:
    class Scale:
        factor = 2

    def program(x: Any) -> Any:
        return x * Scale.factor

    reasons: list[str] = []

    def listen(event: Any) -> None:
        if isinstance(event, telemetry.FrameCompiled):
            reasons.append(event.recompile_reason)

    compiled = compile_callable(program, CaptureConfig(backend=None))
    with telemetry.listen(listen):
        assert torch.equal(compiled(X), X * 2)
        Scale.factor = 3
        assert torch.equal(compiled(X), X * 3)
    assert len(reasons) == 2
    assert "factor" in reasons[1] and "is 3, was 2" in reasons[1]


def test_profile_functions_are_not_captured() -> None:
    events = []

    def observe(frame: Any, event: str, arg: Any) -> Any:
        events.append(event)
        return observe

    def program(x: Any) -> Any:
        silent()
        return x * 2

    before = sys.getprofile()
    alone = check(program, X).frames
    sys.setprofile(observe)
    try:
        watched = check(program, X).frames
    finally:
        sys.setprofile(before)
    assert watched == alone
    assert events


def test_generators_left_where_closing_runs_nothing() -> None:
    """`except IndexError:` does not see GeneratorExit, so dropping the generator there is nothing; `finally` is."""

    def program(x: Any) -> Any:
        def numbers() -> Any:
            try:
                yield 1
                yield 2
            except IndexError:
                return

        return x + next(numbers())

    def with_finally(x: Any, log: list[int]) -> Any:
        def numbers() -> Any:
            try:
                yield 1
            finally:
                log.append(1)

        return x + next(numbers()), len(log)

    one_graph(program, X)
    check(with_finally, X, [])
