"""What the user says of dimensions: marks on tensors, `dynamic_shapes`; a dimension that can't be dynamic is an error with its line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from fxloom_dynamo import optimize
from fxloom_dynamo.guard.dynamic_shapes import mark_dynamic, mark_static, mark_unbacked, maybe_mark_dynamic
from fxloom_interfaces.errors import ConfigError
from fxloom_shapes import ConstraintViolated


class Counted:
    """A compiled function that counts its graphs."""

    def __init__(self, fn: Callable[..., Any], **options: Any) -> None:
        self.graphs: list[Any] = []
        self.run = optimize(lambda gm, inputs: self.graphs.append(gm) or gm.forward, **options)(fn)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(*args, **kwargs)


def marked(mark: Any, *size: int, dim: Any = 0, **options: Any) -> torch.Tensor:
    tensor = torch.randn(*size)
    mark(tensor, dim, **options)
    return tensor


def by_branch(x: Any) -> Any:
    if x.shape[0] == 3:
        return x + 1
    return x


def by_view(x: Any) -> Any:
    return x.view(2, 6) + 1


def by_broadcast(x: Any) -> Any:
    return x + torch.ones(3, 4)


def by_loop(x: Any) -> Any:
    for _ in range(x.shape[0]):
        x = x + 1
    return x


@pytest.mark.parametrize("fn", [by_branch, by_view, by_broadcast, by_loop], ids=lambda fn: fn.__name__)
def test_what_specializes_a_marked_dimension_is_named(fn: Callable[[Any], Any]) -> None:
    lines = {
        "by_branch": "if x.shape[0] == 3:",
        "by_view": "return x.view(2, 6) + 1",
        "by_broadcast": "return x + torch.ones(3, 4)",
        "by_loop": "for _ in range(x.shape[0]):",
    }
    with pytest.raises(ConstraintViolated) as info:
        Counted(fn)(marked(mark_dynamic, 3, 4))
    assert "L['x'].size(0) is marked dynamic" in str(info.value)
    assert lines[fn.__name__] in str(info.value) and fn.__name__ in str(info.value)
    compiled = Counted(fn)
    x = marked(maybe_mark_dynamic, 3, 4)
    torch.testing.assert_close(compiled(x), fn(x))


ONE_VALUE: dict[str, Callable[[Any], Any]] = {
    "between": lambda x: x + 1 if 3 < x.shape[0] < 5 else x - 1,
    "multiple": lambda x: x + 1 if x.shape[0] * 2 == 8 else x - 1,
    "square": lambda x: x + 1 if x.shape[0] ** 2 == 16 else x - 1,
    "quotient": lambda x: x + 1 if x.shape[0] / 2 == 2.0 else x - 1,
    "key": lambda x: x + {4: 1, 6: 2}.get(x.shape[0], 0),
}
SEVERAL_VALUES: dict[str, tuple[Callable[[Any], Any], tuple[int, ...]]] = {
    "divisor": (lambda x: x.view(4, -1), (4, 8, 12)),
    "whole_quotient": (lambda x: x + 1 if x.shape[0] // 2 == 2 else x - 1, (4, 5)),
    "remainder": (lambda x: x + 1 if x.shape[0] % 100 == 4 else x - 1, (4, 104)),
    "not_one_value": (lambda x: x + 1 if x.shape[0] != 5 else x - 1, (4, 6, 9)),
}


@pytest.mark.parametrize("name", ONE_VALUE)
def test_one_value_is_left(name: str) -> None:
    """However it is asked."""
    with pytest.raises(ConstraintViolated, match=r"size\(0\) is marked dynamic, but the program needs .* at .*test_dynamic_directives.py:\d+ in"):
        Counted(ONE_VALUE[name])(marked(mark_dynamic, 4, 3))


@pytest.mark.parametrize("name", SEVERAL_VALUES)
def test_several_values_are_left(name: str) -> None:
    program, sizes = SEVERAL_VALUES[name]
    compiled = Counted(program)
    for size in sizes:
        x = marked(mark_dynamic, size, 3)
        assert torch.equal(compiled(x), program(x))
    assert len(compiled.graphs) == 1


def test_one_graph_for_a_marked_dimension() -> None:
    for dim in (0, -2, [0, 1]):
        compiled = Counted(lambda x: x * 2)
        for n in (3, 4, 5):
            compiled(marked(mark_dynamic, n, 7, dim=dim))
        assert len(compiled.graphs) == 1


def test_one_element_is_compiled_for_apart() -> None:
    with pytest.raises(ConstraintViolated, match="0 and 1 are compiled for apart"):
        Counted(lambda x: x * 2)(marked(mark_dynamic, 1, 4))
    compiled = Counted(lambda x: x * 2)
    for n in (3, 4, 1):
        compiled(marked(mark_dynamic, n, 4))
    assert len(compiled.graphs) == 2


def test_a_promised_range() -> None:
    compiled = Counted(lambda x: x * 2 if x.shape[0] > 2 else x)
    for n in (4, 8, 16):
        compiled(marked(mark_dynamic, n, 4, min=4, max=16))
    assert len(compiled.graphs) == 1
    with pytest.raises(ConstraintViolated, match=r"out of the promised range \[4, 16\]"):
        Counted(lambda x: x * 2)(marked(mark_dynamic, 3, 4, min=4, max=16))


def test_dimensions_of_one_name_have_one_size() -> None:
    compiled = Counted(lambda x, y: x + y)
    for n in (3, 5):
        compiled(marked(mark_dynamic, n, 4, name="batch"), marked(mark_dynamic, n, 4, name="batch"))
    assert len(compiled.graphs) == 1
    with pytest.raises(ConstraintViolated, match="though 'batch' is 3 elsewhere"):
        Counted(lambda x, y: x.sum() + y.sum())(marked(mark_dynamic, 3, 4, name="batch"), marked(mark_dynamic, 5, 4, name="batch"))


def test_a_static_dimension_stays_so() -> None:
    compiled = Counted(lambda x: x * 2, dynamic=True)
    for n in (3, 4, 5):
        compiled(marked(mark_static, n, n + 4))
    assert len(compiled.graphs) == 3


def test_nothing_looks_at_an_unbacked_dimension() -> None:
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.LayerNorm(8))
    compiled = Counted(module)
    for n in (3, 1, 0, 5):
        x = marked(mark_unbacked, n, 4)
        torch.testing.assert_close(compiled(x), module(x))
    assert len(compiled.graphs) == 1
    with pytest.raises(ConstraintViolated, match="to know whether"):
        Counted(by_branch)(marked(mark_unbacked, 5, 4))


def test_dynamic_shapes_by_argument() -> None:
    shapes = {"x": {0: "batch"}, "y": {0: "batch", 1: (2, 64)}, "z": [None, {1: True}]}
    compiled = Counted(lambda x, y, z: (x + 1, y * 2, z[1] - 1), dynamic_shapes=shapes)
    for n in (3, 4, 5):
        compiled(torch.randn(n, 4), torch.randn(n, n + 3), [torch.randn(2), torch.randn(2, n + 3)])
    assert len(compiled.graphs) == 1


@pytest.mark.parametrize("shape", [{0: True}, ("batch", None), [True, None]], ids=str)
def test_dynamic_shapes_of_a_module(shape: Any) -> None:
    compiled = Counted(nn.Linear(4, 4), dynamic_shapes={"input": shape})
    for n in (2, 3, 4):
        compiled(torch.randn(n, 4))
    compiled(input=torch.randn(5, 4))
    assert len(compiled.graphs) == 2  # one by place, one by name


def test_dynamic_shapes_that_can_not_be_meant() -> None:
    with pytest.raises(ConfigError, match="names 'y'; the arguments are x"):
        Counted(lambda x: x, dynamic_shapes={"y": {0: True}})
    with pytest.raises(ConfigError, match="names dimension 5 of L\\['x'\\], which has 1"):
        Counted(lambda x: x + 1, dynamic_shapes={"x": {5: True}})(torch.randn(3))
    with pytest.raises(ConfigError, match="there is no dimension 3"):
        mark_dynamic(torch.randn(3), 3)


def times(x: torch.Tensor, n: int | float) -> torch.Tensor:
    return x * n


@pytest.mark.parametrize(
    ("spec", "values", "count"),
    [
        (True, (4, 5, 7), 1),
        ("auto", (4, 5, 7), 1),
        ((2, 9), (4, 5, 7), 1),
        ("static", (4, 5, 7), 3),
        (None, (4, 5, 7), 2),
        (True, (0.4, 0.5, 0.7), 1),
        (True, (4, 1, 7, 0), 3),
    ],
)
@pytest.mark.parametrize("as_module", [False, True])
def test_numbers_are_marked_by_dynamic_shapes(spec: Any, values: tuple[Any, ...], count: int, as_module: bool) -> None:
    class Module(torch.nn.Module):
        def forward(self, x: torch.Tensor, n: Any) -> torch.Tensor:
            return times(x, n)

    program = Module() if as_module else times
    run = Counted(program, dynamic_shapes={"n": spec})
    for value in values:
        assert torch.equal(run(torch.ones(3), value), torch.ones(3) * value)
    assert len(run.graphs) == count


def test_a_name_makes_a_number_and_a_dimension_one() -> None:
    run = Counted(lambda x, n: x[:n] * 1, dynamic_shapes={"x": ["k"], "n": "k"})
    for size in (4, 6):
        assert torch.equal(run(torch.ones(size), size), torch.ones(size))
    assert len(run.graphs) == 1
    with pytest.raises(ConstraintViolated, match="one name have one size"):
        run(torch.ones(5), 3)


@pytest.mark.parametrize(
    ("program", "n"),
    [(lambda x, n: x * 2 if n == 4 else x, 4), (lambda x, n: torch.histc(x, n), 4), (lambda x, n: x * len(str(n)), 0.5)],
)
def test_a_marked_number_that_is_specialized_is_an_error(program: Callable[..., Any], n: Any) -> None:
    with pytest.raises(ConstraintViolated, match=rf"L\['n'\] is marked dynamic.*{n} at .*test_dynamic_directives.py"):
        Counted(program, dynamic_shapes={"n": True})(torch.ones(3), n)


def test_marks_that_say_nothing_are_errors() -> None:
    x = torch.ones(4, 3)
    for mark in (mark_dynamic, mark_unbacked):
        with pytest.raises(ConfigError, match="empty: from 8 to 2"):
            mark(x, 0, min=8, max=2)
    for dim in ("a", True, 1.0):
        with pytest.raises((ConfigError, TypeError)):
            mark_dynamic(x, dim)
    for spec in ({0: (8, 2)}, [(8, 2), None], {0: (None, -1)}):
        with pytest.raises(ConfigError, match="the range"):
            Counted(times, dynamic_shapes={"x": spec})(x, 2)
    with pytest.raises(ConfigError, match="say which of its 2 dimensions"):
        Counted(times, dynamic_shapes={"x": True})(x, 2)
    with pytest.raises(ConstraintViolated, match="Promise a range that has it"):
        Counted(times, dynamic_shapes={"x": [(5, 9), None]})(x, 2)


@pytest.mark.parametrize(
    ("shapes", "argument", "message"),
    [
        ({"d": {"b": {0: True}}}, {"a": 1}, "dynamic_shapes for d names 'b'; its keys are 'a'"),
        ({"d": {"a": {"c": {0: True}}}}, {"a": {"b": 1}}, r"for d\['a'\] names 'c'; its keys are 'b'"),
        ({"d": [{0: True}, {0: True}]}, [1], "for d: expected a list or tuple of 2 or more items, the argument has 1"),
        ({"d": [{0: True}]}, {"a": 1}, "of 1 or more items, the argument is a dict"),
        ({"d": {"a": {0: True}}}, [1], "names 'a' in what is a list"),
    ],
)
def test_what_is_named_inside_of_an_argument_has_to_be_there(shapes: Any, argument: Any, message: str) -> None:
    def program(d: Any) -> Any:
        return torch.ones(3) * 2

    with pytest.raises(ConfigError, match=message):
        Counted(program, dynamic_shapes=shapes)(argument)


def test_a_float_has_no_range() -> None:
    compiled = optimize("eager", dynamic_shapes={"n": (0, 10)})(lambda x, n: x * n)
    assert compiled(torch.ones(1), 3).item() == 3
    with pytest.raises(ConfigError, match=r"L\['n'\] a range, but it is a float \(1.5\)"):
        compiled(torch.ones(1), 1.5)
