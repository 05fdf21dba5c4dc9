"""Tensors whose class overrides torch functions: whole graphs of plain calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fxloom_dynamo


class Plain(torch.Tensor):
    """What inherits everything."""


class Rich(torch.Tensor):
    """Methods, properties, class attributes and operators of its own."""

    scale = 3

    @property
    def rows(self) -> int:
        return self.shape[0]

    @property
    def T(self) -> Any:
        return super().T * 2

    def scaled(self, by: int = 1) -> Any:
        return self * self.scale * by

    def view(self, *shape: Any) -> Any:
        return super().view(*shape) + 100

    def __add__(self, other: Any) -> Any:
        return self.sub(other)

    def __radd__(self, other: Any) -> Any:
        return self.mul(other)

    def __iadd__(self, other: Any) -> Any:
        return self.mul_(other)

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(key) * 10

    def __len__(self) -> int:
        return 7

    def __eq__(self, other: object) -> Any:
        return "equal"

    def __bool__(self) -> bool:
        return True

    def __neg__(self) -> Any:
        return self.exp()

    __hash__ = torch.Tensor.__hash__


class Logged(torch.Tensor):
    """Notes what is called on it."""

    names: list[str] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.names.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs)


class Swapped(torch.Tensor):
    """Multiplies where it is to add; its results are plain."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.add, torch.Tensor.add, torch.Tensor.__add__):
            func = torch.mul
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


class Derived(Plain):
    """A class with a base that overrides, too."""


class Duck:
    """No tensor at all."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return cls(func(*[arg.tensor if isinstance(arg, Duck) else arg for arg in args], **(kwargs or {})))


def _set(s: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    s[0] = 5
    s.add_(1)
    return s * 1


def _in_place(s: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
    x.add_(s)
    s += 2
    return [x, s]


PROGRAMS: dict[str, tuple[type, Callable[[Any, Any], Any]]] = {
    "operators": (Plain, lambda s, x: [s + x, x + s, s @ x.T, -s, s > x]),
    "functions": (Plain, lambda s, x: [F.relu(s), torch.cat([x, s]), s.max(0), torch.split(s, 1), s.view(s.shape[1], -1)]),
    "iteration": (Plain, lambda s, x: [row * 2 for row in s]),
    "in_place": (Plain, _in_place),
    "set": (Plain, _set),
    "type": (Plain, lambda s, x: x + 1 if type(s * 2) is Plain and isinstance(s, Plain) and not isinstance(x, Plain) else x),
    "conversions": (Plain, lambda s, x: [s.as_subclass(torch.Tensor) + 1, x.as_subclass(Plain) + 1, x.as_subclass(Derived) * s]),
    "rich_methods": (Rich, lambda s, x: [s.scaled(2), s.rows * x, s.view(-1), s.T]),
    "rich_operators": (Rich, lambda s, x: [s + x, x + s, 1 + s, s[0], len(s), s == x, bool(s), -s]),
    "rich_in_place": (Rich, _in_place),
    "logged": (Logged, lambda s, x: (s + 1).sin().sum()),
    "swapped": (Swapped, lambda s, x: [torch.add(s, x), s + x, s.add(x) + 1]),
    "duck": (Plain, lambda s, x: [torch.sin(Duck(x)).tensor, F.relu(Duck(s)).tensor]),  # type: ignore[arg-type]  # what it is for
}


def _inputs(cls: type) -> tuple[Any, torch.Tensor]:
    return torch.arange(6.0).reshape(2, 3).as_subclass(cls), torch.arange(6.0).reshape(2, 3) / 2  # type: ignore[arg-type]


def _described(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [type(value), *map(_described, value)]
    return type(value), repr(value.as_subclass(torch.Tensor).tolist() if isinstance(value, torch.Tensor) else value)


@pytest.mark.parametrize("name", PROGRAMS)
def test_whole_and_as_eager(name: str) -> None:
    """One graph, with values, classes, effects on the inputs, and calls of the override equal to eager's."""
    cls, program = PROGRAMS[name]
    mine, theirs = _inputs(cls), _inputs(cls)
    Logged.names = []
    expected, seen = program(*theirs), list(Logged.names)
    Logged.names = []
    compiled = fxloom_dynamo.optimize("eager", fullgraph=True)(program)
    assert _described(compiled(*mine)) == _described(expected)
    assert _described(mine) == _described(theirs)
    assert Logged.names == seen


def test_the_graph_has_plain_calls() -> None:
    """Neither the override nor the class's methods run when the graph does."""
    report = fxloom_dynamo.explain(PROGRAMS["rich_methods"][1], *_inputs(Rich))
    assert len(report.graphs) == 1 and not report.breaks
    plain = [torch.arange(6.0).reshape(2, 3) for node in report.graphs[0].graph.nodes if node.op == "placeholder"]
    assert all(type(value) is torch.Tensor for value in report.graphs[0](*plain))


def test_gradients_reach_the_leaf() -> None:
    leaf = torch.arange(3.0).as_subclass(Plain).requires_grad_()
    fxloom_dynamo.optimize("eager", fullgraph=True)(lambda s: (s * s).sum())(leaf).backward()
    assert leaf.grad is not None and leaf.grad.tolist() == [0, 2, 4]


def test_what_overrides_dispatch_is_a_break() -> None:
    class Wrapper(torch.Tensor):
        inner: torch.Tensor

        @staticmethod
        def __new__(cls: Any, inner: torch.Tensor) -> Any:
            made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore[attr-defined]
            made.inner = inner
            return made

        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*[arg.inner if isinstance(arg, Wrapper) else arg for arg in args], **(kwargs or {}))

    def fn(s: torch.Tensor) -> torch.Tensor:
        return s + 1

    report = fxloom_dynamo.explain(fn, Wrapper(torch.ones(2)))
    assert not [frame for frame in report.frames if "fn" in frame.info.name and frame.info.graph is not None]
    compiled = fxloom_dynamo.optimize("eager")(fn)
    assert compiled(Wrapper(torch.ones(2))).tolist() == [2, 2]


def test_a_tensor_called_self() -> None:
    """FX takes a placeholder called `self` for the module."""

    class Method(torch.Tensor):
        def call(self, other: Any) -> Any:
            return torch.sub(self, other)

    def method(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return self - other

    assert fxloom_dynamo.optimize("eager", fullgraph=True)(method)(torch.ones(2), torch.ones(2)).tolist() == [0, 0]


@pytest.mark.cpu_only("torch.FloatTensor is of the CPU")
def test_legacy_tensor_types() -> None:
    def fn(x: torch.Tensor) -> tuple[bool, bool, bool]:
        return isinstance(x, torch.FloatTensor), isinstance(x, torch.DoubleTensor), isinstance(x, torch.cuda.FloatTensor)

    assert fxloom_dynamo.optimize("eager", fullgraph=True)(fn)(torch.ones(2)) == (True, False, False)


def test_parameters_of_a_class_of_their_own() -> None:
    """They override nothing; a backend sees plain tensors."""

    class Own(torch.nn.Parameter):
        pass

    module = torch.nn.Linear(3, 3)
    module.weight = Own(module.weight.detach())
    seen: list[type] = []

    def backend(gm: torch.fx.GraphModule, example_inputs: Any) -> Any:
        seen.extend(type(value) for value in example_inputs)
        return gm.forward

    x = torch.ones(2, 3)
    assert torch.equal(fxloom_dynamo.optimize(backend, fullgraph=True)(module)(x), module(x))
    assert len(seen) == 3 and Own not in seen
